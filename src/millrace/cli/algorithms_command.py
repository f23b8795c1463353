"""``millrace algorithms``: a table of the algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from millrace.cli.display import out

if TYPE_CHECKING:
    from millrace.semistream.algorithms import Algorithm


def algorithms() -> None:
    """List the algorithms, what each does, what it needs of the master, and its options."""
    from millrace.semistream.algorithms import ALGORITHMS
    from millrace.semistream.arguments import AUTO

    table = Table()
    table.add_column("name", no_wrap=True)
    for title in ("what it does", "needs", "options"):
        table.add_column(title)
    for name, algorithm in ALGORITHMS.items():
        options = "\n".join([*algorithm.sizes, *algorithm.options]) or "-"
        table.add_row(name, algorithm.summary, _needs(algorithm), options)
    table.add_row(
        AUTO, "chooses one of the others, and changes to another if the stream turns out to be different", "-", "-"
    )
    out().print(table)
    out().print("`millrace master index STORE` adds the index that some algorithms need to a store.", highlight=False)
    out().print(
        "Choose one with [cyan]--algorithm NAME[/cyan], set b and w with [cyan]--b[/cyan] and [cyan]--w[/cyan], "
        "another option with [cyan]--option NAME=VALUE[/cyan]."
    )


def _needs(algorithm: Algorithm) -> str:
    """Return what an algorithm needs of the master, one need per line, or "-" if it needs nothing."""
    needs = [*(["an index"] if algorithm.needs_index else []), *([] if algorithm.many else ["unique keys"])]
    return "\n".join(needs) or "-"
