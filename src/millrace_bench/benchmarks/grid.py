"""Compare ``algorithm="auto"`` with fixed algorithms over a grid of disks, skews, memory, unique keys and indexes.

On a modelled disk the rate is tuples per second of device time. The warm-up takes two tuples for each master row, and
the measurement one tuple for each master row; loads transfer whole rows. Without a modelled disk the rate is tuples per
second of wall time after a warm-up, and all joins are measured in turn. ``auto`` starts without knowledge of the
stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, product
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace.core.errors import ConfigError
from millrace.datasets import STREAM_SCHEMA, zipf_stream
from millrace.master.device import Device
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.shared import data

FIXED = (
    "meshjoin", "r-meshjoin", "cmeshjoin", "ssbj", "hybridjoin", "hybridjoin-pq", "cachejoin", "sscj", "ssij", "lookup",
)  # fmt: skip
"""Names of the algorithms that ``auto`` is compared with; each is the best in some setting."""
WANTED, LEAST = 0.8, 0.6
"""Shares of the best algorithm's rate: ``auto`` should reach ``WANTED`` in nearly all settings, ``LEAST`` in all."""

_BATCH = 5_000
_WARM, _LOOKED_AT, _MOST = 2, 1, 20  # tuples per master row: to warm up, to measure, and at most in all
_LOOKS = 8  # measurements of each join without a disk model


@dataclass(frozen=True)
class GridSetting:
    """A setting of the grid: the disk, the master, the stream's skew, and the memory."""

    disk: str
    rows: int
    unique: bool
    indexed: bool
    skew: float
    share: float
    """Memory in percent of the master."""


def settings(disks: Sequence[str], rows: int, skews: Sequence[float], shares: Sequence[float]) -> Iterator[GridSetting]:
    """Yield all combinations of disks, skews and memory, with unique and repeated keys, with and without an index."""
    for disk, unique, indexed, skew, share in product(disks, (True, False), (True, False), skews, shares):
        yield GridSetting(disk, rows, unique, indexed, skew, share)


def run(
    directory: Path,
    *,
    rows: int = 50_000,
    disks: Sequence[str] = ("hdd-2013", "ssd-2016"),
    skews: Sequence[float] = (0.0, 0.5, 1.0),
    shares: Sequence[float] = (3, 10, 40),
    machine_rows: int = 2_000_000,
    machine_skews: Sequence[float] = (0.0, 1.0),
    machine_shares: Sequence[float] = (1, 10),
    seconds: float = 1.0,
    algorithms: Sequence[str] = FIXED,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure every fixed algorithm and ``auto`` in every setting; print and return the rates."""
    console = console or Console()
    places = [*settings(disks, rows, skews, shares)]
    places += settings(("none",), machine_rows, machine_skews, machine_shares) if machine_rows else []
    points: list[dict[str, Any]] = []
    with Progress(transient=True, console=console) as progress:
        task = progress.add_task("joining", total=len(places))
        for place in places:
            progress.update(task, description=f"{place.disk}, skew {place.skew:g}, {place.share:g}%")
            points.append(_point(directory, place, algorithms, seconds))
            progress.advance(task)
    good = sum(p["of_best"] >= WANTED for p in points)
    least = min(p["of_best"] for p in points)
    _print(console, points)
    console.print(
        f"{len(points)} settings: auto has {WANTED:g} of the best fixed choice or more in {good / len(points):.0%}, "
        f"at least {least:.2f}"
    )
    return {"points": points, "good": good / len(points), "least": least}


def _point(directory: Path, place: GridSetting, algorithms: Sequence[str], seconds: float) -> dict[str, Any]:
    store = data.master(directory, place.rows, unique=place.unique, index=place.indexed)
    names = [name for name in algorithms if place.indexed or not ALGORITHMS[name].needs_index]
    joins: dict[str, SemiStreamJoin] = {}
    for name in (*names, "auto"):
        device = Device(place.disk, reads="rows" if place.disk != "none" else "columns")
        try:
            join = SemiStreamJoin(store, on="key", algorithm=name, memory=f"{place.share}%", device=device)
            join.bind(STREAM_SCHEMA)
        except ConfigError:  # does not support repeated keys, or needs more memory
            if name == "auto":
                raise
            continue
        joins[name] = join
    if place.disk == "none":
        rates = _in_turn(joins, place, seconds)
    else:
        rates = {name: _modelled(join, place) for name, join in joins.items()}
    auto, chosen = rates.pop("auto"), joins["auto"].algorithm.name
    best = max(rates, key=lambda name: rates[name])
    share = _share(auto, rates[best])
    return {
        **asdict(place), "fixed": rates, "best": best, "chosen": chosen, "auto": auto, "of_best": share,
    }  # fmt: skip


def _modelled(join: SemiStreamJoin, place: GridSetting) -> float:
    """Measure a join on a modelled disk; return tuples per second of device time, or infinity if the join uses none."""
    clock = join.device.clock
    mark: tuple[int, float] | None = None
    for batch in zipf_stream(place.rows, place.skew, batch_rows=_BATCH, batches=_MOST * place.rows // _BATCH, seed=5):
        _push(join, batch)
        tuples, now = join.metrics.tuples_in, clock.now()
        if mark is None:
            mark = (tuples, now) if tuples >= _WARM * place.rows and now else None
        elif tuples >= mark[0] + _LOOKED_AT * place.rows and now > mark[1]:
            return (tuples - mark[0]) / (now - mark[1])
    return float("inf")


def _in_turn(joins: dict[str, SemiStreamJoin], place: GridSetting, seconds: float) -> dict[str, float]:
    """Measure joins in turn; return each one's mean tuples per second, without the slowest quarter of its samples."""
    batch = max(500, min(20_000, place.rows // 100))
    stream = [*zipf_stream(place.rows, place.skew, batch_rows=batch, batches=100, seed=5)]
    feeds = {name: cycle(stream) for name in joins}
    for name, join in joins.items():
        _look(join, feeds[name], 1.5 * seconds)
    looks: dict[str, list[float]] = {name: [] for name in joins}
    for _ in range(_LOOKS):
        for name, join in joins.items():
            looks[name].append(_look(join, feeds[name], seconds / _LOOKS))
    return {name: mean(sorted(rates)[_LOOKS // 4 :]) for name, rates in looks.items()}


def _look(join: SemiStreamJoin, feed: Iterator[pa.RecordBatch], seconds: float) -> float:
    before = join.metrics.tuples_in
    began = time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        _push(join, next(feed))
    return (join.metrics.tuples_in - before) / taken


def _share(rate: float, of: float) -> float:
    return 1.0 if rate == of else rate / of


def _push(join: SemiStreamJoin, batch: pa.RecordBatch) -> None:
    for _ in join.push(batch):
        continue


def _print(console: Console, points: list[dict[str, Any]]) -> None:
    table = Table(title="auto against the best fixed choice, tuples/s")
    for column in ("disk", "rows", "keys", "index", "skew", "memory", "best", "", "auto", "", "of the best"):
        table.add_column(column, justify="right")
    for p in points:
        table.add_row(
            p["disk"], f"{p['rows']:,}", "unique" if p["unique"] else "repeat", "yes" if p["indexed"] else "no",
            f"{p['skew']:g}", f"{p['share']:g}%", p["best"], f"{p['fixed'][p['best']]:,.0f}", p["chosen"],
            f"{p['auto']:,.0f}", f"{p['of_best']:.2f}",
        )  # fmt: skip
    console.print(table)
