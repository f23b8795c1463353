"""Caches of frequent keys, key by key: who enters, who goes, and that a group answers with all of its rows or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.semistream.cache.frequency import FrequencyCache

PAGE = 8
caching = pytest.mark.parametrize("algorithm", ["cachejoin", "sscj"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    keys = np.arange(800)
    return mr.MasterStore.build(pa.table({"key": keys, "value": keys}), tmp_path_factory.mktemp("s") / "s", "key")


def join_of(store: mr.MasterStore, algorithm: str, keys: int | None = None, **options: Any) -> mr.SemiStreamJoin:
    """A join whose cache has memory for so many keys of one row."""
    options = {"memory": 60_000, "b": PAGE, **options}
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, **options)
    join.bind(pa.schema([("key", pa.int64())]))
    if keys is None:
        return join
    return join_of(store, algorithm, **options, cache_share=(keys + 0.5) * cache_of(join).row_bytes / 60_000)


def cache_of(join: mr.SemiStreamJoin) -> FrequencyCache:
    assert isinstance(join.cache, FrequencyCache)
    return join.cache


def arrive(join: mr.SemiStreamJoin, *keys: int) -> int:
    """Let keys come and answer all of them; return how many were answered from the cache."""
    before = join.metrics.cache_hits
    rows = sum(map(len, join.push(pa.record_batch({"key": np.array(keys, np.int64)}))))
    while join.metrics.waiting:
        rows += sum(map(len, join.step()))
    join.check_invariants()
    assert rows == len(keys)
    return join.metrics.cache_hits - before


def cached(join: mr.SemiStreamJoin) -> list[int]:
    rows = cache_of(join).rows
    assert join.metrics.admitted_keys - join.metrics.evicted_keys == join.metrics.cached_keys
    return sorted(rows.map.code[rows.live()].tolist())


# who enters


@caching
def test_a_key_enters_with_as_many_tuples_as_the_threshold(store: mr.MasterStore, algorithm: str) -> None:
    join = join_of(store, algorithm, threshold=3)
    arrive(join, *[1] * 2, *[2] * 3, *[90] * 4)
    assert cached(join) == [2, 90]


@caching
def test_the_most_wanted_enter_first(store: mr.MasterStore, algorithm: str) -> None:
    join = join_of(store, algorithm, keys=3, threshold=1)
    arrive(join, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 5, 5, 5, 5)
    assert cached(join) == [1, 3, 5]


@caching
def test_the_cache_keeps_to_its_share(store: mr.MasterStore, algorithm: str) -> None:
    join = join_of(store, algorithm, keys=10, threshold=1)
    for first in range(0, 400, 25):
        arrive(join, *np.repeat(np.arange(first, first + 25), 2))
        assert len(cached(join)) <= 10
        assert join.metrics.parts["cache"] <= 60_000 - join.metrics.parts["load"]
    assert len(cached(join)) >= 8


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("algorithm", ["cachejoin", "cachejoin-l", "cachejoin-pq", "sscj", "hybridjoin-pq-balanced"])
def test_a_key_with_many_rows_answers_with_all_of_them(algorithm: str, shards: int, tmp_path: Path) -> None:
    """Also one with more rows than a load has, which comes in several."""
    keys = np.random.default_rng(3).permutation(np.repeat([0, 1, 2, 3, 4, 5], [1, 2, 3, 40, 300, 1]))
    store = mr.MasterStore.build(
        pa.table({"key": keys, "value": np.arange(len(keys))}), tmp_path / "s", "key", shards=shards
    )
    options: dict[str, Any] = {} if algorithm.endswith("balanced") else {"threshold": 1, "cache_share": 0.6}
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory=40_000, b=PAGE, **options)
    for _ in range(6):
        out: dict[int, int] = {}
        for batch in [*join.push(pa.record_batch({"key": np.tile(np.arange(6), 5)})), *join.step(), *join.step()]:
            for key in batch.column("key").to_pylist():
                out[key] = out.get(key, 0) + 1
        while join.metrics.waiting:
            for batch in join.step():
                for key in batch.column("key").to_pylist():
                    out[key] = out.get(key, 0) + 1
        join.check_invariants()
        assert out == {0: 5, 1: 10, 2: 15, 3: 200, 4: 1_500, 5: 5}
    assert join.metrics.cache_hits > 0


@caching
def test_long_rows_enter_as_far_as_there_is_memory(algorithm: str, tmp_path: Path) -> None:
    """The most wanted half, if not all of those that came together."""
    text = ["long " * 200] * 64
    store = mr.MasterStore.build(pa.table({"key": range(64), "value": text}), tmp_path / "s", "key")
    join = join_of(store, algorithm, threshold=1, memory=40_000, cache_share=0.5)
    assert not list(join.push(pa.record_batch({"key": [0, 1, 1, 2, 3, 3, 3, 4]})))
    others = join.budget.reserve("others", join.budget.available - 3_000)
    list(join.step())
    join.check_invariants()
    assert cached(join) == [1, 3]
    assert others.nbytes + join.metrics.parts["cache"] <= 40_000


# who goes


def test_the_least_used_go_and_only_for_keys_that_are_wanted_more(store: mr.MasterStore) -> None:
    join = join_of(store, "sscj", keys=3, threshold=2)
    list(join.push(pa.record_batch({"key": np.arange(-500, 0)})))  # a large room: uses do not fade here
    list(join.step())
    arrive(join, *[1] * 5, *[2] * 3, *[3] * 2)
    assert cached(join) == [1, 2, 3]
    assert arrive(join, *[3] * 6) == 6
    arrive(join, *[10] * 3)
    assert cached(join) == [1, 2, 3], "nobody was wanted less than 3 times"
    arrive(join, *[20] * 4)
    assert cached(join) == [1, 3, 20]
    arrive(join, *[30] * 5)
    assert cached(join) == [1, 3, 30], "a newcomer begins with what it was admitted for"
    arrive(join, *[40] * 9)
    assert 3 in cached(join), "with 8 uses, 6 of them since it came"
    assert len(cached(join)) == 3


def test_old_fame_fades(store: mr.MasterStore) -> None:
    join = join_of(store, "sscj", keys=1, threshold=2)
    arrive(join, *[1] * 100)
    for first in range(100, 700, 100):
        arrive(join, *range(first, first + 100))
    assert cached(join) == [1]
    arrive(join, *[2] * 5)
    assert cached(join) == [2]


@pytest.mark.parametrize("algorithm", ["cachejoin", "sscj", "hybridjoin-pq-balanced"])
def test_groups_go_whole(algorithm: str, tmp_path: Path) -> None:
    keys = np.repeat(np.arange(200), 3)
    store = mr.MasterStore.build(pa.table({"key": keys, "value": np.arange(600)}), tmp_path / "s", "key")
    options: dict[str, Any] = {"cache_share": 0.05, **({} if algorithm.endswith("balanced") else {"threshold": 1})}
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory=60_000, b=PAGE, **options)
    rng = np.random.default_rng(2)
    rows, came = 0, 0
    for first in range(0, 160, 4):
        keys = np.concatenate([np.repeat(np.arange(first, first + 20), 4), rng.integers(0, 200, 40)])
        rows += sum(map(len, join.push(pa.record_batch({"key": keys}))))
        came += len(keys)
        rows += sum(map(len, join.step()))
        join.check_invariants()
        assert join.metrics.cached_rows == 3 * join.metrics.cached_keys
        assert join.metrics.admitted_keys - join.metrics.evicted_keys == join.metrics.cached_keys
    rows += sum(map(len, join.finish()))
    assert rows == 3 * came
    assert join.metrics.evicted_keys > 0


class SaysItTwice(FrequencyCache):
    """A policy of the user's own that names each victim twice."""

    def victims(self, wanted: Any) -> Any:
        return np.repeat(self.heads()[: len(wanted)], 2)


