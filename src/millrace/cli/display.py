"""Text for terminals: consoles, tables of names and values, short numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def out() -> Console:
    """Return a console that writes to stdout, for results."""
    return Console()


def err() -> Console:
    """Return a console that writes to stderr, for progress and errors, so that results can be piped."""
    return Console(stderr=True)


def say(text: str) -> None:
    """Print a line of results as it is, without wrapping or colors."""
    out().print(text, soft_wrap=True, highlight=False, markup=False)


def say_json(facts: dict[str, Any]) -> None:
    """Print one JSON object."""
    say(json.dumps(facts, indent=2))


def facts_table(title: str, facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table with names on the left and values on the right."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(value))
    return table


def names(text: str | None) -> list[str] | None:
    """Return the column names in ``a,b,c``, or None if the option was not given.

    >>> names("a, b"), names(""), names(None)
    (['a', 'b'], [], None)
    """
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


def short(number: float) -> str:
    """Format a number in few characters.

    >>> short(812), short(83_412), short(1_234_567)
    ('812', '83.4k', '1.23M')
    """
    if number >= 999_500:
        return f"{number / 1e6:.2f}M"
    if number >= 9_999.5:
        return f"{number / 1e3:.1f}k"
    return f"{number:,.0f}"
