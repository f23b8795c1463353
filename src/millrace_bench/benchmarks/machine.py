"""Compare the cost model with the engine on this machine, without a disk model.

The speed of a machine varies with its other work; on a virtual machine it varies by a factor of two within seconds. So
no join is measured at one time only: the joins that give the unit costs and the joins that are predicted are all kept
open in their steady state, and are sampled in turn, round after round. The slowest quarter of each join's samples is
ignored. The errors then show how good the model is, not how the machine's speed changes from minute to minute.
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
from millrace_bench.benchmarks.cost import (
    PERIODS,
    CostSetting,
    batch_rows,
    errors_of,
    join_of,
    join_workload,
    predicted_and_measured,
    print_points,
)
from millrace_bench.shared import data

_SAMPLE_SECONDS = 0.2  # the least time of a sample
_LEAST_STEPS = 4
_STREAM = 300  # batches of a stream, which then starts over


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
    """Calibrate the cost model and sample joins in turn; print the model's predictions beside the measurements."""
    console = console or Console()
    store = data.master(directory, rows)
    wanted = list(product(algorithms, skews, shares))
    streams = {skew: _stream(store, skew, seed) for skew in skews}
    with Progress(transient=True, console=console) as progress:
        task = progress.add_task("joins settle", total=len(wanted) + rounds)
        bench = CalibrationBench(store)
        sampled: list[_SampledJoin] = []
        for name, skew, share in wanted:
            sampled.append(_SampledJoin(store, CostSetting("none", name, skew), share, streams[skew]))
            progress.advance(task)
        for number in range(rounds):
            progress.update(task, description=f"sampling, round {number + 1} of {rounds}")
            bench.measure()
            for join in sampled:
                join.sample()
            progress.advance(task)
    found = bench.found()
    console.print(f"unit costs\n{found.explain()}")
    points = [
        {
            **asdict(join.setting),
            "share": join.share,
            **predicted_and_measured(join_workload(store, join.setting, found), join.setting, join.measured()),
        }
        for join in sampled
    ]
    errors = {name: errors_of(points, name) for name in ("rate_error", "c_loop_error")}
    print_points(console, f"{rows / 1e6:g} M master rows: this machine", points, [], errors)
    return {"rows": rows, "rounds": rounds, "points": points, "errors": errors}


def _stream(store: MasterStore, skew: float, seed: int) -> list[pa.RecordBatch]:
    return [*zipf_stream(store.rows, skew, batch_rows=batch_rows(store), batches=_STREAM, seed=seed)]


class _Sample(NamedTuple):
    seconds: float
    tuples: int
    hits: int
    steps: float


class _SampledJoin:
    """A join in its steady state that stays open and is sampled once in every round."""

    def __init__(self, store: MasterStore, setting: CostSetting, share: float, stream: list[pa.RecordBatch]) -> None:
        self.setting, self.share = setting, share
        self._join = join_of(store, setting, f"{share}%")[0]
        self._join.bind(STREAM_SCHEMA)
        self._feed = cycle(stream)
        self._least_steps = 0 if self._join.access.at_once else _LEAST_STEPS
        self._samples: list[_Sample] = []
        while self._join.metrics.cycles < PERIODS[setting.algorithm][0]:
            self._push()

    def sample(self) -> None:
        """Add a sample of at least 0.2 seconds, from the end of one step to the end of a later one."""
        hits, steps = self._join.metrics.cache_hits, self._join.metrics.steps
        enough, first = steps + self._least_steps, steps
        began = time.perf_counter()
        tuples = 0
        while True:
            batch = self._push()
            taken = time.perf_counter() - began
            tuples += batch
            before, steps = steps, self._join.metrics.steps
            if taken >= _SAMPLE_SECONDS and steps >= enough and (steps > before or not self._least_steps):
                break
        hits = self._join.metrics.cache_hits - hits
        self._samples.append(_Sample(taken, tuples, hits, steps - first or tuples / batch))

    def measured(self) -> dict[str, float]:
        """Return rate, seconds per step, tuples per step, share of cache hits, and budget in bytes, by name.

        The slowest quarter of the samples is ignored.
        """
        samples = sorted(self._samples, key=lambda one: one.seconds / math.sqrt(one.steps * one.tuples))
        samples = samples[: max(1, round(QUICKER * len(samples)))]
        seconds, tuples, hits, steps = (sum(values) for values in zip(*samples, strict=True))
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
