"""Joins of several inputs that are fed by arrivals live as those of two do: silence, failures, and clean ends."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.adaptive.arrivals.events import ScheduledArrivals
from millrace.adaptive.arrivals.feeding import Costs, arrivals_of
from millrace.adaptive.arrivals.live import LiveArrivals
from millrace.core.errors import (
    BudgetExceededError,
    BudgetTooSmallError,
    ConfigError,
    SchemaError,
    SourceError,
    SpillError,
    StateError,
)
from millrace.datasets.arrival_times import exponential, with_stalls
from millrace.testing.faults import failing, spill_room
from millrace.testing.pair_oracle import Equal, oracle_multi

pytestmark = pytest.mark.sampled(4)

_LONG = 30
_LITTLE = 60_000
CHAIN: list[Any] = [("a.x", "b.x"), ("b.y", "c.y")]
ON = {"miner": CHAIN, "mjoin": [("a.x", "b.x"), ("b.x", "c.x")]}


def table(name: str, columns: str, rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    keys = {column: rng.integers(0, 30, rows) for column in columns}
    return pa.table({**keys, name: range(rows), f"{name}_text": [f"{name} {i:040}" for i in range(rows)]})


TABLES = {
    "a": table("a_row", "x", 160, 1),
    "b": table("b_row", "xy", 150, 2),
    "c": table("c_row", "xy", 140, 3),
}


def batches(name: str, rows: int = 20) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = TABLES[name].to_batches(max_chunksize=rows)
    return found


def live(last: int = 0) -> dict[str, Any]:
    """Iterators over the batches of all inputs, or over the last so many."""
    return {name: iter(batches(name)[-last:]) for name in TABLES}


def numbers(out: list[pa.RecordBatch]) -> Counter[tuple[int, ...]]:
    """Combinations by the numbers of their rows."""
    columns = ["a_row", "b_row", "c_row"]
    return Counter(row for batch in out for row in zip(*(batch[name].to_pylist() for name in columns), strict=True))


def truth(algorithm: str = "miner", **rows: int) -> Counter[tuple[int, ...]]:
    """Combinations of all rows, or of the first so many of some inputs."""
    tables = {name: each.slice(0, rows.get(name, len(each))) for name, each in TABLES.items()}
    links = [Equal(*condition) for condition in ON[algorithm]]
    found = oracle_multi(tables, links, {f"{name}_row": f"{name}.{name}_row" for name in tables})
    return numbers(found.to_batches())


def fresh(algorithm: str = "miner", **options: Any) -> mr.StreamJoin:
    return mr.StreamJoin(**{"on": ON[algorithm], "algorithm": algorithm, "memory": _LITTLE, **options})


def scheduled() -> ScheduledArrivals:
    inputs = {}
    for seed, (name, each) in enumerate(TABLES.items()):
        inputs[name] = (each, with_stalls(exponential(len(each), 0.001, seed=seed), 400))
    return ScheduledArrivals(inputs, batch_rows=20)


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    yield
    gc.collect()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("millrace-")] == []


@pytest.mark.parametrize("algorithm", list(ON))
def test_live_sources(algorithm: str, tmp_path: Path) -> None:
    join = fresh(algorithm, spill=tmp_path, wait_threshold=0.001)
    out: list[pa.RecordBatch] = []
    seen: list[int] = []
    for batch in join.run(a=iter(batches("a")), b=lambda: batches("b", 30), c=TABLES["c"]):
        out.append(batch)
        assert join.nbytes <= _LITTLE
        seen.append(join.metrics.parts.get("input buffer", 0))
    assert numbers(out) == truth(algorithm)
    m = join.metrics
    assert m.spilled_rows
    assert max(seen) == _LITTLE // 16
    assert "input buffer" not in m.parts
    assert m.rows_in == {"a": 160, "b": 150, "c": 140}
    assert m.online_seconds is not None
    assert m.over_time[-1][1] == m.rows_out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algorithm", list(ON))
def test_scheduled_arrivals(algorithm: str) -> None:
    def once() -> tuple[Counter[tuple[int, ...]], dict[str, Any]]:
        join = fresh(algorithm)
        return numbers(list(join.run(arrivals=scheduled()))), join.metrics.as_dict()

    found, told = once()
    assert found == truth(algorithm)
    assert (told["reactive_units"] > 0) == (algorithm == "miner")
    assert told["looks"] == told["reactive_units"]
    assert once() == (found, told)


def test_one_input_stalls_and_the_silence_is_used() -> None:
    """The other inputs have ended; the third goes on only after blocks on disk have been joined."""
    found = threading.Event()

    def halting() -> Iterator[pa.RecordBatch]:
        whole = batches("c")
        yield from whole[:-1]
        assert found.wait(_LONG), "nothing was done in the silence"
        yield whole[-1]

    join = fresh(wait_threshold=0.005)
    out: list[pa.RecordBatch] = []
    for batch in join.run(a=TABLES["a"], b=TABLES["b"], c=halting):
        out.append(batch)
        if join.metrics.rows_reactive or join.metrics.reactive_units > 1:
            found.set()
    assert found.is_set()
    assert numbers(out) == truth()
    assert join.metrics.rows_reactive > 0


def test_rows_that_wait_are_few_when_the_disk_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block is joined when more wait than may, so only those are more that came while one was."""
    join, arrivals = fresh(max_new_arrivals=5, memory=45_000), scheduled()
    waiting: list[int] = []
    idle = join.idle

    def watched() -> Iterator[pa.RecordBatch]:
        waiting.append(arrivals.buffered)
        return idle()

    monkeypatch.setattr(join, "idle", watched)
    assert numbers(list(join.run(arrivals=arrivals, costs=Costs(read=0.004)))) == truth()
    assert len(waiting) == join.metrics.reactive_units > 5
    assert max(waiting) <= 5 < join.metrics.most_waiting


