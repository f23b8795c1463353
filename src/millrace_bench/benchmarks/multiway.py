"""Count how much of the result of a join of several inputs comes out before the inputs have ended.

The inputs are the chain and the star of the MINER experiments, but smaller. Pieces of all inputs arrive in turn, and
memory is a share of the inputs' bytes. Only rows are counted; no time is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.adaptive.join import StreamJoin
from millrace.datasets.adaptive_inputs import chain_inputs, star_inputs


def online_counts(
    inputs: int,
    *,
    algorithm: str = "miner",
    star: bool = False,
    memory: float = 0.1,
    rows: int = 3000,
    keys: int = 1000,
    skew: float = 1.0,
    shuffle: int | None = None,
    piece: int = 20,
    idle: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """Join a chain or a star of 2 to 4 inputs with a share of their bytes as memory; count results by phase.

    Parameters
    ----------
    piece
        Number of rows of an input that arrive together.
    idle
        Number of times to call ``join.idle`` after each piece; each call joins some rows that are on disk.
    """
    tables = (star_inputs if star else chain_inputs)(
        inputs, rows=rows, keys=keys, skew=skew, shuffle=shuffle, seed=seed
    )
    names = list(tables)
    columns = ["a"] * 3 if star else [f"a{number[1]}" for number in names[:-1]]
    on = [(f"{a}.{c}", f"{b}.{c}") for a, b, c in zip(names, names[1:], columns, strict=False)]
    budget = int(memory * sum(table.nbytes for table in tables.values()))
    join = StreamJoin(on=on, algorithm=algorithm, memory=budget, seed=seed)
    waiting = {name: table.combine_chunks().to_batches()[0] for name, table in tables.items()}
    at = 0
    while waiting:
        for name, batch in list(waiting.items()):
            for _ in join.push(name, batch.slice(at, piece)):
                pass
            if at + piece >= len(batch):
                del waiting[name]
                list(join.end(name))
            for _ in range(idle):
                list(join.idle())
        at += piece
    for _ in join.finish():
        pass
    m = join.metrics
    join.close()
    return {
        "inputs": inputs,
        "algorithm": algorithm,
        "memory": budget,
        "results": m.rows_out,
        "arriving": m.rows_arriving,
        "reactive": m.rows_reactive,
        "online": m.rows_online / max(1, m.rows_out),
        "flushes": m.flushes,
        "spilled": m.spilled_rows,
        "bytes_read": m.bytes_read,
    }


def run(
    *,
    inputs: Sequence[int] = (2, 3, 4),
    shares: Sequence[float] = (0.05, 0.1, 0.2),
    console: Console | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Measure the share of the result that comes out online, by number of inputs and memory; print and return it."""
    console = console or Console()
    found = [online_counts(count, memory=share, **options) | {"share": share} for count in inputs for share in shares]
    table = Table("inputs", "memory", "results", "arriving", "reactive", "online", "flushes", "rows spilled")
    for each in found:
        table.add_row(
            str(each["inputs"]),
            f"{each['share']:.0%}",
            f"{each['results']:,}",
            f"{each['arriving']:,}",
            f"{each['reactive']:,}",
            f"{each['online']:.1%}",
            f"{each['flushes']:,}",
            f"{each['spilled']:,}",
        )
    console.print(table)
    return found


if __name__ == "__main__":
    run()
