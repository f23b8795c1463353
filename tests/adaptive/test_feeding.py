"""Joins fed by arrivals: silence is used, the budget holds rows that wait, and whatever ends a run ends it cleanly."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.adaptive.adaptive_metrics import MOST_POINTS, AdaptiveMetrics
from millrace.adaptive.arrivals.events import ScheduledArrivals
from millrace.adaptive.arrivals.feeding import Costs
from millrace.adaptive.arrivals.live import LiveArrivals
from millrace.adaptive.pair.pair_algorithms import ALGORITHMS
from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError, SourceError, SpillError
from millrace.datasets.adaptive_inputs import zipf_values
from millrace.datasets.arrival_times import exponential, steady, with_stalls
from millrace.testing.faults import failing, spill_room
from millrace.testing.oracle import assert_same_rows
from millrace.testing.pair_oracle import PairHow, equal_keys, oracle_pair

pytestmark = pytest.mark.sampled(4)

_LONG = 30
_LITTLE = 40_000


def table(rows: int, seed: int, name: str, keys: int = 60) -> pa.Table:
    values = zipf_values(rows, 0.5, high=keys, seed=seed)
    return pa.table({"k": values, name: np.arange(rows), f"{name}_text": [f"{name} {i:040}" for i in range(rows)]})


LEFT, RIGHT = table(500, 1, "l"), table(450, 2, "r")


def memory(algorithm: str) -> int:
    return 1_000_000 if algorithm == "shj" else _LITTLE


def scheduled() -> ScheduledArrivals:
    times = [with_stalls(exponential(rows, 0.001, seed=rows), 300) for rows in (500, 450)]
    return ScheduledArrivals({"left": (LEFT, times[0]), "right": (RIGHT, times[1])}, batch_rows=50)


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


@pytest.mark.thorough
def test_the_same_scheduled_run_twice() -> None:
    def once() -> tuple[pa.Table, dict[str, object]]:
        join = mr.StreamJoin(on="k", memory=_LITTLE)
        return joined(list(join.run(arrivals=scheduled()))), join.metrics.as_dict()

    assert once() == once()


def test_rows_that_wait_are_few_when_the_disk_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block is joined when more wait than may, so only those are more that came while one was."""
    join, arrivals = mr.StreamJoin(on="k", memory=_LITTLE, max_new_arrivals=20), scheduled()
    waiting: list[int] = []
    idle = join.idle

    def watched() -> Iterator[pa.RecordBatch]:
        waiting.append(arrivals.buffered)
        return idle()

    monkeypatch.setattr(join, "idle", watched)
    assert_same_rows(joined(list(join.run(arrivals=arrivals, costs=Costs(read=0.004)))), truth())
    m = join.metrics
    assert len(waiting) == m.reactive_units > 5
    assert max(waiting) <= 20 < m.most_waiting < 500
    assert 0 < m.mean_waiting < m.most_waiting


@pytest.mark.parametrize(("algorithm", "at_once"), [("diner", False), ("xjoin", True)])
def test_who_hands_over_at_once(algorithm: str, at_once: bool) -> None:
    """Two rows come in the middle of each silence: DINER goes on with the disk, XJoin takes them in."""
    left, right = table(400, 3, "l"), table(400, 4, "r")
    times = steady(398, 1e-4)
    inputs = {"left": (left, [*times, 1.0, 1.0]), "right": (right, [*times, 50.0, 50.0])}
    join = mr.StreamJoin(on="k", algorithm=algorithm, memory=_LITTLE)
    out = list(join.run(arrivals=ScheduledArrivals(inputs), costs=Costs(read=0.5)))
    assert_same_rows(joined(out), oracle_pair(left, right, equal_keys("k")))
    looks_at_waiting_rows = join.metrics.mean_waiting * join.metrics.looks / 2
    assert (round(looks_at_waiting_rows) <= 2) == at_once


def test_results_grow_in_silence_and_before_the_end() -> None:
    """The sources go on only after rows have come out that were found on disk."""
    found = threading.Event()

    def halting(whole: pa.Table) -> Iterator[pa.RecordBatch]:
        batches = whole.to_batches(max_chunksize=50)
        yield from batches[:-1]
        assert found.wait(_LONG), "nothing came out in the silence"
        yield batches[-1]

    join = mr.StreamJoin(on="k", memory=_LITTLE, wait_threshold=0.005)
    out = []
    for batch in join.run(left=lambda: halting(LEFT), right=lambda: halting(RIGHT)):
        out.append(batch)
        if join.metrics.reactive_units:
            found.set()
    assert_same_rows(joined(out), truth())
    assert join.metrics.rows_reactive > 0


