"""The ``millrace`` command. Ctrl-C is handled before the rest of the command line is imported."""

from __future__ import annotations

from millrace.cli.interrupts import run


def main() -> None:
    """Run the command line on the arguments of this process, and exit."""
    run(_command)


def _command() -> None:
    from millrace.cli.main import app

    app()


if __name__ == "__main__":
    main()
