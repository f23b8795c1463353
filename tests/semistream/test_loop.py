"""What the loop does with its memory, and which tuples it drops, whatever the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.core.errors import BudgetExceededError, BudgetTooSmallError, ConfigError, StateError
from millrace.datasets import zipf_stream
from millrace.rows.batch_builder import BATCH_BYTES
from millrace.semistream.access.cyclic import Cyclic
from millrace.semistream.algorithms import Algorithm
from millrace.semistream.cache.cache_policy import NoCache

ROWS = 5_000
MEMORY = 100_000
COLD = 4_321
"""A key that no cache knows."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    keys = np.random.default_rng(3).permutation(ROWS)
    return mr.MasterStore.build(pa.table({"key": keys, "value": keys * 2}), tmp_path_factory.mktemp("s") / "s", "key")


def tuples(keys: Sequence[int] | np.ndarray[Any, Any], text: str = "") -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(keys, pa.int64()), "text": pa.array([text] * len(keys), pa.string())})


def emptied(join: mr.SemiStreamJoin, most: int = 2_000) -> None:
    """Take steps until no tuple waits; what the waiting room had is not given back, as it is by ``finish``."""
    for _ in range(most):
        if not join.metrics.waiting:
            return
        list(join.step())
    raise AssertionError(f"{join.metrics.waiting} tuples wait after {most} steps")


def warm(store: mr.MasterStore, algorithm: str, ordered: bool, **options: Any) -> mr.SemiStreamJoin:
    """Return a join of which the cache has taken most of the memory; no tuple waits."""
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory=MEMORY, ordered=ordered, **options)
    for batch in zipf_stream(ROWS, 1.0, batch_rows=500, batches=12, seed=7):
        keys = batch.column("key").to_numpy()
        list(join.push(tuples(keys[keys != COLD])))
    emptied(join)
    return join


@pytest.mark.parametrize(
    ("algorithm", "options", "ordered"),
    [
        ("sscj", {"cache_share": 0.7, "threshold": 1}, False),
        ("ssij", {"cache_share": 0.7, "b": 20}, False),
        ("ssbj", {"b": 500, "switching_factor": 0.2}, False),
        ("cmeshjoin", {"b": 500, "cache_share": 0.7, "threshold": 1}, True),
        ("ordered", {}, True),
    ],
)
def test_a_tuple_that_only_fits_without_the_cache_is_joined(
    store: mr.MasterStore, algorithm: str, options: dict[str, Any], ordered: bool
) -> None:
    join = warm(store, algorithm, ordered, **options)
    parts = join.metrics.parts
    cached = parts["cache"]
    assert cached > 0.05 * MEMORY
    beside = sum(nbytes for part, nbytes in parts.items() if part not in ("cache", "waiting", "order", "found rows"))
    wide = MEMORY - beside - cached // 2
    out = [row for batch in join.push(tuples([COLD], "x" * wide)) for row in batch.to_pylist()]
    join.check_invariants()
    assert join.metrics.parts["cache"] < cached // 2
    m = join.metrics
    assert m.admitted_keys - m.evicted_keys == (m.cached_rows if algorithm == "ssij" else m.cached_keys)
    out += [row for batch in join.finish() for row in batch.to_pylist()]
    assert [(row["key"], len(row["text"]), row["value"]) for row in out] == [(COLD, wide, 2 * COLD)]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_wide_tuple_takes_the_place_of_narrow_ones_that_have_left(store: mr.MasterStore, ordered: bool) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory=MEMORY, b=500, ordered=ordered)
    list(join.push(tuples(np.arange(600))))
    emptied(join)
    held = sum(join.metrics.parts.get(part, 0) for part in ("waiting", "order"))
    assert held > 0.2 * MEMORY, "no cycle has begun in which it is given back"
    wide = join.budget.available + held // 2
    out = [*join.push(tuples([7], "x" * wide)), *join.finish()]
    assert [len(text) for batch in out for text in batch.column("text").to_pylist()] == [wide]
    with pytest.raises(BudgetExceededError, match="does not fit"):
        list(mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory=MEMORY).push(tuples([7], "x" * MEMORY)))


