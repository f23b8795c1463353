"""Measure how well caches follow a stream whose hot keys move.

After every million tuples all keys change places in the ranking by frequency. The share of tuples that the cache
answers is measured over short windows and compared with the share that the same algorithm reaches when no key moves.
Only counts are measured, not time.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace.datasets import zipf_stream
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.benchmarks.family import indexed

POINTS = 5.0
"""A hit rate has recovered when it is at most this many percentage points below that of a stream without moves."""


def run(
    directory: Path,
    *,
    rows: int = 500_000,
    memory: str = "2%",
    period: int = 1_000_000,
    moves: int = 3,
    window: int = 50_000,
    skew: float = 1.0,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure hit rates of all algorithms with a cache, with and without moves of the hot keys."""
    console = console or Console()
    store = indexed(directory, rows)
    found: list[dict[str, Any]] = []
    names = [name for name, algorithm in ALGORITHMS.items() if algorithm.caches]
    with Progress(transient=True) as progress:
        task = progress.add_task("joining", total=2 * len(names))
        for name in names:
            series = []
            for drifts in (False, True):
                progress.update(task, description=f"{name}, {'moving' if drifts else 'still'}")
                series.append(_hit_rates(store, name, memory, skew, period, moves + 1, window, drifts))
                progress.advance(task)
            found.append({"algorithm": name, "still": series[0], "moving": series[1]})
    result = {"rows": rows, "memory": memory, "period": period, "window": window, "skew": skew, "series": found}
    for entry in found:
        entry |= recovery(entry["still"], entry["moving"], period // window, window)
    _print(console, result)
    return result


def _hit_rates(
    store: MasterStore, name: str, memory: str, skew: float, period: int, periods: int, window: int, drifts: bool
) -> list[float]:
    """Return the percentage of each window's tuples that the cache answered."""
    join = SemiStreamJoin(store, on="key", algorithm=name, memory=memory)
    seeds = range(21, 21 + periods) if drifts else [21]
    batches = (period if drifts else period * periods) // window
    parts = [zipf_stream(store.rows, skew, batch_rows=window, batches=batches, seed=seed) for seed in seeds]
    rates, before = [], 0
    for batch in chain.from_iterable(parts):
        for _ in join.push(batch):
            continue
        rates.append(100 * (join.metrics.cache_hits - before) / len(batch))
        before = join.metrics.cache_hits
    return rates


def recovery(still: list[float], moving: list[float], windows: int, window: int) -> dict[str, Any]:
    """Return the hit rate without moves, the lowest hit rate just before a move, and the number of tuples to recover.

    ``still`` and ``moving`` are hit rates in percent over windows of ``window`` tuples; hot keys move after every
    ``windows`` windows. The number of tuples is that of the slowest recovery. It is None if a hit rate had not
    recovered before the next move.
    """
    stationary = sum(still[-4:]) / 4
    after = [moving[at : at + windows] for at in range(windows, len(moving), windows)]
    reached = [sum(rates[-4:]) / 4 for rates in after]
    near = [next((i for i, rate in enumerate(rates) if rate >= stationary - POINTS), None) for rates in after]
    return {
        "stationary": stationary,
        "recovered": min(reached),
        "tuples": None if None in near else max((i + 1) * window for i in near if i is not None),
    }


def _print(console: Console, result: dict[str, Any]) -> None:
    table = Table(
        title=f"Hit rate, {result['rows']:,} rows, {result['memory']}, skew {result['skew']:g}; hot keys move every "
        f"{result['period']:,} tuples"
    )
    for column in ("algorithm", "still", "least before a move", f"tuples until within {POINTS:g} points"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for entry in result["series"]:
        tuples = "never" if entry["tuples"] is None else f"{entry['tuples']:,}"
        table.add_row(entry["algorithm"], f"{entry['stationary']:.1f} %", f"{entry['recovered']:.1f} %", tuples)
    console.print(table)
