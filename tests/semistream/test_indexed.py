"""Page by page through the index: whose page comes next, and what the caches learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.core.errors import ConfigError
from millrace.datasets import zipf_stream
from millrace.master.read.wheel import Load
from millrace.semistream.access.oldest import Oldest
from millrace.semistream.access.page_queue import PageQueue
from millrace.semistream.access.position import Position
from millrace.testing.collisions import colliding_pair

pytestmark = pytest.mark.sampled(4)

ROWS, PAGE = 20_000, 50


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    keys = np.random.default_rng(3).permutation(ROWS)
    return mr.MasterStore.build(pa.table({"key": keys, "value": keys * 2}), tmp_path_factory.mktemp("s") / "s", "key")


def driven(store: mr.MasterStore, algorithm: str, tuples: int, skew: float = 1.0, **options: Any) -> mr.SemiStreamJoin:
    join = mr.SemiStreamJoin(store, on="key", algorithm=algorithm, memory="100kB", b=PAGE, **options)
    for batch in zipf_stream(ROWS, skew, batch_rows=1_000, batches=tuples // 1_000, seed=7):
        for _ in join.push(batch):
            continue
    join.check_invariants()
    return join


def test_the_page_of_the_oldest_is_loaded_and_serves_all_who_wait_for_it(tmp_path: Path) -> None:
    master = pa.table({"key": list(range(12)), "value": list("abcdefghijkl")})
    join = mr.SemiStreamJoin(
        mr.MasterStore.build(master, tmp_path / "s", "key"), "key", algorithm="hybridjoin", memory="64kB", b=4, loads=1
    )
    assert list(join.push(pa.record_batch({"key": [5, 0, 6, 11, 1, 5]}))) == []
    out = [[row["key"] for batch in join.step() for row in batch.to_pylist()] for _ in range(3)]
    assert [sorted(keys) for keys in out] == [[5, 5, 6], [0, 1], [11]]
    assert join.metrics.waits.most == 3


def test_a_key_without_a_row_leaves_when_it_is_looked_up(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", "left", algorithm="hybridjoin", memory="100kB", b=PAGE, loads=1)
    assert list(join.push(pa.record_batch({"key": [-1, 5]}))) == []
    assert [row["key"] for batch in join.step() for row in batch.to_pylist()] == [-1]
    assert join.metrics.unmatched == 1


@pytest.mark.parametrize("algorithm", ["hybridjoin", "hybridjoin-l", "cachejoin", "ssij"])
def test_a_key_that_only_shares_the_code_of_a_row_leaves_when_it_has_met_it(tmp_path: Path, algorithm: str) -> None:
    table = pa.table({"a": [1, 7, 8], "b": [2, 7, 8], "value": [12, 77, 88]})
    made = mr.MasterStore.build(table, tmp_path / "s", ["a", "b"])
    join = mr.SemiStreamJoin(made, ["a", "b"], "left", algorithm=algorithm, memory="64kB", b=1, loads=1)
    list(join.push(pa.record_batch({"a": [5, 1, 8], "b": [colliding_pair(1, 2, 5), 2, 8]})))
    out = [row for _ in range(6) for batch in join.step() for row in batch.to_pylist()]
    assert not join.metrics.waiting, "a tuple waits for a page that it has met"
    assert {row["a"]: row["value"] for row in out} == {5: None, 1: 12, 8: 88}
    assert len(out) == 3


def test_a_repeated_key_leaves_when_all_of_its_pages_are_together(tmp_path: Path) -> None:
    master = pa.table({"key": [1, 2, 3, 1, 2, 4], "value": list("abcdef")})
    join = mr.SemiStreamJoin(
        mr.MasterStore.build(master, tmp_path / "s", "key"), "key", algorithm="hybridjoin", memory="64kB", b=2, loads=1
    )
    assert list(join.push(pa.record_batch({"key": [3, 1, 2]}))) == []
    steps = [sorted(row["value"] for batch in join.step() for row in batch.to_pylist()) for _ in range(3)]
    assert steps == [["c", "d"], ["b", "e"]] or steps[0] == ["c"], steps
    assert sorted(value for step in steps for value in step) == list("abcde")


def test_rows_of_repeated_keys_come_in_parts_that_the_load_buffer_holds(tmp_path: Path) -> None:
    keys = np.random.default_rng(3).permutation(np.arange(10).repeat(3_000))
    repeated = mr.MasterStore.build(pa.table({"key": keys, "value": np.arange(len(keys))}), tmp_path / "s", key="key")
    join = mr.SemiStreamJoin(repeated, on="key", algorithm="hybridjoin", memory="100kB", b=50)
    sizes: list[int] = []
    join.bind(pa.schema([("key", pa.int64())]))
    loads = join.access.loads

    def noted() -> Iterator[Load]:
        for load in loads():
            sizes.append(len(load.codes))
            yield load

    join.access.loads = noted  # type: ignore[method-assign]
    rows = sum(len(out) for out in join.run([pa.record_batch({"key": np.arange(10)})]))
    assert rows == len(keys)
    assert len(sizes) > join.metrics.steps, "a step has several parts"
    assert max(sizes) <= join.access.context.step_rows


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_loading_several_pages_a_step_costs_nothing(store: mr.MasterStore, skew: float) -> None:
    one, several = (driven(store, "hybridjoin", 25_000, skew, loads=loads).metrics.probes for loads in (1, None))
    assert 0.85 * one < several < 1.03 * one, "pages loaded for the same tuples; fewer steps have fewer chunks to keep"


def test_queue_entries_of_those_who_left_are_swept(store: mr.MasterStore) -> None:
    join = driven(store, "hybridjoin-l", 25_000)
    entries = sum(len(chunk.slots) for chunk in join.loop.room.chunks)
    assert entries <= 3 * len(join.loop.room) + 2_000


def test_pages_that_are_due_are_frequent_ones(store: mr.MasterStore) -> None:
    join = driven(store, "hybridjoin-pq", 80_000)
    access = join.access
    assert isinstance(access, PageQueue)
    assert access.threshold > 1
    assert 0 < len(access.queue) < len(access.pages)


def test_the_position_adapts(store: mr.MasterStore) -> None:
    fresh = mr.SemiStreamJoin(store, on="key", algorithm="hybridjoin-l", memory="100kB", b=PAGE, position="adapt")
    fresh.bind(pa.schema([("key", pa.int64())]))
    assert isinstance(fresh.access, Position)
    assert fresh.access.trials == 0
    access = driven(store, "hybridjoin-l", 50_000, position="adapt").access
    assert isinstance(access, Position)
    assert access.trials >= 3
    assert 0 <= access.position <= 1
    assert isinstance(driven(store, "hybridjoin", 1_000).access, Oldest)


@pytest.fixture(scope="module")
def uncached(store: mr.MasterStore) -> mr.JoinMetrics:
    return driven(store, "hybridjoin", 50_000).metrics


@pytest.mark.parametrize("algorithm", ["cachejoin", "cachejoin-l", "cachejoin-pq", "sscj", "hybridjoin-pq-balanced"])
def test_frequent_keys_are_cached(store: mr.MasterStore, uncached: mr.JoinMetrics, algorithm: str) -> None:
    join = driven(store, algorithm, 50_000)
    m = join.metrics
    assert m.hit_rate > 0.25
    assert m.parts["cache"] <= 0.85 * m.budget_bytes
    assert m.admitted_keys - m.evicted_keys == m.cached_keys
    assert m.probes < uncached.probes, "fewer pages than without a cache"


def test_a_sweep_reads_in_order_and_empties_the_room(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, on="key", algorithm="ssij", memory="100kB", b=PAGE, loads=8)
    batch = next(iter(zipf_stream(ROWS, 0.0, batch_rows=300, batches=1, seed=1)))
    list(join.push(batch))
    read: list[int] = []
    while join.metrics.waiting:
        before = join.device.seeks
        list(join.step())
        read.append(join.device.seeks - before)
    assert max(read) <= 8
    assert sum(read) <= len(set(batch.column("key").to_pylist()))
    assert join.metrics.matched == 300


def test_the_fullest_page_comes_first(tmp_path: Path) -> None:
    master = pa.table({"key": list(range(12)), "value": list("abcdefghijkl")})
    made = mr.MasterStore.build(master, tmp_path / "s", "key")
    join = mr.SemiStreamJoin(made, "key", algorithm="partitioned", memory="64kB", b=4, loads=1)
    list(join.push(pa.record_batch({"key": [0, 5, 9, 6, 10, 11]})))
    out = [sorted(row["key"] for batch in join.step() for row in batch.to_pylist()) for _ in range(3)]
    assert out == [[9, 10, 11], [5, 6], [0]]
    answered = [row["key"] for batch in join.push(pa.record_batch({"key": [8, 4]})) for row in batch.to_pylist()]
    assert answered == [8, 4], "pages that were loaded stay"


def test_memory_that_was_given_back_revives_nobody(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, on="key", algorithm="hybridjoin", memory="2MB", b=PAGE, loads=1)
    hot, others = store.codes(0)[:1], store.codes(0)[ROWS // 2 : ROWS // 2 + 6_000]
    list(join.push(pa.record_batch({"key": np.concatenate([hot, others, np.repeat(hot, 3_000)])})))
    list(join.step())
    assert join.metrics.waiting == 6_000
    join.loop.room.rows.trim()
    join.check_invariants()
    list(join.finish())
    assert join.metrics.matched == 9_001


def test_nobody_starves_who_has_a_longest_wait(store: mr.MasterStore) -> None:
    waits = [driven(store, "partitioned", 25_000, max_wait=most).metrics.waits.most for most in (None, 200)]
    assert waits[1] < waits[0]


def test_the_least_used_key_makes_room(store: mr.MasterStore) -> None:
    random, least = (driven(store, name, 100_000, cache_share=0.1).metrics for name in ("cachejoin", "sscj"))
    assert least.hit_rate > random.hit_rate
    assert least.evicted_keys < random.evicted_keys


@pytest.mark.thorough
def test_keys_that_come_and_go_do_not_crowd_the_directory(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, on="key", algorithm="sscj", memory="200kB", cache_share=0.6)
    for batch in zipf_stream(ROWS, 0.0, batch_rows=1_000, batches=240, seed=7):
        for _ in join.push(batch):
            continue
    rows = join.cache.rows
    assert rows is not None
    assert len(rows) > 3_000
    used = rows.map.directory >= 0
    ends = np.flatnonzero(np.diff(np.concatenate(([0], used.astype(int), [0]))))
    assert (ends[1::2] - ends[::2]).max() < 100, "places in a row that are taken, of which half are"


def test_a_cache_follows_keys_that_move(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, on="key", algorithm="sscj", memory="100kB", b=PAGE)
    rates = []
    for move, batches in ((0, 50), (7_919, 100)):
        for number, batch in enumerate(zipf_stream(ROWS, 1.0, batch_rows=1_000, batches=batches, seed=7)):
            if number == batches - 10:
                before, hits = join.metrics.tuples_in, join.metrics.cache_hits
            keys = (batch.column("key").to_numpy() + move) % ROWS
            for _ in join.push(pa.record_batch({"key": keys})):
                continue
        rates.append((join.metrics.cache_hits - hits) / (join.metrics.tuples_in - before))
    assert rates[1] > rates[0] - 0.05


@pytest.mark.parametrize(
    ("algorithm", "options", "word"),
    [
        ("hybridjoin", {"loads": 0}, "loads"),
        ("hybridjoin-l", {"position": 2}, "position"),
        ("hybridjoin-l", {"guard": -1}, "guard"),
        ("hybridjoin-pq", {"guard": 0}, "guard"),
        ("hybridjoin-pq", {"decay": 1}, "decay"),
        ("hybridjoin-pq", {"page_threshold": 0}, "page_threshold"),
        ("sscj", {"cache_share": 1.5}, "cache_share"),
        ("sscj", {"threshold": 0}, "threshold"),
        ("r-meshjoin", {"l": 0}, "l: "),
    ],
)
def test_options_that_cannot_work(store: mr.MasterStore, algorithm: str, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        driven(store, algorithm, 1_000, **options)
