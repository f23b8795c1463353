"""The cost model against the engine on this machine as it is, and not on a modelled disk.

A machine that does other things besides is now quick and now slow, by a factor of two within seconds where it is rented
in parts. So nothing is measured at one time only: the joins that unit costs are found with and the joins that are
predicted are all kept, settled, and looked at in turn, round after round, and the slowest quarter of every join's looks
does not count. What is compared is the model; what a machine does from one minute to the next is not in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress

from millrace.datasets import STREAM_SCHEMA, zipf_stream
from millrace.master.store import MasterStore
from millrace.semistream.calibrate.calibration import QUICKER, CalibrationBench
from millrace_bench.benchmarks import data
from millrace_bench.benchmarks.cost import (
    PERIODS,
    Setting,
    batch_rows,
    errors_of,
    join_of,
    predicted_and_measured,
    print_points,
    situation,
)

_LOOK = 0.2  # seconds
_LEAST_STEPS = 4
_STREAM = 300  # batches, again and again


def run(
    directory: Path,
    *,
    rows: int = 2_000_000,
    shares: Sequence[float] = (0.5, 1, 2, 5, 10),
    skews: Sequence[float] = (0.0, 1.0),
    algorithms: Sequence[str] = ("meshjoin", "hybridjoin", "sscj", "ssbj", "lookup"),
    rounds: int = 20,
    seed: int = 11,
    console: Console | None = None,
) -> dict[str, Any]:
    """Calibrate and measure in turn, then predict; print predicted beside measured."""
    console = console or Console()
    store = data.master(directory, rows)
    wanted = list(product(algorithms, skews, shares))
    streams = {skew: _stream(store, skew, seed) for skew in skews}
    with Progress(transient=True, console=console) as progress:
        task = progress.add_task("joins settle", total=len(wanted) + rounds)
        bench = CalibrationBench(store)
        watched = []
        for name, skew, share in wanted:
            watched.append(_Watched(store, Setting("none", name, skew), share, streams[skew]))
            progress.advance(task)
        for number in range(rounds):
            progress.update(task, description=f"looking at all of them, round {number + 1} of {rounds}")
            bench.measure()
            for join in watched:
                join.look()
            progress.advance(task)
    found = bench.found()
    console.print(f"unit costs\n{found.explain()}")
    points = [
        {
            **asdict(join.setting),
            "share": join.share,
            **predicted_and_measured(situation(store, join.setting, found), join.setting, join.measured()),
        }
        for join in watched
    ]
    errors = {name: errors_of(points, name) for name in ("rate_error", "c_loop_error")}
    print_points(console, f"{rows / 1e6:g} M master rows: this machine", points, [], errors)
    return {"rows": rows, "rounds": rounds, "points": points, "errors": errors}


def _stream(store: MasterStore, skew: float, seed: int) -> list[pa.RecordBatch]:
    return [*zipf_stream(store.rows, skew, batch_rows=batch_rows(store), batches=_STREAM, seed=seed)]


class _Look(NamedTuple):
    seconds: float
    tuples: int
    hits: int
    steps: float


class _Watched:
    """A join that has settled and is looked at now and then."""

    def __init__(self, store: MasterStore, setting: Setting, share: float, stream: list[pa.RecordBatch]) -> None:
        self.setting, self.share = setting, share
        self._join = join_of(store, setting, f"{share}%")[0]
        self._join.bind(STREAM_SCHEMA)
        self._feed = cycle(stream)
        self._least_steps = 0 if self._join.access.at_once else _LEAST_STEPS
        self._looks: list[_Look] = []
        while self._join.metrics.cycles < PERIODS[setting.algorithm][0]:
            self._push()

    def look(self) -> None:
        """From a step to a step, for a while."""
        hits, steps = self._join.metrics.cache_hits, self._join.metrics.steps
        enough, first = steps + self._least_steps, steps
        began = time.perf_counter()
        tuples = 0
        while True:
            batch = self._push()
            taken = time.perf_counter() - began
            tuples += batch
            before, steps = steps, self._join.metrics.steps
            if taken >= _LOOK and steps >= enough and (steps > before or not self._least_steps):
                break
        hits = self._join.metrics.cache_hits - hits
        self._looks.append(_Look(taken, tuples, hits, steps - first or tuples / batch))

    def measured(self) -> dict[str, float]:
        """Its step, rate and hits, of the quicker looks."""
        looks = sorted(self._looks, key=lambda look: look.seconds / math.sqrt(look.steps * look.tuples))
        looks = looks[: max(1, round(QUICKER * len(looks)))]
        seconds, tuples, hits, steps = (sum(values) for values in zip(*looks, strict=True))
        return {
            "rate": tuples / seconds,
            "c_loop": seconds / steps,
            "w": tuples / steps,
            "hit_share": hits / tuples,
            "memory": float(self._join.budget.total),
        }

    def _push(self) -> int:
        batch = next(self._feed)
        for _ in self._join.push(batch):
            continue
        return len(batch)
