"""Joins that were stopped, broken, or put back from damaged bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.errors import BudgetExceededError, ConfigError, StateError
from millrace.master.store import MasterStore
from millrace.rows.batch_builder import BATCH_BYTES
from millrace.semistream.join import SemiStreamJoin

BATCH = pa.record_batch({"a": [i % 50 for i in range(900)], "b": [i % 7 for i in range(900)]})


@pytest.fixture
def store(tmp_path: Path) -> MasterStore:
    table = pa.table({"id": list(range(40)) * 2, "text": [f"row {i}" for i in range(80)]})
    return MasterStore.build(table, tmp_path / "store", "id")


def _join(store: MasterStore, key: str = "a", memory: str = "200kB") -> SemiStreamJoin:
    return SemiStreamJoin(store, on={key: "id"}, algorithm="meshjoin", memory=memory, b=8, output_rows=50)


def _waiting(store: MasterStore) -> bytes:
    join = _join(store)
    list(join.push(BATCH))
    assert join.metrics.waiting
    return join.snapshot()


def test_a_damaged_snapshot_is_refused_wherever_it_was_damaged(store: MasterStore) -> None:
    state = _waiting(store)
    random = np.random.default_rng(3)
    for place in [0, 8, 9, 13, 40, len(state) - 1, *random.integers(0, len(state), 60).tolist()]:
        torn = bytearray(state)
        torn[place] ^= 1 << int(random.integers(8))
        with pytest.raises(StateError, match="restore: "):
            _join(store).restore(bytes(torn))
    for length in (0, 4, 20, len(state) - 1):
        with pytest.raises(StateError, match="restore: "):
            _join(store).restore(state[:length])
    with pytest.raises(StateError, match="restore: not a snapshot"):
        _join(store).restore(None)  # type: ignore[arg-type]


def test_a_snapshot_belongs_to_its_keys(store: MasterStore) -> None:
    with pytest.raises(StateError, match="inner on a; this one is meshjoin, inner on b"):
        _join(store, "b").restore(_waiting(store))


@pytest.mark.parametrize("algorithm", ["hybridjoin", "lookup", "ssbj"])
def test_a_snapshot_belongs_to_its_algorithm(store: MasterStore, algorithm: str) -> None:
    with pytest.raises(StateError, match=f"from another kind of join: meshjoin, .*this one is {algorithm}, "):
        SemiStreamJoin(store, on={"a": "id"}, algorithm=algorithm, memory="64kB").restore(_waiting(store))


def test_a_join_whose_restore_failed_does_not_go_on(store: MasterStore) -> None:
    small = _join(store, memory="8kB")
    with pytest.raises(BudgetExceededError, match="do not fit"):
        small.restore(_waiting(store))
    with pytest.raises(StateError, match="cannot go on: restore failed half-way"):
        list(small.finish())


def _ordered(store: MasterStore, memory: str = "60kB") -> SemiStreamJoin:
    return SemiStreamJoin(store, on={"a": "id"}, algorithm="meshjoin", memory=memory, b=8, ordered=True)


def test_a_damaged_snapshot_of_an_ordered_join_is_refused_wherever_it_was_damaged(store: MasterStore) -> None:
    join = _ordered(store)
    list(join.push(BATCH))
    assert join.metrics.waiting
    state = join.snapshot()
    random = np.random.default_rng(3)
    for place in [0, 8, 9, 13, 14, 40, len(state) - 1, *random.integers(0, len(state), 40).tolist()]:
        torn = bytearray(state)
        torn[place] ^= 1 << int(random.integers(8))
        with pytest.raises(StateError, match="restore: "):
            _ordered(store).restore(bytes(torn))
    for length in (0, 4, 9, 13, 20, len(state) // 2, len(state) - 1):
        with pytest.raises(StateError, match="restore: "):
            _ordered(store).restore(state[:length])
    with pytest.raises(StateError, match="restore: not a snapshot"):
        _ordered(store).restore(None)  # type: ignore[arg-type]
    other = SemiStreamJoin(store, on={"b": "id"}, algorithm="meshjoin", memory="60kB", b=8, ordered=True)
    with pytest.raises(StateError, match="inner on a; this one is meshjoin, inner on b"):
        other.restore(state)
    with pytest.raises(BudgetExceededError, match="do not fit"):
        (small := _ordered(store, "7kB")).restore(state)
    with pytest.raises(StateError, match="cannot go on: restore failed half-way"):
        list(small.finish())


@pytest.mark.parametrize("ordered", [False, True])
def test_a_full_join_is_restored_into_the_memory_it_had(store: MasterStore, ordered: bool) -> None:
    batch = pa.record_batch({"a": [i % 50 for i in range(600)], "t": ["x" * (40 * (i % 7)) for i in range(600)]})
    for memory in (7_487, 9_000, 12_000):
        arguments: dict[str, Any] = {"algorithm": "meshjoin", "memory": memory, "b": 8, "w": 3, "ordered": ordered}
        first, again = (SemiStreamJoin(store, {"a": "id"}, "left", **arguments) for _ in range(2))
        got = [row for at in range(0, 600, 30) for row in first.push(batch.slice(at, 30))]
        again.restore(first.snapshot())
        again.check_invariants()
        got += list(again.finish())
        assert sum(map(len, got)) == 480 * 2 + 120, f"memory={memory}"


def test_every_lasting_count_goes_on_after_a_restore(store: MasterStore) -> None:
    first, again = (SemiStreamJoin(store, {"a": "id"}, algorithm="ssbj", memory="14kB", b=8) for _ in range(2))
    for at in range(0, len(BATCH), 100):
        list(first.push(BATCH.slice(at, 100)))
    again.restore(first.snapshot())
    before, after = first.metrics, again.metrics
    names = ["tuples_in", "rows_out", "batches_out", "matched", "unmatched", "cache_hits", "removals", "probes"]
    for name in [*names, "most_waiting", "waiting", "steps", "cycles"]:
        assert getattr(before, name) == getattr(after, name) > 0, name


def test_a_join_that_has_made_a_step_is_not_restored_into(store: MasterStore) -> None:
    state = _waiting(store)
    begun = _join(store)
    begun.bind(BATCH.schema)
    list(begun.step())
    with pytest.raises(StateError, match="restore: this join has already begun"):
        begun.restore(state)
    bound = _join(store)
    bound.bind(BATCH.schema)
    bound.restore(state)
    assert sum(map(len, bound.finish())) > 0


def test_a_join_that_was_left_in_the_middle_says_so(store: MasterStore) -> None:
    join = _join(store)
    for _ in join.run([BATCH]):
        break
    with pytest.raises(StateError, match="the output of a call was not read to its end"):
        list(join.finish())


def test_batches_of_large_nested_values_are_bounded_too(tmp_path: Path) -> None:
    rows = 300
    nested = pa.array([np.arange(20_000)] * rows, pa.list_(pa.int64()))
    store = MasterStore.build(pa.table({"id": [1] * rows, "values": nested}), tmp_path / "store", "id", page_rows=50)
    join = SemiStreamJoin(store, on={"a": "id"}, memory="20MB")
    seen = 0
    for batch in join.run([pa.record_batch({"a": [1]})]):
        seen += len(batch)
        assert batch.nbytes < 1.5 * BATCH_BYTES
    assert seen == rows


def test_a_compact_batch_is_opened_piece_by_piece(store: MasterStore) -> None:
    count = 2_300_000
    keys = pa.array(np.full(count, 99))
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array(["x" * 1000]))
    join = SemiStreamJoin(store, on={"a": "id"}, how="semi", memory="1MB")
    for _ in join.push(pa.record_batch({"a": keys, "text": text})):
        raise AssertionError("nobody has a match")
    assert join.metrics.tuples_in == count


def test_a_later_batch_may_differ_in_nullability_but_not_in_order(store: MasterStore) -> None:
    join = _join(store)
    list(join.push(BATCH))
    strict = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64(), nullable=False)])
    list(join.push(pa.RecordBatch.from_arrays(BATCH.columns, schema=strict)))
    with pytest.raises(TypeError, match="columns in another order: b, a"):
        list(join.push(BATCH.select(["b", "a"])))


@pytest.mark.parametrize("memory", ["9999999TB", 2**70, 10**400])
def test_absurd_budgets(store: MasterStore, memory: str | int) -> None:
    with pytest.raises(ConfigError, match="memory: expected at most '65536TiB'; got "):
        SemiStreamJoin(store, on={"a": "id"}, memory=memory)


def test_a_budget_the_machine_cannot_map(store: MasterStore) -> None:
    with pytest.raises(BudgetExceededError, match="cannot reserve"):
        _join(store, memory="60000TB").bind(BATCH.schema)


@pytest.mark.parametrize("how", ["semi", "anti"])
@pytest.mark.parametrize("algorithm", ["ssbj", "meshjoin"])
def test_rings_that_are_dismissed_while_they_are_given_out(tmp_path: Path, how: str, algorithm: str) -> None:
    """Repeated keys side by side in the master, and more pairs in a load than are handled at a time."""
    store = MasterStore.build(pa.table({"k": [i // 2 for i in range(200)]}), tmp_path / "store", "k")
    join = SemiStreamJoin(store, on="k", how=how, algorithm=algorithm, memory="20kB")
    out = sum(len(batch) for batch in join.run([pa.record_batch({"k": [i % 150 for i in range(450)]})]))
    assert out == {"semi": 300, "anti": 150}[how]
    join.check_invariants()


def test_a_call_whose_batches_are_not_read_is_noticed(store: MasterStore) -> None:
    join = _join(store)
    join.push(BATCH)
    with pytest.raises(StateError, match="have not been read to their end"):
        join.finish()


def test_streams_in_other_wrappings(store: MasterStore) -> None:
    for stream in (BATCH, pa.Table.from_batches([BATCH]), pa.RecordBatchReader.from_batches(BATCH.schema, [BATCH])):
        assert sum(len(batch) for batch in _join(store).run(stream)) == 1440
    with pytest.raises(TypeError, match="run: expected record batches"):
        list(_join(store).run(7))


def test_composite_keys_are_put_in_order(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"], "v": [10, 20]})
    store = MasterStore.build(table, tmp_path / "store", ["a", "b"])
    for on in ({"q": "b", "p": "a"}, {"p": "a", "q": "b"}):
        join = SemiStreamJoin(store, on=on, memory="1MB")
        [out] = join.run([pa.record_batch({"p": [2], "q": ["y"]})])
        assert out.to_pylist() == [{"p": 2, "q": "y", "v": 20}]
