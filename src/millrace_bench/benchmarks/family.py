"""Compare all algorithms on this machine, without a disk model.

The rate is tuples per second of wall time after a warm-up; the stream is in memory beforehand.
"""

from __future__ import annotations

import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace.datasets import zipf_stream
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.shared import data

_BATCH = 50_000


def run(
    directory: Path,
    *,
    rows: int = 10_000_000,
    shares: tuple[float, ...] = (1, 5, 10),
    skews: tuple[float, ...] = (0.0, 0.5, 1.0),
    algorithms: tuple[str, ...] = tuple(ALGORITHMS),
    seconds: float = 2.0,
    warm_seconds: float = 4.0,
    tuples: int = 6_000_000,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure, print and return the service rates of all algorithms on this machine."""
    console = console or Console()
    store = indexed(directory, rows)
    points: list[dict[str, Any]] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("joining", total=len(shares) * len(skews) * len(algorithms))
        for skew in skews:
            batches = list(zipf_stream(rows, skew, batch_rows=_BATCH, batches=tuples // _BATCH, seed=11))
            for share in shares:
                for name in algorithms:
                    progress.update(task, description=f"skew {skew:g}, {share:g}%: {name}")
                    rate, hits = _rate(store, name, share, batches, warm_seconds, seconds)
                    points.append({"skew": skew, "share": share, "algorithm": name, "rate": rate, "hits": hits})
                    progress.advance(task)
    _print(console, points, rows)
    return {"rows": rows, "points": points}


def indexed(directory: Path, rows: int) -> MasterStore:
    """Return a store of the papers' master with unique keys and an index, made if it is missing."""
    store = data.master(directory, rows)
    return store if store.indexed else MasterStore.add_index(store.path)


def _rate(
    store: MasterStore, name: str, share: float, batches: list[pa.RecordBatch], warm: float, seconds: float
) -> tuple[float, float]:
    """Return tuples per second after a warm-up, and the share of them that the cache answered."""
    join = SemiStreamJoin(store, on="key", algorithm=name, memory=f"{share}%")
    feed = cycle(batches)
    began = time.perf_counter()
    while time.perf_counter() - began < warm:
        _push(join, next(feed))
    before, hits = join.metrics.tuples_in, join.metrics.cache_hits
    began = time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        _push(join, next(feed))
    done = join.metrics.tuples_in - before
    return done / taken, (join.metrics.cache_hits - hits) / max(1, done)


def _push(join: SemiStreamJoin, batch: pa.RecordBatch) -> None:
    for _ in join.push(batch):
        continue


def _print(console: Console, points: list[dict[str, Any]], rows: int) -> None:
    columns = sorted({(p["skew"], p["share"]) for p in points})
    table = Table(title=f"thousand tuples per second, {rows:,} master rows, this machine (share answered by the cache)")
    table.add_column("algorithm")
    for skew, share in columns:
        table.add_column(f"skew {skew:g}\n{share:g} %", justify="right")
    for name in dict.fromkeys(p["algorithm"] for p in points):
        mine = {(p["skew"], p["share"]): p for p in points if p["algorithm"] == name}
        cells = [mine[column] for column in columns]
        table.add_row(name, *(f"{p['rate'] / 1000:,.0f}" + (f" ({p['hits']:.0%})" if p["hits"] else "") for p in cells))
    console.print(table)
