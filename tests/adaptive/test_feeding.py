"""Joins fed by arrivals: silence is used, the budget holds rows that wait too, and whatever ends a run ends it cleanly."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.adaptive.algorithms import ALGORITHMS
from millrace.adaptive.arrivals import ScheduledArrivals
from millrace.adaptive.feeding import Costs
from millrace.adaptive.live import LiveArrivals
from millrace.adaptive.metrics import MOST_POINTS, PairMetrics
from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError, SourceError, SpillError
from millrace.datasets.adaptive import zipf_values
from millrace.datasets.arrival_times import exponential, steady, with_stalls
from millrace.testing.faults import Interrupting, failing, spill_room
from millrace.testing.oracle import assert_same_rows
from millrace.testing.pair_oracle import PairHow, equal_keys, oracle_pair

_LONG = 30
_LITTLE = 40_000


def table(rows: int, seed: int, name: str, keys: int = 60) -> pa.Table:
    values = zipf_values(rows, 0.5, high=keys, seed=seed)
    return pa.table({"k": values, name: np.arange(rows), f"{name}_text": [f"{name} {i:040}" for i in range(rows)]})


LEFT, RIGHT = table(500, 1, "l"), table(450, 2, "r")


def memory(algorithm: str) -> int:
    return 1_000_000 if algorithm == "shj" else _LITTLE


def scheduled(percent: float = 300, **options: float) -> ScheduledArrivals:
    times = (
        with_stalls(exponential(500, 0.001, seed=1), percent),
        with_stalls(exponential(450, 0.001, seed=2), percent),
    )
    return ScheduledArrivals({"left": (LEFT, times[0]), "right": (RIGHT, times[1])}, batch_rows=50, **options)


def joined(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches)


def truth(how: PairHow = "inner") -> pa.Table:
    return oracle_pair(LEFT, RIGHT, equal_keys("k"), how)


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    yield
    gc.collect()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("millrace-")] == []


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_scheduled_arrivals(algorithm: str) -> None:
    join = mr.StreamJoin(on="k", algorithm=algorithm, memory=memory(algorithm))
    assert_same_rows(joined(list(join.run(arrivals=scheduled()))), truth())
    m = join.metrics
    assert m.rows_out == truth().num_rows >= m.rows_online > 0 or algorithm == "pmj"
    assert (m.reactive_units > 0) == (algorithm in ("diner", "xjoin", "hmj", "rpj"))
    assert m.looks == m.reactive_units
    assert m.over_time[-1][1] == m.rows_out
    assert m.online_seconds is not None
    assert m.over_time[0][0] < m.online_seconds < m.over_time[-1][0] or algorithm == "shj"


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_live_arrivals(algorithm: str) -> None:
    join = mr.StreamJoin(on="k", algorithm=algorithm, memory=memory(algorithm), how="full", wait_threshold=0.001)
    inputs = {"left": iter(LEFT.to_batches(max_chunksize=40)), "right": lambda: RIGHT.to_batches(max_chunksize=30)}
    out = []
    for batch in join.run(**inputs):
        out.append(batch)
        assert join.nbytes <= join.budget.total
    assert_same_rows(joined(out), truth("full"))
    assert join.metrics.peak_bytes <= memory(algorithm)
    assert "input buffer" not in join.metrics.parts


def test_the_same_scheduled_run_twice() -> None:
    def once() -> tuple[pa.Table, dict[str, object]]:
        join = mr.StreamJoin(on="k", memory=_LITTLE)
        return joined(list(join.run(arrivals=scheduled()))), join.metrics.as_dict()

    assert once() == once()


def test_rows_that_wait_are_few_when_the_disk_is_left() -> None:
    """At most as many as may wait, and those that came while one block was joined."""
    join = mr.StreamJoin(on="k", memory=_LITTLE, max_new_arrivals=20)
    costs = Costs(read=0.004, write=0.0, row=1e-6, result=0.0)
    list(join.run(arrivals=scheduled(), costs=costs))
    m = join.metrics
    unit = (m.bytes_read and 1) * 20 * 0.004  # a chunk of 19 blocks, and an inner one
    assert m.reactive_units > 5
    assert 20 < m.most_waiting <= 20 + 2 * unit / 0.001 * 1.5
    assert 0 < m.mean_waiting <= m.most_waiting


@pytest.mark.parametrize(("algorithm", "few"), [("diner", False), ("xjoin", True)])
def test_who_hands_over_at_once(algorithm: str, few: bool) -> None:
    """One row comes in the middle of the silence: DINER goes on with the disk, XJoin takes it in."""
    rows = 400
    left, right = table(rows, 3, "l"), table(rows, 4, "r")
    times = steady(rows, 1e-4)
    late = [1.0, 1.0 + 1e-9]
    arrivals = ScheduledArrivals(
        {
            "left": (left, np.concatenate([times[:-2], late])),
            "right": (right, np.concatenate([times[:-2], [50.0, 50.0]])),
        }
    )
    join = mr.StreamJoin(on="k", algorithm=algorithm, memory=_LITTLE)
    waited = []
    costs = Costs(read=0.5)
    for _ in join.run(arrivals=arrivals, costs=costs):
        waited.append(arrivals.buffered)
    assert_same_rows(
        pa.table({"n": [join.metrics.rows_out]}), pa.table({"n": [len(oracle_pair(left, right, equal_keys("k")))]})
    )
    units_with_rows_waiting = join.metrics.mean_waiting * join.metrics.looks / 2
    assert (units_with_rows_waiting <= 1) == few