def test_a_victim_that_is_named_twice_goes_once(store: mr.MasterStore) -> None:
    mine = replace(mr.ALGORITHMS["cachejoin"], name="mine", cache=SaysItTwice)
    join = mr.SemiStreamJoin(store, "key", algorithm=mine, memory=60_000, b=PAGE, cache_share=0.02, threshold=1)
    for first in range(0, 400, 25):
        arrive(join, *np.repeat(np.arange(first, first + 25), 2))
        assert len(cached(join)) == join.metrics.cached_keys
    assert join.metrics.evicted_keys > 0


# the threshold that moves


def test_the_threshold_rises_in_a_full_cache_that_keeps_changing(store: mr.MasterStore) -> None:
    join = join_of(store, "cachejoin", keys=20, loads=1)
    assert cache_of(join).threshold == 2
    for first in range(0, 800, 40):
        arrive(join, *np.repeat(np.arange(first, first + 40), 2))
    assert len(cached(join)) >= 8
    assert cache_of(join).threshold > 2


def test_the_threshold_falls_while_there_is_room_or_hardly_anything_changes(store: mr.MasterStore) -> None:
    roomy = join_of(store, "cachejoin", loads=1)
    for key in range(0, 220, 2):
        arrive(roomy, key)
    assert cache_of(roomy).threshold == 1
    settled = join_of(store, "cachejoin", keys=10, loads=1)
    arrive(settled, *np.repeat(np.arange(10), 4))
    for _ in range(4):
        arrive(settled, *range(100, 800, PAGE))
    assert cache_of(settled).threshold == 1