def test_a_source_that_waits_for_room_ends_the_silence() -> None:
    """The buffer holds fewer rows than may wait: no unit of work begins while a source cannot go on."""
    asked = threading.Event()

    def halting() -> Iterator[pa.RecordBatch]:
        batches = LEFT.to_batches(max_chunksize=20)
        yield from batches[:-10]
        assert asked.wait(_LONG)
        yield from batches[-10:]

    join = mr.StreamJoin(on="k", memory=_LITTLE, max_new_arrivals=10**6)
    arrivals = LiveArrivals({"left": halting, "right": RIGHT}, buffer=5000, budget=join.budget, wait=0.005)
    out, units, left_in = [], 0, 0
    for batch in join.run(arrivals=arrivals):
        out.append(batch)
        if join.metrics.reactive_units and not asked.is_set():
            asked.set()
            deadline = time.monotonic() + _LONG
            while not arrivals.held_up:
                assert time.monotonic() < deadline
            units, left_in = join.metrics.reactive_units, join.metrics.left_in
        elif units and join.metrics.left_in == left_in:
            assert join.metrics.reactive_units == units
    assert units
    assert_same_rows(joined(out), truth())


@pytest.mark.parametrize("algorithm", ["diner", "rpj", "shj"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_source_that_dies(algorithm: str, how: PairHow) -> None:
    """All pairs of what came, then the error; whether others have a partner is not known."""
    join = mr.StreamJoin(on="k", algorithm=algorithm, memory=memory(algorithm), how=how)
    out: list[pa.RecordBatch] = []
    broken = failing(LEFT.to_batches(max_chunksize=50), after=4)
    with pytest.raises(SourceError, match="input 'left' failed after 200 tuples in 4 batches") as raised:
        out.extend(join.run(left=broken, right=RIGHT.to_batches(max_chunksize=50)))
    assert (raised.value.source, raised.value.tuples, raised.value.batches) == ("left", 200, 4)
    assert join.metrics.left_in == 200
    came = RIGHT.slice(0, join.metrics.right_in)
    expected = oracle_pair(LEFT.slice(0, 200), came, equal_keys("k"))
    assert sum(map(len, out)) == len(expected)
    if out:
        assert_same_rows(joined(out), expected)


class Damaged:
    """A dataset with a damaged file."""

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return failing(LEFT.to_batches(max_chunksize=50), after=2)


def test_an_input_at_rest_that_breaks_off() -> None:
    join = mr.StreamJoin(on="k", memory=_LITTLE)
    out: list[pa.RecordBatch] = []
    with pytest.raises(SourceError, match="input 'left' failed after 100 tuples in 2 batches: "):
        out.extend(join.run(left=Damaged(), right=RIGHT.to_batches(max_chunksize=50)))
    assert_same_rows(joined(out), oracle_pair(LEFT.slice(0, 100), RIGHT.slice(0, 100), equal_keys("k")))


def test_the_reader_goes_away(tmp_path: Path) -> None:
    join = mr.StreamJoin(on="k", memory=_LITTLE, spill=tmp_path)
    running = join.run(left=iter(LEFT.to_batches(max_chunksize=50)), right=iter(RIGHT.to_batches(max_chunksize=50)))
    while not join.metrics.spilled_rows:
        next(running)
    assert list(tmp_path.iterdir())
    running.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
    assert join.metrics.parts.get("input buffer", 0) == 0


def test_a_full_disk(tmp_path: Path) -> None:
    join = mr.StreamJoin(on="k", memory=_LITTLE, spill=tmp_path)
    out: list[pa.RecordBatch] = []
    with spill_room(20_000), pytest.raises(SpillError, match="No space left on device"):
        out.extend(join.run(left=LEFT.to_batches(max_chunksize=50), right=RIGHT.to_batches(max_chunksize=50)))
    came = oracle_pair(LEFT.slice(0, join.metrics.left_in), RIGHT.slice(0, join.metrics.right_in), equal_keys("k"))
    pairs = {(row["l"], row["r"]) for batch in out for row in batch.to_pylist()}
    assert len(pairs) == sum(map(len, out)) == join.metrics.rows_out > 0
    assert pairs <= set(zip(came["l"].to_pylist(), came["r"].to_pylist(), strict=True))
    assert list(tmp_path.iterdir()) == []


_INTERRUPTED = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has it ignored in the background
import millrace as mr, pyarrow as pa
class Source:
    def __init__(self, name):
        self.name, self.stopped = name, threading.Event()
    def cancel(self):
        self.stopped.set()
    def __iter__(self):
        for first in range(0, 3000, 50):
            yield pa.record_batch({"k": [i % 500 for i in range(first, first + 50)], self.name: ["x" * 50] * 50})
        self.stopped.wait()  # and nothing ever after
join = mr.StreamJoin(on="k", memory=60_000, spill=sys.argv[1])
told = False
try:
    for batch in join.run(left=Source("l"), right=Source("r")):
        if join.metrics.reactive_units and not told:
            told = True
            print("on disk", flush=True)
except KeyboardInterrupt:
    print([t.name for t in threading.enumerate() if t.name.startswith("millrace-")], flush=True)
    raise
"""


def test_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "on disk\n"
        assert list(tmp_path.iterdir())
        child.send_signal(signal.SIGINT)
        threads, said = child.communicate(timeout=_LONG)
    assert child.returncode == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said
    assert threads in ("[]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_budget_holds_the_input_buffer() -> None:
    seen: list[int] = []
    join = mr.StreamJoin(on="k", memory=_LITTLE)
    for _ in join.run(left=iter(LEFT.to_batches(max_chunksize=40)), right=iter(RIGHT.to_batches(max_chunksize=30))):
        seen.append(join.metrics.parts.get("input buffer", 0))
        join.budget.check_invariants()
    assert max(seen) == _LITTLE // 16
    assert join.metrics.peak_bytes <= _LITTLE


def test_the_least_budget_with_an_input_buffer() -> None:
    """What the error says is enough, is enough."""
    small = pa.table({"k": [1, 2, 3] * 20, "l": range(60)}), pa.table({"k": [2, 3, 4] * 20, "r": range(60)})

    def run(nbytes: int) -> list[pa.RecordBatch]:
        join = mr.StreamJoin(on="k", memory=nbytes)
        join.bind(left=small[0].schema, right=small[1].schema)
        return list(join.run(left=iter(small[0].to_batches()), right=iter(small[1].to_batches())))

    least = 1000
    for _ in range(6):  # without columns, with one input's, with both, with a buffer
        try:
            out = run(least)
            break
        except BudgetTooSmallError as error:
            least = error.minimum
    assert_same_rows(joined(out), oracle_pair(*small, equal_keys("k")))


def test_rows_taken_in_before_make_room() -> None:
    join = mr.StreamJoin(on="k", memory=_LITTLE)
    out = [*join.push("left", LEFT.to_batches()[0].slice(0, 300)), *join.push("right", RIGHT.to_batches()[0])]
    out += join.run(left=iter(LEFT.slice(300).to_batches()), right=RIGHT.slice(450))
    assert_same_rows(joined(out), truth())


def test_points_over_time_are_few() -> None:
    metrics = AdaptiveMetrics()
    for number in range(1, 10_001):
        metrics.rows_out = number
        metrics.note(number / 10)
    points = metrics.over_time
    assert points[0] == (0.1, 1)
    assert points[-1] == (1000.0, 10_000)
    assert MOST_POINTS // 4 < len(points) <= MOST_POINTS
    assert points == sorted(points)
    assert max(b[1] - a[1] for a, b in pairwise(points)) <= 2 * metrics.every


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict, ConfigError, "run: expected the inputs left, right; got none"),
        (lambda: {"left": []}, ConfigError, "run: expected the inputs left, right; got left"),
        (
            lambda: {"left": None, "right": []},
            SchemaError,
            "left: expected record batches, a table, a reader or a source; got None",
        ),
        (lambda: {"left": [], "right": 5}, SchemaError, "right: expected record batches"),
        (lambda: {"left": [], "arrivals": scheduled()}, ConfigError, "or arrivals=; got both"),
        (lambda: {"arrivals": ScheduledArrivals({"a": (LEFT, steady(500))})}, ConfigError, "left and right; got a"),
        (
            lambda: {"arrivals": scheduled(), "costs": Costs(read=-1)},
            ConfigError,
            "costs: read: expected a finite number of seconds of at least 0; got -1",
        ),
    ],
)
def test_arguments(arguments: Callable[[], dict[str, Any]], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(mr.StreamJoin(on="k").run(**arguments()))


def test_no_wait_at_all() -> None:
    with pytest.raises(ConfigError, match="wait_threshold: expected a finite number of seconds above 0; got 0"):
        mr.StreamJoin(on="k", wait_threshold=0)
