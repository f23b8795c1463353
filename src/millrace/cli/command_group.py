"""A group of commands that reports expected errors in one line."""

from __future__ import annotations

import errno
from typing import Any

import typer
from typer.core import TyperGroup

from millrace.cli import interrupts
from millrace.core.errors import MillraceError


class ErrorsInOneLine(TyperGroup):
    """Ends a command with one line, not a traceback, when an expected error or Ctrl-C stops it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with interrupts.raised():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _interrupted() from None
        except (MillraceError, OSError) as error:
            if interrupts.came():
                raise _interrupted() from None  # a library has turned the interrupt into this error
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # a closed pipe, which typer ends quietly
            raise _failed(error) from None


def _failed(error: Exception) -> typer.Exit:
    from rich.text import Text

    from millrace.cli.display import err

    err().print(Text(f"error: {' '.join(str(error).split())}", style="red"), soft_wrap=True)
    return typer.Exit(1)


def _interrupted() -> typer.Exit:
    from millrace.cli.display import err

    err().print("interrupted", style="yellow")
    return typer.Exit(interrupts.INTERRUPTED)
