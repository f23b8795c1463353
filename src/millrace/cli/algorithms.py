"""``millrace algorithms``: what there is to choose from."""

from __future__ import annotations

from rich.table import Table

from millrace.cli.display import out


def algorithms() -> None:
    """List the algorithms, what each does, and its options."""
    from millrace.semistream.algorithms import ALGORITHMS

    table = Table("name", "what it does", "options")
    for name, algorithm in ALGORITHMS.items():
        table.add_row(name, algorithm.summary, "\n".join(algorithm.options) or "-")
    table.add_row("auto", "chooses one of them, and another when the stream turns out to be different", "-")
    out().print(table)
    out().print("Choose one with [cyan]--algorithm NAME[/cyan], set an option with [cyan]--option NAME=VALUE[/cyan].")
