"""Groups of master rows that are collected, given up, kept, and remembered as absent: none may answer with a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.core.spec import JoinSpec
from millrace.datasets import zipf_stream
from millrace.testing.oracle import assert_same_rows, oracle_join

both = pytest.mark.parametrize("migration", ["rolling", "three-cycle"])


def store_of(keys: Any, path: Path, **columns: Any) -> mr.MasterStore:
    master = pa.table({"k": pa.array(keys, pa.int64()), "m": pa.array(range(len(keys)), pa.int64()), **columns})
    return mr.MasterStore.build(master, path / "store", "k", page_rows=64)


def batch_of(keys: Any) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(keys, pa.int64())})


def rows_of(batches: Any) -> list[tuple[int, int | None]]:
    """Pairs of a key and the number of a master row, sorted."""
    pairs = [(row["k"], row["m"]) for batch in batches for row in batch.to_pylist()]
    return sorted(pairs, key=lambda pair: (pair[0], -1 if pair[1] is None else pair[1]))


# memory that runs out


@both
@pytest.mark.parametrize("long_row", [1_100, 1_299])
def test_a_group_with_a_row_for_which_there_is_no_memory_is_given_up(
    migration: str, long_row: int, tmp_path: Path
) -> None:
    """Published without that row it would answer with some of its key's rows."""
    keys = np.arange(10_000, 11_300)  # more than the rows from which the cache guesses how long a row is
    mine = [0, 10, 40, 1_100, 1_299]
    keys[mine] = 7
    texts = ["short"] * len(keys)
    texts[long_row] = "long " * 8_000
    store = store_of(keys, tmp_path, text=texts)
    join = mr.SemiStreamJoin(store, "k", memory=45_000, b=130, migration=migration)
    pushed, got = 0, []
    for _ in range(45):
        got += [*join.push(batch_of([7] * 4 + [10_001] * 4)), *join.step()]
        pushed += 4
        join.check_invariants()
    assert join.metrics.cache_hits > 0, "the other key is cached"
    got += list(join.finish())
    expected = [(7, m) for m in mine for _ in range(pushed)] + [(10_001, 1) for _ in range(pushed)]
    assert rows_of(got) == sorted(expected)