def test_a_threshold_that_is_given_stays(store: mr.MasterStore, tmp_path: Path) -> None:
    kept = join_of(store, "cachejoin", keys=20, loads=1)
    for first in range(0, 800, 40):
        arrive(kept, *np.repeat(np.arange(first, first + 40), 2))
    assert kept.keep_cache(tmp_path / "soft")
    moving, given = (join_of(store, "cachejoin", keys=20, loads=1, **o) for o in ({}, {"threshold": 7}))
    for join, threshold in ((moving, cache_of(kept).threshold), (given, 7)):
        assert join.recall_cache(tmp_path / "soft")
        assert cached(kept) == sorted(cache_of(join).rows.map.code[cache_of(join).rows.live()].tolist())
        assert cache_of(join).threshold == threshold
        assert not join.recall_cache(tmp_path / "soft"), "there is something already"
        join.check_invariants()


# CMESHJOIN's


def test_keys_of_no_use_go_first(store: mr.MasterStore) -> None:
    """Hot keys that were used in the last two turns stay; those that were not make room."""
    join = join_of(store, "cmeshjoin", keys=48, b=100, threshold=2)
    hot = list(range(10))
    arrive(join, *[*hot, *range(50, 70)] * 2)
    assert len(cached(join)) == 30
    for newcomers in (range(100, 108), range(200, 208)):
        for _ in range(24):
            list(join.push(pa.record_batch({"key": [*hot, 700]})))
            list(join.step())
        arrive(join, *hot, *[*newcomers] * 2)
        assert set(newcomers) <= set(cached(join))
        assert set(hot) <= set(cached(join))
    assert join.metrics.evicted_keys > 0


# the cache inequality


def test_a_key_stays_where_its_tuples_would_take_more_memory(tmp_path: Path) -> None:
    """One with many rows needs as many more uses; who fails leaves when a room full of tuples has come."""
    keys = np.sort(np.concatenate([np.arange(600), np.repeat([600], 30)]))
    store = mr.MasterStore.build(pa.table({"key": keys, "value": np.arange(630)}), tmp_path / "s", "key")
    join = mr.SemiStreamJoin(store, "key", algorithm="hybridjoin-pq-balanced", memory=60_000, b=64)
    list(join.push(pa.record_batch({"key": [1] * 20 + [2] * 20 + [600] * 90 + list(range(300, 400))})))
    while join.metrics.waiting:
        list(join.step())
    assert {1, 2, 600} <= set(cached(join))
    for _ in range(12):
        for _ in range(4):
            list(join.push(pa.record_batch({"key": np.arange(64, 256)})))
            list(join.push(pa.record_batch({"key": [2, 600]})))
            while join.metrics.waiting:
                list(join.step())
    assert set(cached(join)) & {1, 2, 600} == {2}, "used as often, one row stays and thirty go"
    assert join.metrics.parts["cache"] <= 0.8 * 60_000


# cached rows in ordered output


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("algorithm", ["ssbj", "cmeshjoin", "sscj", "cachejoin-pq", "ordered"])
def test_ordered_output_has_the_rows_that_were_cached(algorithm: str, shards: int, tmp_path: Path) -> None:
    """They are put out by their numbers, which are noted when they enter, a few hundred at a time or one by one."""
    keys = np.random.default_rng(3).permutation(800)
    store = mr.MasterStore.build(pa.table({"key": keys, "value": 3 * keys}), tmp_path / "s", "key", shards=shards)
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory=40_000, ordered=True)
    stream = [np.concatenate([np.tile(np.arange(5), 12), np.arange(20) + 30 * i]) for i in range(25)]
    got = [batch for some in stream for batch in [*join.push(pa.record_batch({"key": some})), *join.step()]]
    join.check_invariants()
    assert join.metrics.cache_hits > 300
    out = pa.Table.from_batches([*got, *join.finish()])
    assert out.column("key").to_pylist() == np.concatenate(stream).tolist()
    assert (out.column("value").to_numpy() == 3 * out.column("key").to_numpy()).all()