def test_the_wait_is_that_of_the_sources() -> None:
    join = fresh(wait_threshold=0.7)
    arrivals = arrivals_of(join, live())
    assert isinstance(arrivals, LiveArrivals)
    assert arrivals.wait == 0.7
    arrivals.close()
    with pytest.raises(ConfigError, match="wait_threshold: expected a finite number of seconds above 0; got 0"):
        fresh(wait_threshold=0)
    with pytest.raises(ConfigError, match="max_new_arrivals: expected a whole number of at least 1; got 0"):
        fresh(max_new_arrivals=0)


@pytest.mark.parametrize("algorithm", list(ON))
def test_a_source_that_dies(algorithm: str, tmp_path: Path) -> None:
    """All combinations of what came, then an error that says how far it got."""
    join = fresh(algorithm, spill=tmp_path)
    out: list[pa.RecordBatch] = []
    with pytest.raises(SourceError, match="input 'b' failed after 60 tuples in 3 batches") as raised:
        out.extend(join.run(a=iter(batches("a")), b=failing(batches("b"), after=3), c=batches("c")))
    assert (raised.value.source, raised.value.tuples, raised.value.batches) == ("b", 60, 3)
    came = join.metrics.rows_in
    assert came["b"] == 60
    assert numbers(out) == truth(algorithm, **came)
    assert list(tmp_path.iterdir()) == []


def test_an_input_at_rest_that_breaks_off() -> None:
    class Damaged:
        def to_batches(self) -> Iterator[pa.RecordBatch]:
            return failing(batches("c"), after=2)

    join = fresh()
    out: list[pa.RecordBatch] = []
    with pytest.raises(SourceError, match="input 'c' failed after 40 tuples in 2 batches"):
        out.extend(join.run(a=batches("a"), b=batches("b"), c=Damaged()))
    assert numbers(out) == truth(a=60, b=60, c=40)


@pytest.mark.parametrize("algorithm", list(ON))
def test_abandon(algorithm: str, tmp_path: Path) -> None:
    join = fresh(algorithm, spill=tmp_path)
    out: list[pa.RecordBatch] = []
    for at in range(6):
        for name in TABLES:
            out += join.push(name, batches(name)[at])
    assert join.metrics.spilled_rows
    out += join.abandon()
    assert numbers(out) == truth(algorithm, a=120, b=120, c=120)
    assert join.metrics.in_memory == join.metrics.on_disk == 0
    for call in (join.finish, join.abandon, join.idle):
        with pytest.raises(StateError, match="the join has ended already"):
            call()
    assert list(tmp_path.iterdir())
    join.close()
    assert list(tmp_path.iterdir()) == []


def test_the_reader_goes_away(tmp_path: Path) -> None:
    join = fresh(spill=tmp_path)
    running = join.run(**live())
    while not join.metrics.spilled_rows:
        next(running)
    assert list(tmp_path.iterdir())
    running.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
    assert join.metrics.parts.get("input buffer", 0) == 0


