"""Caches of whole pages, page by page: which stay, which go, and that each answers with its own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.semistream.cache.page_cache import PageCache

PAGE, PAGES = 8, 40
both = pytest.mark.parametrize("algorithm", ["ssij", "partitioned"])


def master_of(text: list[str] | None = None) -> pa.Table:
    """Key 100 · p + i is row i of page p; the last page has half as many rows."""
    keys = [100 * page + row for page in range(PAGES) for row in range(PAGE)][: -PAGE // 2]
    return pa.table({"key": keys, "value": [f"{key}" for key in keys] if text is None else text[: len(keys)]})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    return mr.MasterStore.build(master_of(), tmp_path_factory.mktemp("s") / "s", "key")


def join_of(store: mr.MasterStore, algorithm: str, pages: int | None = None, **options: Any) -> mr.SemiStreamJoin:
    """A join whose cache has memory for so many pages."""
    memory = options.pop("memory", 60_000)
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory=memory, b=PAGE, **options)
    join.bind(pa.schema([("key", pa.int64())]))
    if pages is None:
        return join
    assert join.cache.rows is not None
    share = (pages + 0.5) * PAGE * (join.cache.rows.row_bytes + 4) / memory
    return join_of(store, algorithm, memory=memory, cache_share=share, **options)


def arrive(join: mr.SemiStreamJoin, *keys: int) -> int:
    """Let keys come and answer all of them; return how many were answered from the cache."""
    before = join.metrics.cache_hits
    got = list(join.push(pa.record_batch({"key": np.array(keys, np.int64)})))
    while join.metrics.waiting:
        got += join.step()
    join.check_invariants()
    assert sorted((row["key"], row["value"]) for batch in got for row in batch.to_pylist()) == sorted(
        (key, str(key)) for key in keys
    )
    return join.metrics.cache_hits - before


def cached(join: mr.SemiStreamJoin) -> list[int]:
    assert isinstance(join.cache, PageCache)
    rows = join.cache.rows
    assert join.metrics.cached_rows == sum(PAGE if page < PAGES - 1 else PAGE // 2 for page in join.cache.pages)
    assert join.metrics.admitted_keys - join.metrics.evicted_keys == join.metrics.cached_rows
    assert len(rows) <= 0.3 * join.budget.total
    pages: list[int] = join.cache.pages.tolist()
    return pages


@both
def test_a_page_that_was_loaded_answers_all_of_its_keys(store: mr.MasterStore, algorithm: str) -> None:
    join = join_of(store, algorithm)
    assert arrive(join, 305, 3_901) == 0
    assert arrive(join, *range(300, 308), *range(3_900, 3_904)) == 12
    assert cached(join) == [3, 39]


@both
def test_a_page_that_nobody_wanted_does_not_enter(store: mr.MasterStore, algorithm: str) -> None:
    join = join_of(store, algorithm)
    arrive(join, 100)
    arrive(join, 500, 100)
    assert cached(join) == [1, 5]


@both
def test_no_more_pages_stay_than_there_is_memory_for(store: mr.MasterStore, algorithm: str) -> None:
    join = join_of(store, algorithm, pages=3)
    for page in range(12):
        arrive(join, 100 * page)
        assert len(cached(join)) == min(3, page + 1)
    arrive(join, *range(2_000, 3_000, 100))
    assert len(cached(join)) == 3


def test_the_pages_used_most_stay(store: mr.MasterStore) -> None:
    """Uses are tuples, from when a page came and from what it answered since."""
    join = join_of(store, "ssij", pages=3)
    list(join.push(pa.record_batch({"key": np.arange(-500, 0)})))  # a large room: uses do not fade here
    list(join.step())
    arrive(join, 700, 701, 702)
    arrive(join, 300, 301)
    arrive(join, 500)
    arrive(join, *range(300, 308))
    arrive(join, 900, 901)
    assert cached(join) == [3, 7, 9], "page 5 was used once"
    arrive(join, 100, 101, 102, 103)
    assert cached(join) == [1, 3, 7]
    arrive(join, 200)
    assert cached(join) == [1, 3, 7], "a page that is wanted less than any that is there does not stay"
    arrive(join, *[700] * 4, 500, 501, 502, 503, 504)
    assert cached(join) == [3, 5, 7]


def test_several_pages_that_come_in_one_sweep_have_their_own_uses(store: mr.MasterStore) -> None:
    join = join_of(store, "ssij", pages=3, loads=8)
    arrive(join, 900, 100, 101, 102, 500, 501, 300, 700, 701, 702, 703)
    assert cached(join) == [1, 5, 7]


def test_uses_fade_when_a_room_full_of_tuples_has_come(store: mr.MasterStore) -> None:
    join = join_of(store, "ssij", pages=1)
    arrive(join, *[100] * 40)
    for _ in range(4):
        arrive(join, *[200, 300, 400, 500] * 10)
    for _ in range(4):
        arrive(join, *[900] * 15)
    assert cached(join) == [9]


def test_the_pages_used_last_stay(store: mr.MasterStore) -> None:
    join = join_of(store, "partitioned", pages=3)
    for page in (7, 3, 5):
        arrive(join, *[100 * page] * page)
    arrive(join, 701)
    arrive(join, 900)
    assert cached(join) == [5, 7, 9], "page 3 was used before the others"
    arrive(join, 501)
    arrive(join, 100)
    assert cached(join) == [1, 5, 9]


@both
def test_pages_enter_as_far_as_there_is_memory(algorithm: str, tmp_path: Path) -> None:
    """Rows longer than the others are charged before they are copied, and pages that do not fit are not there."""
    text = ["x"] * (PAGE * PAGES)
    text[10 * PAGE : 20 * PAGE] = ["long " * 700] * (10 * PAGE)
    store = mr.MasterStore.build(master_of(text), tmp_path / "s", "key")
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory=60_000, b=PAGE, loads=6)
    keys = master_of().column("key").to_numpy()
    rng = np.random.default_rng(3)
    for _ in range(30):
        out = pa.Table.from_batches(
            [*join.push(pa.record_batch({"key": rng.choice(keys, 40)})), *join.step(), *join.step()],
            join.output_schema,
        )
        lengths = [len(value) for value in out.column("value").to_pylist()]
        long = [1_000 <= key < 2_000 for key in out.column("key").to_pylist()]
        assert lengths == [3_500 if is_long else 1 for is_long in long]
        join.check_invariants()
    assert sum(map(len, join.finish())) + join.metrics.rows_out >= 30 * 40
    assert join.metrics.matched == 30 * 40


def test_several_pages_for_which_there_is_not_memory_enter_in_part(store: mr.MasterStore) -> None:
    join = join_of(store, "ssij", loads=8)
    assert not list(join.push(pa.record_batch({"key": [100, 100, 300, 500, 700]})))
    budget = join.budget
    others = budget.reserve("others", budget.available - 700)
    while join.metrics.waiting:
        list(join.step())
    join.check_invariants()
    assert 1 in cached(join), "the page that was wanted most"
    assert len(cached(join)) < 4
    others.release()
    assert arrive(join, *range(100, 108)) == 8


@both
def test_a_short_page_enters_with_its_own_rows(store: mr.MasterStore, algorithm: str) -> None:
    join = join_of(store, algorithm, pages=1, loads=8)
    arrive(join, 300, 3_900, 3_901, 3_902)
    if algorithm == "ssij":
        assert cached(join) == [39]
        assert arrive(join, *range(3_900, 3_904)) == 4
    arrive(join, 3_903)
    arrive(join, 3_900, 305, 100)
    assert len(cached(join)) == 1


def test_pages_with_more_wanted_rows_than_are_handled_at_a_time(tmp_path: Path) -> None:
    keys = np.arange(2_000)
    store = mr.MasterStore.build(pa.table({"key": keys, "value": keys}), tmp_path / "s", "key")
    join = mr.SemiStreamJoin(store, "key", algorithm="ssij", memory=100_000, b=200, loads=3, cache_share=0.5)
    list(join.push(pa.record_batch({"key": keys[:600]})))
    while join.metrics.waiting:
        list(join.step())
    join.check_invariants()
    assert cached_pages(join) == [0, 1, 2]
    list(join.push(pa.record_batch({"key": keys[:600]})))
    assert join.metrics.cache_hits == 600


def cached_pages(join: mr.SemiStreamJoin) -> list[int]:
    assert isinstance(join.cache, PageCache)
    pages: list[int] = join.cache.pages.tolist()
    return pages