@both
def test_long_rows_that_come_together_are_charged_before_they_are_copied(migration: str, tmp_path: Path) -> None:
    """The first row of a group and the rest of it, in one load, each with much text."""
    keys = np.arange(1_000, 1_100)
    keys[[0, 3, 6]] = 7
    texts = ["s"] * 100
    for row in (0, 3, 6):
        texts[row] = "long " * 1_500
    store = store_of(keys, tmp_path, text=texts)
    for memory in (45_000, 60_000, 90_000):
        join = mr.SemiStreamJoin(store, "k", memory=memory, b=20, migration=migration)
        got = []
        for _ in range(40):
            got += [*join.push(batch_of([7] * 30)), *join.step()]
            join.check_invariants()
        got += list(join.finish())
        assert rows_of(got) == sorted((7, m) for m in (0, 3, 6) for _ in range(40 * 30))


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ssbj", {"main_memory": False}),
        ("cmeshjoin", {"threshold": 1}),
        ("sscj", {"threshold": 1}),
        ("hybridjoin-pq-balanced", {}),
        ("ordered", {}),
        ("ssij", {}),
        ("partitioned", {}),
    ],
)
def test_a_cache_gives_way_to_a_tuple_that_has_no_room_beside_it(
    algorithm: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Such a tuple is not refused, and the cache begins anew."""
    store = store_of(range(1_000), tmp_path)
    join = mr.SemiStreamJoin(store, "k", algorithm=algorithm, memory=60_000, b=100, **options)

    def pushed(keys: Any, text: str) -> list[tuple[int, int | None]]:
        return rows_of(join.push(pa.record_batch({"k": pa.array(keys, pa.int64()), "s": [text] * len(keys)})))

    def steps(count: int) -> list[tuple[int, int | None]]:
        return rows_of(batch for _ in range(count) for batch in join.step())

    def warm() -> int:
        came, hits = [], join.metrics.cache_hits
        for first in range(0, 120, 3):
            came += pushed([*range(first, first + 40)] * 2, "s") + steps(2)
        while join.metrics.waiting:
            came += steps(1)
        assert sorted(came) == sorted((k, k) for first in range(0, 120, 3) for k in [*range(first, first + 40)] * 2)
        join.check_invariants()
        return join.metrics.cache_hits - hits

    assert warm() > 0
    parts = join.metrics.parts
    assert parts["cache"] > 1_500
    free = join.budget.available + sum(nbytes for name, nbytes in parts.items() if name in ("waiting", "order"))
    got = pushed([990], "x" * int(free + 0.3 * parts["cache"]))
    assert join.metrics.parts["cache"] < 0.5 * parts["cache"]
    join.check_invariants()
    while join.metrics.waiting:
        got += steps(1)
    assert got == [(990, 990)]
    join.check_invariants()
    assert warm() > 0


# keys that begin anew


def test_a_key_given_up_and_begun_anew_is_collected_for_a_turn_from_then_on(tmp_path: Path) -> None:
    """Published when its first attempt would have ended, it would lack the rows that passed between the two."""
    keys = np.arange(1_000, 1_100)
    mine = [1, 2, 3, 4, 5, 55]
    keys[mine] = 7
    store = store_of(keys, tmp_path)
    join = mr.SemiStreamJoin(store, "k", memory=40_000, b=10, margin=0)
    list(join.push(batch_of([7] * 3)))
    assert join.metrics.cached_keys == 1, "its rows are collected"
    got = list(join.step())
    assert join.metrics.cached_keys == 0, "given up: five rows take more than three tuples"
    pushed = 3
    for count in [40, *[5] * 25]:
        got += [*join.push(batch_of([7] * count)), *join.step()]
        pushed += count
        join.check_invariants()
    assert join.metrics.cache_hits > 0
    got += list(join.finish())
    assert rows_of(got) == sorted((7, m) for m in mine for _ in range(pushed))


@both
@pytest.mark.parametrize("b", [1, 2])
def test_a_group_is_published_when_every_row_has_passed_and_not_before(migration: str, b: int, tmp_path: Path) -> None:
    """With loads of one row a turn may not end one row early, wherever it begins."""
    keys = [7, 1, 7, 2, 3, 7, 4, 5, 6, 7, 8, 9]
    store = store_of(keys, tmp_path)
    for first in range(12):
        join = mr.SemiStreamJoin(store, "k", memory=30_000, b=b, migration=migration, margin=0, main_memory=False)
        got = [*join.push(batch_of([9])), *(batch for _ in range(first) for batch in join.step())]
        pushed = 0
        for _ in range(80):
            got += [*join.push(batch_of([7, 7])), *join.step()]
            pushed += 2
        join.check_invariants()
        got += list(join.finish())
        assert join.metrics.cache_hits > 0
        assert rows_of(got) == sorted([*((7, m) for m in (0, 2, 5, 9) for _ in range(pushed)), (9, 11)])


def test_a_key_that_was_evicted_is_not_copied_again_without_tuples(tmp_path: Path) -> None:
    """Rows that are noted are forgotten when they have been copied: else evicted keys come back and memory leaks."""
    store = store_of(range(1_000), tmp_path)
    join = mr.SemiStreamJoin(store, "k", memory=60_000, b=100)
    for _ in range(60):
        list(join.push(batch_of([17] * 4)))
        list(join.step())
    assert join.metrics.cached_keys == join.metrics.admitted_keys == 1
    for _ in range(15 * 10):
        list(join.step())
    assert (join.metrics.cached_keys, join.metrics.admitted_keys, join.metrics.evicted_keys) == (0, 1, 1)


# keys without rows


@both
def test_a_key_without_rows_is_remembered_once(migration: str, tmp_path: Path) -> None:
    """However many of its tuples leave together, or leave when it is known already."""
    store = store_of(range(500), tmp_path)
    join = mr.SemiStreamJoin(
        store, "k", "left", memory=40_000, b=100, migration=migration, leave_early=False, evict_every=1_000
    )
    for _ in range(30):
        list(join.push(batch_of([5_000] * 3 + [6_000] * 2 + [7_000])))
        list(join.step())
        join.check_invariants()
        m = join.metrics
        assert m.cached_rows == m.cached_keys, "an absent key takes one slot"
    assert m.admitted_keys - m.evicted_keys == m.cached_keys == 3
    assert m.cache_hits > 0


def test_a_key_without_rows_that_came_once_is_not_remembered(tmp_path: Path) -> None:
    store = store_of(range(500), tmp_path)
    join = mr.SemiStreamJoin(store, "k", "left", memory=40_000, b=100, leave_early=False)
    for number in range(30):
        list(join.push(batch_of([5_000 + number])))
        list(join.step())
    assert join.metrics.cached_keys == 0


def test_a_key_without_rows_that_has_just_left_is_kept_once(tmp_path: Path) -> None:
    store = store_of(range(500), tmp_path)
    join = mr.SemiStreamJoin(store, "k", "left", memory=40_000, b=100, leave_early=False)
    for _ in range(5):
        list(join.push(batch_of([5_000] * 3)))
        list(join.step())
    assert join.metrics.unmatched == 3
    assert join.keep_cache(tmp_path / "soft")
    assert join.metrics.cached_rows == join.metrics.cached_keys == join.metrics.admitted_keys == 1
    join.check_invariants()


def test_an_absent_key_that_was_evicted_enters_anew_only_with_tuples_that_leave(tmp_path: Path) -> None:
    store = store_of(range(500), tmp_path)
    join = mr.SemiStreamJoin(store, "k", "left", memory=40_000, b=100, leave_early=False, margin=0)
    for _ in range(8):
        list(join.push(batch_of([5_000] * 3)))
        list(join.step())
    assert join.metrics.cached_keys == 1
    for _ in range(60):
        list(join.step())
    assert join.metrics.cached_keys == 0
    list(join.push(batch_of([5_000] * 3)))
    for _ in range(3):
        list(join.step())
        assert join.metrics.cached_keys == join.metrics.evicted_keys - 1 == 0


# a cache that is kept, and goes on


@both
@pytest.mark.parametrize("unique", [False, True])
def test_a_join_goes_on_after_its_cache_was_kept(migration: str, unique: bool, tmp_path: Path) -> None:
    """At any moment of a turn: what was being collected is begun anew, and nothing is lost or twice there."""
    rng = np.random.default_rng(5)
    keys = rng.permutation(np.arange(240)) if unique else rng.integers(0, 60, 240)
    store = store_of(keys, tmp_path)
    stream = list(zipf_stream(70, 1.2, batch_rows=25, batches=60, seed=3))
    stream = [batch_of(batch.column(0).to_numpy()) for batch in stream]
    expected = oracle_join(pa.Table.from_batches(stream), store.to_table(), JoinSpec.of("k", "left"))
    for every in (1, 3, 7):
        join = mr.SemiStreamJoin(
            store, "k", "left", memory=14_000, b=20, migration=migration, evict_every=3, leave_early=False
        )
        got = []
        for number, batch in enumerate(stream):
            got += [*join.push(batch), *join.step()]
            if number % every == 0:
                assert join.keep_cache(tmp_path / "soft")
                join.check_invariants()
        got += list(join.finish())
        join.check_invariants()
        assert_same_rows(got, expected, f"{migration}, kept every {every} steps")


@both
@pytest.mark.parametrize("unique", [False, True])
def test_what_is_kept_at_any_moment_answers_with_all_rows(migration: str, unique: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    keys = rng.permutation(np.arange(240)) if unique else rng.integers(0, 60, 240)
    store = store_of(keys, tmp_path)
    stream = list(zipf_stream(70, 1.2, batch_rows=25, batches=51, seed=3))
    stream = [batch_of(batch.column(0).to_numpy()) for batch in stream]
    options: dict[str, Any] = {"memory": 14_000, "b": 20, "migration": migration, "leave_early": False}
    every_key = batch_of(range(70))
    expected = oracle_join(pa.Table.from_batches([every_key]), store.to_table(), JoinSpec.of("k", "left"))
    hits = 0
    for stop in (5, 30, 44, 51):
        join, after = (mr.SemiStreamJoin(store, "k", "left", **options) for _ in range(2))
        for batch in stream[:stop]:
            list(join.push(batch))
            list(join.step())
        assert join.keep_cache(tmp_path / "soft")
        after.bind(every_key.schema)
        assert after.recall_cache(tmp_path / "soft")
        after.check_invariants()
        assert after.metrics.cached_keys == join.metrics.cached_keys
        assert_same_rows(after.run([every_key]), expected)
        after.check_invariants()
        hits += after.metrics.cache_hits
    assert hits > 0


def test_a_whole_master_that_was_kept_is_whole_again(tmp_path: Path) -> None:
    """The next join lets nobody wait either, and knows which keys are absent."""
    keys = list(range(60))
    store = store_of(keys, tmp_path)
    first = mr.SemiStreamJoin(store, "k", memory=45_000, b=10, leave_early=False)
    for _ in range(20 * 6):
        list(first.push(batch_of(keys)))
        list(first.step())
    assert first.keep_cache(tmp_path / "soft")
    second = mr.SemiStreamJoin(store, "k", "left", memory=45_000, b=10, leave_early=False)
    second.bind(batch_of([]).schema)
    assert second.recall_cache(tmp_path / "soft")
    out = rows_of(second.push(batch_of([*keys, 1_000])))
    assert out == [*((k, k) for k in keys), (1_000, None)]
    assert second.metrics.waiting == 0
    second.check_invariants()


def test_a_kept_group_is_judged_by_the_time_it_was_watched(tmp_path: Path) -> None:
    """A key that is as hot as ever is not evicted because the wheel of the next join stands elsewhere."""
    store = store_of([*range(100), 7], tmp_path)

    def warm(join: mr.SemiStreamJoin, steps: int) -> None:
        for _ in range(steps):
            list(join.push(batch_of([7, 7])))
            list(join.step())

    options: dict[str, Any] = {"memory": 60_000, "b": 10, "leave_early": False}
    first = mr.SemiStreamJoin(store, "k", evict_every=1_000, **options)
    warm(first, 70)
    hits = first.metrics.cache_hits
    assert hits > 0
    assert first.keep_cache(tmp_path / "soft")
    second = mr.SemiStreamJoin(store, "k", evict_every=1, **options)
    second.bind(batch_of([]).schema)
    assert second.recall_cache(tmp_path / "soft")
    warm(second, 40)
    assert second.metrics.evicted_keys == 0
    assert second.metrics.cache_hits == 80


def test_a_kept_group_ages_where_the_wheel_of_the_next_join_stands_elsewhere(tmp_path: Path) -> None:
    """However long the first join ran, a key that is not used any more leaves the second one soon."""
    store = store_of([*range(100), 7], tmp_path)
    options: dict[str, Any] = {"memory": 60_000, "b": 101, "leave_early": False, "main_memory": False}
    first, second = (mr.SemiStreamJoin(store, "k", **options) for _ in range(2))
    for _ in range(70):
        list(first.push(batch_of([7] * 8)))
        list(first.step())
    assert first.metrics.cached_keys == 1
    assert first.keep_cache(tmp_path / "soft")
    for _ in range(3):
        list(second.push(batch_of([50])))
        list(second.step())
    assert second.recall_cache(tmp_path / "soft")
    for _ in range(20):
        list(second.step())
    assert second.metrics.cached_keys == 0
    second.check_invariants()


def test_a_cache_is_not_taken_over_beside_what_is_there(tmp_path: Path) -> None:
    store = store_of(list(range(100)) * 2, tmp_path)
    joins = [mr.SemiStreamJoin(store, "k", memory=30_000, b=20, leave_early=False) for _ in range(2)]
    for join, hot in zip(joins, (3, 50), strict=True):
        for _ in range(40):
            list(join.push(batch_of([hot] * 10)))
            list(join.step())
        assert join.metrics.cached_keys == 1
    assert joins[0].keep_cache(tmp_path / "soft")
    assert not joins[1].recall_cache(tmp_path / "soft")
    joins[1].check_invariants()
    assert len(rows_of(joins[1].push(batch_of([50])))) == 2, "its own key is answered at once as before"
