"""All algorithms side by side: on this machine as it is, and on the device models of the papers.

On the machine, the rate is tuples per second of wall time after a warm-up, the stream already in memory. On a device
model it is tuples per second of device time, whole rows transferred, tuples always available: there the disk is the
bottleneck, as it was in the papers, and the result does not depend on the machine.
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

from millrace.bench import data
from millrace.datasets import zipf_stream
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin

_BATCH = 50_000
_WARM_ROOMS = 4


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
    """Service rates of all algorithms on this machine."""
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
    """The papers' master with unique keys and an index."""
    store = data.master(directory, rows)
    return store if store.indexed else MasterStore.add_index(store.path)


def _rate(
    store: MasterStore, name: str, share: float, batches: list[pa.RecordBatch], warm: float, seconds: float
) -> tuple[float, float]:
    """Tuples per second after a warm-up, and the share of them that the cache answered."""
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


# device models


def models(
    directory: Path,
    *,
    rows: int = 2_000_000,
    shares: tuple[float, ...] = (1, 10),
    disk: str = "hdd-2013",
    skew: float = 1.0,
    pages: tuple[int, ...] = (8_000, 32_000),
    cache_shares: tuple[float, ...] = (0.05, 0.15, 0.3),
    seed: int = 11,
    console: Console | None = None,
) -> dict[str, Any]:
    """Service rates of all algorithms on a modelled disk, each with its best page size and cache share of a sweep."""
    console = console or Console()
    store = indexed(directory, rows)
    names = [name for name, algorithm in ALGORITHMS.items() if not algorithm.at_once]
    found: list[dict[str, Any]] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("joining", total=len(names) * len(shares))
        for share in shares:
            for name in names:
                progress.update(task, description=f"{share:g}%: {name}")
                swept = [
                    {"share": share, "algorithm": name, **options}
                    | model_rate(store, name, f"{share}%", disk, skew, seed, **options)
                    for options in _variants(name, pages, cache_shares)
                ]
                found.append(max(swept, key=lambda point: float(point["rate"])))
                progress.advance(task)
    table = Table(
        title=f"{disk} model, {rows:,} rows, skew {skew:g}: tuples per second of device time, best of a sweep"
    )
    for column in ("memory", "algorithm", "rate", "hits", "b", "cache share"):
        table.add_column(column, justify="right")
    for point in found:
        b, cache = point.get("b"), point.get("cache_share")
        cells = (f"{point['rate']:,.0f}", f"{point['hits']:.0%}", f"{b:,}" if b else "", f"{cache:g}" if cache else "")
        table.add_row(f"{point['share']:g}%", str(point["algorithm"]), *cells)
    console.print(table)
    return {"rows": rows, "disk": disk, "skew": skew, "points": found}


def _variants(name: str, pages: tuple[int, ...], cache_shares: tuple[float, ...]) -> list[dict[str, Any]]:
    """The options an algorithm is tried with."""
    b: list[dict[str, Any]] = [{"b": page} for page in pages] if ALGORITHMS[name].paged else [{}]
    if "cache_share" not in ALGORITHMS[name].options:
        return b
    return [{**options, "cache_share": share} for options in b for share in cache_shares]


def model_rate(
    store: MasterStore, name: str, memory: str, disk: str, skew: float, seed: int, rooms: float = 6, **options: Any
) -> dict[str, Any]:
    """Tuples per second of device time, after a few rooms full of tuples have come and gone."""
    device = Device(disk, reads="rows")
    early = ALGORITHMS[name].paged  # others keep a tuple for a whole turn, as the papers do
    join = SemiStreamJoin(store, on="key", algorithm=name, memory=memory, device=device, leave_early=early, **options)
    mark: tuple[float, int, int] | None = None
    for batch in zipf_stream(store.rows, skew, batch_rows=2_000, seed=seed):
        _push(join, batch)
        m = join.metrics
        if mark is None and m.cycles >= _WARM_ROOMS:
            mark = device.clock.now(), m.tuples_in, m.cache_hits
        if m.cycles >= _WARM_ROOMS + rooms:
            break
    assert mark is not None
    seconds, tuples, hits = device.clock.now() - mark[0], m.tuples_in - mark[1], m.cache_hits - mark[2]
    return {"rate": tuples / max(seconds, 1e-9), "hits": hits / max(1, tuples)}