def test_a_full_disk(tmp_path: Path) -> None:
    join = fresh(spill=tmp_path)
    out: list[pa.RecordBatch] = []
    with spill_room(10_000), pytest.raises(SpillError, match="No space left on device"):
        out.extend(join.run(a=batches("a"), b=batches("b"), c=batches("c")))
    found = numbers(out)
    assert sum(found.values()) == join.metrics.rows_out > 0
    assert found <= truth()
    assert list(tmp_path.iterdir()) == []


def test_a_budget_too_small_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(BudgetTooSmallError, match="too little for miner of 3 inputs"):
        fresh(memory=2000, spill=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algorithm", list(ON))
def test_the_least_budget_with_an_input_buffer(algorithm: str) -> None:
    """What the error says is enough, is enough."""
    small = {name: each.select(each.column_names[:-1]).slice(0, 50) for name, each in TABLES.items()}

    def run(nbytes: int) -> list[pa.RecordBatch]:
        join = fresh(algorithm, memory=nbytes)
        join.bind(**{name: each.schema for name, each in small.items()})
        return list(join.run(**{name: iter(each.to_batches()) for name, each in small.items()}))

    least = 1000
    for _ in range(8):  # without columns, with those of each input, with a buffer
        try:
            out = run(least)
            break
        except BudgetTooSmallError as error:
            least = error.minimum
    assert numbers(out) == truth(algorithm, a=50, b=50, c=50)


def test_rows_taken_in_before_make_room() -> None:
    join = fresh()
    out: list[pa.RecordBatch] = []
    for name in TABLES:
        for batch in batches(name)[:-2]:
            out += join.push(name, batch)
    out += join.run(**live(2))
    assert numbers(out) == truth()


def test_nobody_goes_on_after_rows_had_no_room() -> None:
    join = fresh(memory=30_000)
    long = pa.record_batch({"x": [1], "text": ["x" * 10**6]})
    with pytest.raises(BudgetExceededError, match=r"a: a row of 1\.0 MB"):
        list(join.push("a", long))
    with pytest.raises(StateError, match="ran out of memory"):
        join.finish()


def test_columns_that_do_not_fit_are_forgotten() -> None:
    """One condition of the input takes its columns, the other does not: another schema may still come."""
    join = fresh()
    join.bind(c=pa.schema([("y", pa.int64())]))
    with pytest.raises(SchemaError, match=r"on b\.y = c\.y: .*cast one of them"):
        join.bind(b=pa.schema([("x", pa.string()), ("y", pa.string())]))
    schema = join.bind(a=pa.schema([("x", pa.int64())]), b=pa.schema([("x", pa.int64()), ("y", pa.int64())]))
    assert schema is not None
    assert [(field.name, field.type) for field in schema] == [("x", pa.int64()), ("y", pa.int64())]


def test_names() -> None:
    with pytest.raises(ConfigError, match="bind: this join has the inputs a, b and c; got 'd'"):
        fresh().bind(d=TABLES["a"].schema)
    with pytest.raises(ConfigError, match="run: this join has the inputs a, b and c; got 'd'"):
        list(fresh().run(**TABLES, d=[]))
    with pytest.raises(ConfigError, match="expected the inputs a, b and c, or arrivals=; got both"):
        list(fresh().run(**TABLES, arrivals=scheduled()))
    with pytest.raises(ConfigError, match="arrivals: expected inputs named left and right; got a, b, c"):
        list(mr.StreamJoin(on="x").run(arrivals=scheduled()))
    with pytest.raises(SchemaError, match="c: expected record batches, a table, a reader or a source; got 5"):
        list(fresh().run(**{**TABLES, "c": 5}))
    with pytest.raises(ConfigError, match="an input cannot be called 'costs'"):
        mr.StreamJoin(on=[("a.x", "costs.x")])


@pytest.mark.parametrize(
    ("on", "came"), [(CHAIN, "0 a, 0 b and 0 c rows have arrived"), ("x", "0 left and 0 right rows have arrived")]
)
def test_what_it_explains_stands_in_columns(on: Any, came: str) -> None:
    join = mr.StreamJoin(on=on, memory=_LITTLE)
    join.budget.reserve("input buffer", 1000)
    plan, condition, rows, *parts = join.explain().splitlines()
    assert plan == f"{join.algorithm.name}: {join.algorithm.summary}"
    assert condition == f"  {join.condition}, memory 60.0 kB"
    assert rows.startswith(f"  {came}; ")
    assert any(part.startswith("  input buffer ") for part in parts)
    assert len({part.index("B") for part in parts}) == 1
