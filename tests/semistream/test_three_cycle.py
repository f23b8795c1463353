"""The three-cycle migration: what is watched, what is marked, and that neither takes more memory than its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr

ROWS = 1_000
WATCHED = 0.10  # share of the budget


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    table = pa.table({"k": np.arange(ROWS), "m": np.arange(ROWS)})
    return mr.MasterStore.build(table, tmp_path_factory.mktemp("s") / "s", "k")


def join_of(store: mr.MasterStore, memory: int, **options: Any) -> mr.SemiStreamJoin:
    return mr.SemiStreamJoin(
        store, "k", memory=memory, b=100, migration="three-cycle", leave_early=False, main_memory=False, **options
    )


def turn(join: mr.SemiStreamJoin, keys: Any) -> int:
    """Let keys come at every step of a turn; return the rows that come out."""
    batch = pa.record_batch({"k": np.asarray(keys, np.int64)})
    rows = 0
    for _ in range(join.k if join.bound else ROWS // 100):
        rows += sum(map(len, join.push(batch)))
        rows += sum(map(len, join.step()))
        join.check_invariants()
    return rows


def test_the_list_of_watched_keys_keeps_to_its_share_and_is_given_back(store: mr.MasterStore) -> None:
    join = join_of(store, 120_000, w=200)
    join.bind(pa.schema([("k", pa.int64())]))
    at_rest = join.metrics.parts["switching"]
    rng = np.random.default_rng(3)
    most = []
    for _ in range(4):
        watched = 0
        for _ in range(join.k):
            list(join.push(pa.record_batch({"k": rng.permutation(ROWS)[:200]})))
            list(join.step())
            watched = max(watched, join.metrics.parts["switching"] - at_rest)
        most.append(watched)
    assert max(most) > 0.5 * WATCHED * 120_000, "keys are watched"
    assert max(most) <= 1.6 * WATCHED * 120_000, "rows of the list, its filter, and slots ahead"
    list(join.finish())
    while int(join.metrics.cycles) % 3 != 1:
        list(join.step())
    list(join.step())
    assert join.metrics.parts["switching"] - at_rest < 0.25 * WATCHED * 120_000


def test_the_keys_that_most_wait_for_are_watched_first(store: mr.MasterStore) -> None:
    """Among hundreds of keys that wait, more than can be watched, the hot one gets into the cache."""
    join = join_of(store, 60_000)
    rng = np.random.default_rng(3)
    for step in range(62):
        hot = [777] * 6 if step >= 15 else []  # not before the first counting turn, when hardly anybody waits
        list(join.push(pa.record_batch({"k": [*rng.permutation(700)[:60], *hot]})))
        list(join.step())
        join.check_invariants()
    hits = join.metrics.cache_hits
    list(join.push(pa.record_batch({"k": [777] * 5})))
    assert join.metrics.cache_hits == hits + 5


def test_a_key_gets_in_only_with_tuples_that_take_more_memory_than_its_rows(tmp_path: Path) -> None:
    """As many as come in one turn, not in all turns together."""
    keys = np.sort(np.concatenate([np.arange(ROWS - 20), np.repeat([777], 20)]))
    store = mr.MasterStore.build(pa.table({"k": keys, "m": np.arange(ROWS)}), tmp_path / "s", "k")
    rare, frequent = (join_of(store, 60_000, margin=0, evict_every=1_000) for _ in range(2))
    for _ in range(7):
        turn(rare, [777])
        turn(frequent, [777] * 8)
    assert rare.metrics.admitted_keys == 0
    assert frequent.metrics.admitted_keys == 1


def test_what_is_marked_fits_in_what_is_kept_free(store: mr.MasterStore) -> None:
    """The keys that gain most come first; the rest wait for another round."""
    join = join_of(store, 30_000, margin=0, evict_every=1_000)
    hot = np.arange(500, 560)
    rows = sum(turn(join, [*hot, *hot, 505, 505, 505, 505, 505]) for _ in range(9))
    rows += sum(map(len, join.finish()))
    assert rows == 9 * (ROWS // 100) * 125
    assert join.metrics.cache_hits > 0
    assert join.metrics.peak_bytes <= 30_000


def test_what_fits_does_not_depend_on_the_switching_factor(store: mr.MasterStore) -> None:
    """The factor decides which keys are worth caching; how many of these fit is counted in real bytes."""
    admitted = []
    for factor in (1.0, 0.25):
        join = join_of(store, 30_000, margin=0, evict_every=1_000, switching_factor=factor)
        for _ in range(3):
            turn(join, np.arange(500, 620).repeat(2))
        list(join.finish())
        admitted.append(join.metrics.admitted_keys)
    assert admitted[0] == admitted[1] > 0


def test_a_cache_kept_in_the_middle_of_a_turn_loses_no_row(store: mr.MasterStore, tmp_path: Path) -> None:
    """In each of the three roles, and at each step: the counts of half a turn are not taken for those of a whole."""
    keys = np.repeat(np.arange(250), 4)
    many = mr.MasterStore.build(pa.table({"k": np.roll(keys, 2), "m": np.arange(ROWS)}), tmp_path / "s", "k")
    for stop in range(0, 40, 3):
        join = join_of(many, 60_000, margin=0)
        rows = came = 0
        for step in range(70):
            batch = pa.record_batch({"k": np.array([3] * 8 + [124] * 9 + [249] * 7)})
            rows += sum(map(len, join.push(batch))) + sum(map(len, join.step()))
            came += len(batch)
            if step == stop:
                assert join.keep_cache(tmp_path / "soft")
        join.check_invariants()
        rows += sum(map(len, join.finish()))
        assert rows == 4 * came
        assert join.metrics.cache_hits > 0


def test_where_little_is_kept_free_the_keys_that_gain_most_get_in(store: mr.MasterStore) -> None:
    """What is kept free follows what the cache has grown by, and no more than that is marked."""
    join = join_of(store, 60_000, margin=0, evict_every=1_000)
    rng = np.random.default_rng(4)
    for _ in range(3):
        for _ in range(10):
            list(join.push(pa.record_batch({"k": rng.permutation(400)[:5]})))
            list(join.step())
    many = np.arange(500, 540)
    for _ in range(4):
        turn(join, [*many[::2], *many[1::2], 505, 505, 505])
    hits = join.metrics.cache_hits
    list(join.push(pa.record_batch({"k": [505] * 5})))
    assert join.metrics.cache_hits == hits + 5
    assert 0 < join.metrics.cached_rows < len(many), "not all of them fit in what was kept free"
