"""The queue of frequent pages, page by page: when a page is due, who else gets a load, and what the queue costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.datasets import zipf_stream
from millrace.semistream.access.page_queue import PageQueue

PAGE = 4
ENTRY_BYTES = 20  # page, due, frequency


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    """Key 10 · p + i is row i of page p."""
    keys = [10 * page + row for page in range(30) for row in range(PAGE)]
    return mr.MasterStore.build(pa.table({"key": keys, "value": keys}), tmp_path_factory.mktemp("s") / "s", "key")


class Example:
    """A join whose steps are looked at one by one."""

    def __init__(self, store: mr.MasterStore, **options: Any) -> None:
        usual = {"memory": "64kB", "b": PAGE, "loads": 1, "decay": 0, "guard": 1_000}
        self.join = mr.SemiStreamJoin(store, "key", algorithm="hybridjoin-pq", **{**usual, **options})

    def step(self, *arriving: int) -> list[int]:
        """Let keys arrive and make a step; return the pages of the tuples that leave, one for each tuple."""
        if arriving:
            assert not list(self.join.push(pa.record_batch({"key": np.array(arriving, np.int64)})))
        out = [key // 10 for batch in self.join.step() for key in batch.column("key").to_pylist()]
        self.join.check_invariants()
        return sorted(out)

    @property
    def queue(self) -> PageQueue:
        assert isinstance(self.join.access, PageQueue)
        return self.join.access


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_a_page_that_is_due_and_has_the_oldest_tuple_is_loaded_once(seed: int, tmp_path: Path) -> None:
    """Loaded twice in a step, it would give its tuples their rows twice."""
    keys = np.random.default_rng(3).permutation(20_000)
    store = mr.MasterStore.build(pa.table({"key": keys, "value": keys * 2}), tmp_path / "s", "key")
    join = mr.SemiStreamJoin(store, "key", algorithm="hybridjoin-pq", memory="100kB", b=50, page_threshold=2)
    stream = list(zipf_stream(20_000, 1.0, batch_rows=1_000, batches=20, seed=seed))
    numbered = [
        pa.record_batch({"key": batch.column("key").to_numpy() % 20_000, "seq": np.arange(i * 1_000, (i + 1) * 1_000)})
        for i, batch in enumerate(stream)
    ]
    out = pa.Table.from_batches(join.run(numbered))
    assert np.sort(out.column("seq").to_numpy()).tolist() == list(range(20_000))
    assert (out.column("value").to_numpy() == 2 * out.column("key").to_numpy()).all()


def hot_steps(example: Example, count: int, *hot: int) -> Iterator[list[int]]:
    for _ in range(count):
        yield sorted(set(example.step(*hot)))


def test_every_so_many_loads_one_is_for_the_oldest_tuple(store: mr.MasterStore) -> None:
    """A page that is due again and again may not keep the tuple of a cold page waiting for ever."""
    example = Example(store, page_threshold=2, guard=3)
    for page in range(20, 26):  # loads for the oldest tuple owe it none later, and are not owed to others either
        assert example.step(10 * page) == [page]
    assert example.step(0, 1, 2, 3) == [0] * 4
    assert len(example.queue.queue) == 1
    assert example.step(50, 70, 90, 0, 1, 2) == [0] * 3
    steps = list(hot_steps(example, 8, 0, 1, 2))
    assert steps == [[0], [5], [0], [0], [7], [0], [0], [9]], "two loads for the queue, then one for the oldest tuple"


def test_of_several_loads_one_is_for_the_oldest_tuple(store: mr.MasterStore) -> None:
    example = Example(store, page_threshold=2, guard=4, loads=2)
    assert example.step(0, 10, 1, 11) == [0, 0, 1, 1]
    assert len(example.queue.queue) == 2
    assert example.step(50, 0, 1, 2, 10, 11, 12) == [0, 0, 0, 5]
    assert example.step(60, 61, 70, 71, 80, 0, 1, 10, 11) == [1] * 5, "the oldest tuple waits for the page that is due"
    assert example.step() == [0, 0, 6, 6]


def test_nobody_waits_longer_than_promised(store: mr.MasterStore) -> None:
    example = Example(store, page_threshold=1, guard=6)
    example.step(0)
    example.step(50, 0)
    assert list(hot_steps(example, 5, 0)) == [[0]] * 4 + [[5]]
    assert example.join.metrics.waits.most == 6
    assert example.join.k >= 6


def test_a_page_enters_with_as_many_tuples_as_the_threshold(store: mr.MasterStore) -> None:
    example = Example(store, page_threshold=3)
    example.step(0, 1)
    assert len(example.queue.queue) == 0
    example.step(10, 11, 12)
    assert len(example.queue.queue) == 1
    assert example.join.metrics.parts["page queue"] == ENTRY_BYTES


def test_a_page_is_due_when_enough_tuples_should_wait_for_it(store: mr.MasterStore) -> None:
    """With 4 of 8 arrivals, and 4 that should wait for it, it is due 8 arrivals later, not before."""
    example = Example(store, page_threshold=4)
    cold = [10 * page for page in range(10, 18)]
    example.step(0, 1, 2, 3)
    assert example.step(*cold, 0, 1, 2, 3) == [0] * 4
    assert example.step(200, 201, 0, 1) == [10]
    assert example.step(210, 211, 2) == [11], "7 have come since"
    assert example.step(3) == [0] * 4, "8 have come"
    assert example.step(0) == [12], "now it is not due for a while"


def test_the_longest_due_page_comes_first(store: mr.MasterStore) -> None:
    example = Example(store, page_threshold=2, loads=2)
    cold = [10 * page for page in range(10, 16)]
    assert example.step(50, 20, 51, 52, 21, *cold) == [2, 2, 5, 5, 5]
    assert example.step(50, 20, 51, 21, *[10 * page for page in range(16, 22)]) == [5, 5, 10]
    assert example.step() == [2, 2, 11]


def test_what_is_due_belongs_to_its_page(store: mr.MasterStore) -> None:
    """A rare page that enters behind a frequent one of a higher number does not take over when that is due."""
    example = Example(store, page_threshold=2)
    cold = [10 * page for page in range(10, 20)]
    example.step(10, 11, *cold)
    assert example.step(250, 251, 252, 253) == [10]
    for page in range(11, 17):
        assert example.step() == [page]
    assert example.step() == [17]
    assert example.step() == [18]
    assert example.step() == [19]
    assert example.step() == [25] * 4
    assert len(example.queue.queue) == 2


def test_a_page_that_nobody_wants_any_more_leaves_the_queue(store: mr.MasterStore) -> None:
    example = Example(store, page_threshold=2)
    example.step(0, 1, 2, 3)
    assert len(example.queue.queue) == 1
    for page in range(10, 20):
        example.step(10 * page)
    assert len(example.queue.queue) == 0
    assert example.join.metrics.parts["page queue"] == 0


def test_a_page_that_came_for_its_oldest_tuple_before_it_was_due_stays(store: mr.MasterStore) -> None:
    example = Example(store, page_threshold=4, guard=1)
    example.step(0, 1, 2, 3)
    assert example.step(0) == [0]
    assert len(example.queue.queue) == 1


def test_frequency_is_a_gliding_average(store: mr.MasterStore) -> None:
    """After 8, then 1 with a decay of a half, it stays for a threshold of 8; after another 1 it goes."""
    example = Example(store, page_threshold=8, decay=0.5)
    example.step(*[0] * 8)
    assert example.step(0) == [0]
    assert len(example.queue.queue) == 1
    assert example.step(0) == [0]
    assert len(example.queue.queue) == 0


def test_pages_enter_as_far_as_there_is_memory(store: mr.MasterStore) -> None:
    example = Example(store, page_threshold=2, loads=5)
    budget = example.join.budget
    everyone = [10 * page for page in range(30)]
    example.step(*everyone)
    while example.step():  # what was reserved ahead for so many is given back with the first step of a period
        continue
    keys = [10 * page + row for row in range(2) for page in range(5)]
    assert not list(example.join.push(pa.record_batch({"key": keys})))
    others = budget.reserve("others", budget.available - 2 * ENTRY_BYTES - 1)
    assert len(example.step()) == 10
    assert len(example.queue.queue) == 2, "half of the five, for which there is memory"
    assert others.nbytes + example.join.metrics.parts["page queue"] <= budget.total


def test_a_step_loads_no_more_pages_than_the_buffer_has_room_for(store: mr.MasterStore) -> None:
    example = Example(store, page_threshold=1, loads=3)
    for _ in range(6):
        before = example.join.metrics.probes
        example.step(*(10 * page for page in range(10)))
        assert example.join.metrics.probes - before <= 3 * PAGE
    assert len(example.queue.queue) >= 6


def test_the_threshold_is_measured_over_three_rooms_of_tuples(store: mr.MasterStore) -> None:
    example = Example(store, page_threshold=None, w=8, times_average=1.0)
    example.join.bind(pa.schema([("key", pa.int64())]))
    came = 0
    while not example.queue.threshold:
        assert came <= 4 * 8
        example.step(*range(4), *range(10, 14))
        example.step()
        came += 8
    assert came == 3 * 8
    assert len(example.queue.queue) > 0
    assert example.queue.threshold == pytest.approx(4, rel=0.3), "tuples that leave with a page"