@pytest.mark.parametrize("ordered", [False, True])
def test_what_a_burst_of_tuples_took_is_free_again_two_turns_later(store: mr.MasterStore, ordered: bool) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory=MEMORY, b=500, ordered=ordered)
    list(join.push(tuples(np.arange(600))))
    burst = join.metrics.parts
    emptied(join)
    for _ in range(2 * join.k):
        list(join.step())
    parts = join.metrics.parts
    for part in ("waiting", "order") if ordered else ("waiting",):
        assert parts[part] < burst[part] / 20, f"{part}: memory that no tuple needs"
    join.check_invariants()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_after_the_end_no_memory_is_held_for_tuples(
    store: mr.MasterStore, ordered: bool, repeated: bool, tmp_path: Path
) -> None:
    if repeated:
        table = pa.table({"key": [key for key in range(300) for _ in range(4)], "value": range(1_200)})
        store = mr.MasterStore.build(table, tmp_path / "s", "key")
    join = mr.SemiStreamJoin(store, "key", "left", algorithm="meshjoin", memory=MEMORY, b=100, ordered=ordered)
    join.bind(tuples([1]).schema)
    at_rest = join.metrics.parts
    got = sum(map(len, join.push(tuples(np.arange(300), "some text"))))
    got += sum(map(len, join.finish()))
    assert got == (1_200 if repeated else 300)
    parts = join.metrics.parts
    for part in ("waiting", "order", "found rows"):
        assert parts.get(part) == at_rest.get(part), f"{part}: an empty join holds what it did not begin with"


@pytest.mark.parametrize("by", ["random", "key"])
def test_with_hits_spared_the_same_tuples_are_kept_however_the_stream_is_cut(store: mr.MasterStore, by: str) -> None:
    """No tuple is a hit without a cache, so the tuples kept are also those that are kept when hits are not spared."""
    keys = np.random.default_rng(1).integers(0, ROWS, 2_000)
    stream = pa.table({"key": keys, "seq": np.arange(len(keys))})

    def kept(rows: int, spare_hits: bool) -> list[int]:
        shed = mr.Shedding(by, keep=0.3, spare_hits=spare_hits, seed=5)
        join = mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory="200kB", shed=shed)
        got = [row for batch in stream.to_batches(rows) for row in join.push(batch)] + list(join.finish())
        return sorted(seq for batch in got for seq in batch.column("seq").to_pylist())

    one_by_one = kept(1, True)
    assert 400 < len(one_by_one) < 800
    assert one_by_one == kept(37, True) == kept(2_000, True) == kept(37, False)


def test_with_hits_spared_a_hit_in_the_batch_does_not_change_which_misses_are_kept(tmp_path: Path) -> None:
    """The same tuples wait whether the hits between them are there or not: each is kept by its place in the stream."""
    master = mr.MasterStore.build(pa.table({"key": range(100), "value": range(100)}), tmp_path / "s", "key")
    keys = np.where(np.arange(900) % 3 == 0, -1, np.arange(900) % 100)
    nulls = pa.array(keys, mask=keys < 0)  # a null key never waits, as a hit does not

    def kept(column: pa.Array, rows: int) -> list[int]:
        shed = mr.Shedding("random", keep=0.4, spare_hits=True, seed=2)
        join = mr.SemiStreamJoin(master, "key", algorithm="meshjoin", memory="60kB", shed=shed)
        stream = pa.table({"key": column, "seq": np.arange(900)})
        got = [row for batch in stream.to_batches(rows) for row in join.push(batch)] + list(join.finish())
        return sorted(seq for batch in got for seq in batch.column("seq").to_pylist())

    without_hits = [seq for seq in kept(pa.array(np.arange(900) % 100), 900) if seq % 3]
    assert len(without_hits) > 150
    assert kept(nulls, 900) == without_hits
    assert kept(nulls, 50) == without_hits


@pytest.mark.parametrize("ordered", [False, True])
def test_a_tuple_whose_only_row_does_not_meet_the_condition_leaves_with_it(
    store: mr.MasterStore, ordered: bool
) -> None:
    where = mr.compare("least", "<", "value")
    join = mr.SemiStreamJoin(
        store, "key", "left", where=where, algorithm="meshjoin", memory=MEMORY, b=500, ordered=ordered
    )
    key = int(store.codes(0)[10])
    list(join.push(pa.record_batch({"key": [key], "least": [10 * ROWS]})))
    assert [row["value"] for batch in join.step() for row in batch.to_pylist()] == [None]
    assert join.metrics.waits.most == 1, "its row was in the first load; the others are not its own"


