"""The stateful part of carry without Spark: the same calls on a state of dictionaries, many cases in no time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from millrace.core.errors import StateError
from millrace.core.spec import JoinSpec
from millrace.datasets import synthetic_master, zipf_stream
from millrace.master.store import MasterStore
from millrace.semistream.join import SemiStreamJoin
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.tasks.carry_operator import CarryOperator
from millrace.spark.transport.batch_bytes import to_blob
from millrace.testing.oracle import assert_same_rows, oracle_join
from millrace.worker.row_files import read_rows

pytestmark = pytest.mark.sampled(4)

ROWS = 4_000


class FakeState:
    """Value and map state; what Spark keeps for one group."""

    def __init__(self) -> None:
        self.value: Any = None
        self.map: dict[Any, Any] = {}

    def exists(self) -> bool:
        return self.value is not None

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value

    def getValue(self, key: Any) -> Any:  # noqa: N802
        return self.map.get(key)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self.map[key] = value

    def containsKey(self, key: Any) -> bool:  # noqa: N802
        return key in self.map

    def removeKey(self, key: Any) -> None:  # noqa: N802
        del self.map[key]


class FakeHandle:
    def __init__(self) -> None:
        self.states: dict[str, FakeState] = {}
        self.timers: set[int] = set()

    def getValueState(self, name: str, schema: str) -> FakeState:  # noqa: N802
        return self.states.setdefault(name, FakeState())

    def getMapState(self, name: str, key: str, value: str) -> FakeState:  # noqa: N802
        return self.states.setdefault(name, FakeState())

    def registerTimer(self, at: int) -> None:  # noqa: N802
        self.timers.add(at)


class FakeTimer:
    def __init__(self, now: int) -> None:
        self.now = now

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802
        return self.now


def waiting(handle: FakeHandle) -> list[str]:
    """Chunks of tuples in the state."""
    return [what for (what,) in handle.states["kept"].map if what.startswith("rows")]


def rows_of(frames: Iterator[pd.DataFrame]) -> list[pa.RecordBatch]:
    return list(read_rows(pa.RecordBatch.from_pandas(frame) for frame in frames))


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("how", ["left", "semi", "anti"])
@pytest.mark.parametrize(
    ("memory", "turns", "b"), [(40_000, 1, 300), (120_000, 1, ROWS), (120_000, 4, 500), (2_000_000, 7, 500)]
)
def test_every_batch_by_a_new_worker(tmp_path: Path, unique: bool, how: str, memory: int, turns: int, b: int) -> None:
    """Also when the room was full, the wheel has turned far, and stands where the last tuples entered."""
    store = MasterStore.build(synthetic_master(ROWS, unique=unique), tmp_path / "store", key="key")
    sizes = [1_500, 1, 3_000, 700, 0, 2_000, 900, 2_500, 30]
    source = iter(zipf_stream(ROWS + 500, 0.8, batch_rows=sum(sizes), seed=5))
    [whole] = islice(source, 1)
    plan = _plan(store, whole.schema, how, memory, b, str(tmp_path / "soft"))
    handle = FakeHandle()
    got: list[pa.RecordBatch] = []
    at = now = 0
    for size in sizes:
        now += 10
        processor = CarryOperator(plan, turns)
        processor.init(handle)
        due = {timer for timer in handle.timers if timer <= now}
        if size:
            frame = pd.DataFrame({"blob": [to_blob(whole.slice(at, size))]})
            got += rows_of(processor.handleInputRows((0,), iter([frame]), FakeTimer(now)))
            at += size
        for timer in due:
            handle.timers.discard(timer)
            got += rows_of(processor.handleExpiredTimer((0,), FakeTimer(now), None))
    while handle.timers:
        now += 10
        due, handle.timers = handle.timers, set()
        processor = CarryOperator(plan, turns)
        processor.init(handle)
        for _ in due:
            got += rows_of(processor.handleExpiredTimer((0,), FakeTimer(now), None))
        assert now < 10_000, "the waiting room does not empty"
    assert not waiting(handle), "nobody's rows are in the state store in the end"
    copies = [path.read_bytes() for path in (tmp_path / "soft").rglob("*.copy")]
    cache = [value[0] for key, value in handle.states["kept"].map.items() if key == ("cache",)]
    assert copies == cache, "nor are copies of them on the disk"
    master = store.to_table()
    assert_same_rows(got, oracle_join(pa.Table.from_batches([whole]), master, JoinSpec.of("key", how)))


@pytest.mark.parametrize("memory", [60_000, 2_000_000])
@pytest.mark.parametrize("how", ["left", "anti"])
def test_a_micro_batch_run_again_gives_the_same_rows_and_the_same_state(tmp_path: Path, how: str, memory: int) -> None:
    """Spark runs one again if it fell after the output was taken; its pieces may then come in another order."""
    store = MasterStore.build(synthetic_master(ROWS, unique=False), tmp_path / "store", key="key")
    source = iter(zipf_stream(ROWS + 500, 1.0, batch_rows=2_400, seed=6))
    first = next(source)
    plan = _plan(store, first.schema, how, memory, 300, str(tmp_path / "soft"))
    handle = FakeHandle()
    hits = 0
    for number, batch in enumerate([first, *islice(source, 7)]):
        blobs = [to_blob(batch.slice(at, 800)) for at in range(0, 2_400, 800)]
        before = deepcopy(handle)
        runs = []
        for order in (blobs, blobs[1:] + blobs[:1], blobs[::-1]):
            handle = deepcopy(before)
            processor = CarryOperator(plan, 4)
            processor.init(handle)
            frame = pd.DataFrame({"blob": order})
            out = rows_of(processor.handleInputRows((0,), iter([frame]), FakeTimer(10 * number)))
            runs.append((out, {name: state.map for name, state in handle.states.items()}))
        for out, state in runs[1:]:
            assert_same_rows(out, pa.Table.from_batches(runs[0][0], plan.sent_schema))
            assert state == runs[0][1]
        hits += len(waiting(handle)) > 0
    assert hits, "somebody waits"
    assert ("cache",) in handle.states["kept"].map, "something is learned"


def test_a_checkpoint_goes_on_with_an_index_and_not_with_another_algorithm(tmp_path: Path) -> None:
    store = MasterStore.build(synthetic_master(ROWS), tmp_path / "store", key="key", index=False)
    source = iter(zipf_stream(ROWS, 1.0, batch_rows=2_000, seed=6))
    first, second = islice(source, 2)
    plan = _plan(store, first.schema, "left", 60_000, 300, str(tmp_path / "soft"))
    handle = FakeHandle()

    def turned(plan: EnrichPlan, batch: pa.RecordBatch, now: int) -> list[pa.RecordBatch]:
        processor = CarryOperator(plan, 4)
        processor.init(handle)
        frame = pd.DataFrame({"blob": [to_blob(batch)]})
        return rows_of(processor.handleInputRows((0,), iter([frame]), FakeTimer(now)))

    got = turned(plan, first, 10)
    assert waiting(handle), "somebody waits"
    MasterStore.add_index(store.path)
    with pytest.raises(StateError, match=r"tuples that wait with ssbj, but the query now runs meshjoin\. Use"):
        turned(replace(plan, algorithm="meshjoin", options={}), second, 20)
    got += turned(plan, second, 20)
    assert sum(map(len, got)) > 2_000, "those of the first batch are answered by the second"
    now = 20
    while handle.timers:
        now += 10
        assert now < 1_000, "the waiting room does not empty"
        due, handle.timers = handle.timers, set()
        for _ in due:
            processor = CarryOperator(plan, 4)
            processor.init(handle)
            got += rows_of(processor.handleExpiredTimer((0,), FakeTimer(now), None))
    came = pa.Table.from_batches([first, second])
    assert_same_rows(got, oracle_join(came, store.to_table(), JoinSpec.of("key", "left")))


@pytest.mark.parametrize("turns", [3, 7])
def test_input_and_a_timer_in_one_micro_batch_turn_the_wheel_once(tmp_path: Path, turns: int) -> None:
    """To turn it is to read the master: twice takes twice the time, and gives out rows of one micro-batch in two."""
    store = MasterStore.build(synthetic_master(ROWS), tmp_path / "store", key="key", index=False)
    source = iter(zipf_stream(ROWS, 0.5, batch_rows=300, seed=6))
    batches = [*islice(source, 4)]
    plan = _plan(store, batches[0].schema, "left", 200_000, 100, str(tmp_path / "soft"))
    handle = FakeHandle()

    def at_work() -> CarryOperator:
        processor = CarryOperator(plan, turns)
        processor.init(handle)
        return processor

    def turned() -> int:
        line, _, _ = handle.states["kept"].map[("head",)][0].partition(b"\n")
        return int(json.loads(line)["progress"]["turned"])

    share = -(-ROWS // turns)
    now, before = 0, 0
    for batch in batches:
        now += 10
        due = {at for at in handle.timers if at <= now}
        frame = pd.DataFrame({"blob": [to_blob(batch)]})
        rows_of(at_work().handleInputRows((0,), iter([frame]), FakeTimer(now)))
        assert share <= turned() - before < share + 100, "pages are read whole"
        before = turned()
        assert bool(due) == (batch is not batches[0])
        for _ in due:
            state = deepcopy(handle)
            assert [*at_work().handleExpiredTimer((0,), FakeTimer(now), None)] == [], "nor are there metrics"
            assert handle.states["kept"].map == state.states["kept"].map
            assert handle.timers == state.timers
        handle.timers -= due
    assert waiting(handle)
    while waiting(handle):
        [now] = handle.timers  # no input comes, and the timer goes off on time
        handle.timers = set()
        before = turned()
        rows_of(at_work().handleExpiredTimer((0,), FakeTimer(now), None))
        assert turned() > before
    assert not handle.timers


def _plan(store: MasterStore, schema: pa.Schema, how: str, memory: int, b: int, scratch: str) -> EnrichPlan:
    sent = SemiStreamJoin(store, "key", how, memory=memory, main_memory=False).bind(schema)
    return EnrichPlan(
        path=str(store.path),
        snapshot=store.manifest.snapshot,
        shards=1,
        on={"key": "key"},
        key_types=("bigint",),
        how=how,
        algorithm="ssbj",
        memory=memory,
        columns=None,
        suffix=None,
        options={"main_memory": False, "b": b},
        stream=schema.serialize().to_pybytes(),
        sent=sent.serialize().to_pybytes(),
        scratch=scratch,
    )


def test_state_of_another_layout_is_refused(tmp_path: Path) -> None:
    store = MasterStore.build(synthetic_master(ROWS), tmp_path / "store", key="key")
    [batch] = islice(zipf_stream(ROWS, 0.8, batch_rows=500, seed=5), 1)
    plan = _plan(store, batch.schema, "left", 60_000, 300, str(tmp_path / "soft"))
    handle = FakeHandle()
    processor = CarryOperator(plan, 4)
    processor.init(handle)
    frame = pd.DataFrame({"blob": [to_blob(batch)]})
    rows_of(processor.handleInputRows((0,), iter([frame]), FakeTimer(10)))
    kept = handle.states["kept"].map
    kept[("head",)] = (kept[("head",)][0].replace(b'"format": 1, ', b""),)
    with pytest.raises(StateError, match="made by another version of millrace"):
        rows_of(processor.handleInputRows((0,), iter([frame]), FakeTimer(20)))
