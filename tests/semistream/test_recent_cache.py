"""The cache of the keys looked up last, key by key: who stays, who goes, and what an absent key takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr

KEYS = 4_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    table = pa.table({"key": range(KEYS), "value": range(KEYS)})
    return mr.MasterStore.build(table, tmp_path_factory.mktemp("s") / "s", "key")


def join_of(store: mr.MasterStore, how: str = "inner", memory: int = 60_000, **options: Any) -> mr.SemiStreamJoin:
    join = mr.SemiStreamJoin(store, "key", how, algorithm="ordered", memory=memory, **options)
    join.bind(pa.schema([("key", pa.int64())]))
    return join


def look_up(join: mr.SemiStreamJoin, *keys: int) -> int:
    """Let keys come and be looked up; return how many were answered from the cache."""
    before = join.metrics.cache_hits
    got = [*join.push(pa.record_batch({"key": np.array(keys, np.int64)})), *join.step()]
    join.check_invariants()
    rows = [(row["key"], row["value"]) for batch in got for row in batch.to_pylist()]
    absent = [(key, None) for key in keys if key < 0 and join.spec.how == "left"]
    assert sorted(rows, key=str) == sorted([*absent, *((key, key) for key in keys if key >= 0)], key=str)
    return join.metrics.cache_hits - before


def capacity(join: mr.SemiStreamJoin) -> int:
    """Rows for which the cache has memory."""
    rows = join.cache.rows
    assert rows is not None
    return int(0.3 * join.budget.total / rows.row_bytes)


def fill(join: mr.SemiStreamJoin, first: int, count: int) -> int:
    """Look up as many new keys, a few at a time; return the next that is new."""
    for at in range(first, first + count, 20):
        look_up(join, *range(at, min(at + 20, first + count)))
    return first + count


def test_a_key_that_is_used_again_and_again_stays_while_others_come(store: mr.MasterStore) -> None:
    join = join_of(store)
    look_up(join, 1)
    look_up(join, 2)
    following = 100
    for _ in range(40):
        assert look_up(join, 1) == 1
        following = fill(join, following, 20)
    assert join.metrics.evicted_keys > 0
    assert look_up(join, 2) == 0, "it was not used for long"


def test_keys_go_in_the_order_of_their_last_use(store: mr.MasterStore) -> None:
    join = join_of(store)
    room = capacity(join)
    following = fill(join, 0, room)
    assert join.metrics.evicted_keys == 0
    assert join.metrics.cached_keys == room
    assert look_up(join, *range(20)) == 20
    look_up(join, following)
    gone = join.metrics.evicted_keys
    assert room // 16 <= gone <= room // 16 + 1, "a part at a time"
    assert look_up(join, *range(20)) == 20, "the last used"
    assert look_up(join, *range(60, room)) == room - 60, "and all that came later than those that went"


def test_the_cache_keeps_to_its_share(store: mr.MasterStore) -> None:
    join = join_of(store)
    room = capacity(join)
    following = 0
    for count in (room // 4 + 10, room // 3, 1, 5, room // 8, room // 2, 3, room):
        look_up(join, *range(following, following + count))
        following += count
        assert join.metrics.cached_rows <= room
        assert join.metrics.admitted_keys - join.metrics.evicted_keys == join.metrics.cached_keys
    assert join.metrics.cached_rows > room // 2


def test_keys_that_come_together_take_a_part_of_the_cache(store: mr.MasterStore) -> None:
    """One batch may not drive out all that was there; those of it that are wanted most get in."""
    join = join_of(store, cache_share=0.1)
    room = capacity(join) // 3
    fill(join, 0, room)
    wanted = [1_020, 1_021, 1_022]
    look_up(join, *range(1_000, 1_060), *wanted * 2)
    assert look_up(join, *wanted) == 3
    assert look_up(join, *range(1_000, 1_060)) < 60
    absent = join_of(store)
    room = capacity(absent)
    look_up(absent, *range(-room // 2, 0))
    assert absent.metrics.cached_keys == room // 4


@pytest.mark.parametrize("how", ["inner", "left"])
def test_an_absent_key_is_remembered_as_such_once(store: mr.MasterStore, how: str) -> None:
    join = join_of(store, how)
    assert look_up(join, -1, -1, -1, -2) == 0
    m = join.metrics
    assert m.cached_rows == m.cached_keys == m.admitted_keys == 2
    assert look_up(join, -1, -2, -2) == 3
    out = [row for batch in join.push(pa.record_batch({"key": [-1]})) for row in batch.to_pylist()]
    assert out == ([{"key": -1, "value": None}] if how == "left" else [])


def test_absent_keys_come_and_go_as_others_do(store: mr.MasterStore) -> None:
    join = join_of(store)
    room = capacity(join)
    following = fill(join, 0, room)
    look_up(join, *range(-10, 0))
    assert join.metrics.cached_rows <= room
    assert look_up(join, *range(-10, 0)) == 10, "they are the last used"
    for _ in range(40):
        following = fill(join, following, 20)
        assert look_up(join, *range(following - 20, following)) == 20, "also in slots that absent keys had"
        assert join.metrics.cached_rows <= room
    assert look_up(join, *range(-10, 0)) == 0
    for at in range(20):
        look_up(join, *range(-1_000 - 30 * at, -970 - 30 * at))
        assert join.metrics.cached_rows <= room
        assert join.metrics.admitted_keys - join.metrics.evicted_keys == join.metrics.cached_keys


def test_a_cache_that_was_kept_goes_on_with_its_order(store: mr.MasterStore, tmp_path: Path) -> None:
    """Keys of the next join are used later than all that were kept, whatever number its look-ups begin with."""
    first = join_of(store)
    room = capacity(first)
    following = fill(first, 0, room)
    assert first.keep_cache(tmp_path / "soft")
    second = join_of(store)
    assert second.recall_cache(tmp_path / "soft")
    fresh = [following, following + 1]
    look_up(second, *fresh)
    fill(second, following + 2, room // 2)
    assert look_up(second, *fresh) == 2
    assert look_up(second, *range(20)) == 0


def test_cycles_are_the_keys_looked_up_per_row_of_the_master(store: mr.MasterStore) -> None:
    join = join_of(store)
    following = fill(join, 0, 400)
    assert join.metrics.cycles == 400 / KEYS
    assert look_up(join, following - 1) == 1
    assert join.metrics.cycles == 400 / KEYS, "the cache answered"


def test_pages_of_rows_that_are_looked_up_are_counted(store: mr.MasterStore) -> None:
    """Of those on the index and of those with rows: the rows of keys that are far apart are on more pages."""
    near, far = (join_of(store, device=mr.Device("hdd-2007")) for _ in range(2))
    look_up(near, 1, 2, 3)
    look_up(far, 1, KEYS // 2, KEYS - 1)
    assert far.metrics.pages_read - near.metrics.pages_read >= 2