def test_batches_with_long_strings_on_either_side_stay_small(tmp_path: Path) -> None:
    for name, stream_bytes, master_bytes in (("stream", 20_000, 10), ("master", 10, 20_000), ("both", 9_000, 9_000)):
        table = pa.table({"key": range(10), "theirs": ["y" * master_bytes] * 10})
        master = mr.MasterStore.build(table, tmp_path / name, "key")
        batch = pa.record_batch({"key": [i % 10 for i in range(1_200)], "ours": ["x" * stream_bytes] * 1_200})
        options: dict[str, Any]
        for options in ({"algorithm": "lookup"}, {"algorithm": "meshjoin", "b": 1}):
            rows = 0
            for out in mr.SemiStreamJoin(master, "key", memory="40MB", **options).run([batch]):
                rows += len(out)
                assert out.nbytes < 1.1 * BATCH_BYTES, f"{options}: a batch of {out.nbytes} bytes"
            assert rows == 1_200


def test_batches_stay_small_where_the_rows_that_match_are_the_long_ones(store: mr.MasterStore) -> None:
    texts = ["short" if i < 600 else "x" * 20_000 for i in range(1_200)]
    batch = pa.record_batch({"key": [-1 if i < 600 else i for i in range(1_200)], "text": texts})
    sizes = [out.nbytes for out in mr.SemiStreamJoin(store, "key", algorithm="lookup", memory=MEMORY).run([batch])]
    assert max(sizes) < 1.1 * BATCH_BYTES
    assert sum(sizes) > 600 * 20_000


def test_batches_of_nested_values_stay_small(store: mr.MasterStore) -> None:
    """Their size is known only once they are gathered, so a batch is filled a few rows at a time."""
    lists = pa.array([[i] * 10_000 for i in range(1_200)], pa.list_(pa.int64()))
    batch = pa.record_batch({"key": pa.array(range(1_200), pa.int64()), "list": lists})
    sizes = [out.nbytes for out in mr.SemiStreamJoin(store, "key", algorithm="lookup", memory=MEMORY).run([batch])]
    assert max(sizes) < 1.3 * BATCH_BYTES
    assert sum(sizes) > 1_200 * 80_000


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (np.full(3, -1, np.int32), r"int32 of shape \(3,\)"),
        (np.full((200, 1), -1, np.int32), r"int32 of shape \(200, 1\)"),
        (np.full(200, -1.0), r"float64 of shape \(200,\)"),
        (None, "NoneType"),
    ],
    ids=["short", "two dimensions", "floats", "none"],
)
def test_a_cache_that_answers_less_than_it_was_given_is_an_error(
    store: mr.MasterStore, ordered: bool, answer: Any, got: str
) -> None:
    class Wrong(NoCache):
        def look_up(self, codes: Any) -> Any:
            return answer

    algorithm = Algorithm("wrong", Wrong, Cyclic, "a cache whose look_up is wrong")
    join = mr.SemiStreamJoin(store, "key", "left", algorithm=algorithm, memory=MEMORY, ordered=ordered)
    with pytest.raises(StateError, match=rf"Wrong\.look_up: expected an array of one slot .* 200 key codes; got {got}"):
        list(join.push(tuples(range(200))))


def test_a_table_is_no_master() -> None:
    with pytest.raises(ConfigError, match=r"master: expected a MasterStore or the path of one; got Table.*build"):
        mr.SemiStreamJoin(pa.table({"key": [1]}), "key")


def test_the_least_memory_may_grow_with_the_columns_of_the_stream(store: mr.MasterStore) -> None:
    with pytest.raises(BudgetTooSmallError, match=r"least is .*, and more once the stream's columns are known$") as e:
        mr.SemiStreamJoin(store, "key", memory=10)
    join = mr.SemiStreamJoin(store, "key", memory=e.value.minimum)
    wide = pa.schema([("key", pa.int64()), *((f"c{i}", pa.int64()) for i in range(50))])
    with pytest.raises(BudgetTooSmallError, match=r"the least is \d+ bytes \([0-9.]+ kB\)$") as e:
        join.bind(wide)
    mr.SemiStreamJoin(store, "key", memory=e.value.minimum).bind(wide)
