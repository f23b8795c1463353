"""The queue of the waiting room: what it costs, and which tuple it names next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr

MASTER = pa.table({"key": list(range(40)), "value": list(range(40))})


def test_the_queue_is_charged_for_every_step_at_which_tuples_came_and_given_back(tmp_path: Path) -> None:
    store = mr.MasterStore.build(MASTER, tmp_path / "s", "key")
    join = mr.SemiStreamJoin(store, "key", "anti", algorithm="meshjoin", memory="60kB", b=1, w=1)
    list(join.push(pa.record_batch({"key": np.arange(100, 131)})))
    assert join.metrics.waiting == 31
    assert join.metrics.parts["queue"] >= 31 * 200, "the room keeps a record of each step at which tuples came"
    out = sum(map(len, join.finish()))
    assert out == 31
    assert join.metrics.parts["queue"] <= 300
    join.check_invariants()


def test_no_more_tuples_than_w_meet_the_same_load_first(tmp_path: Path) -> None:
    """Also where they come one at a time, between two steps."""
    store = mr.MasterStore.build(MASTER, tmp_path / "s", "key")
    for algorithm in ("meshjoin", "hybridjoin"):
        join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory="60kB", b=10, w=3)
        list(join.push(pa.record_batch({"key": [0]})))
        list(join.push(pa.record_batch({"key": [0]})))
        for _ in range(2):
            list(join.push(pa.record_batch({"key": [39]})))
        assert join.metrics.steps == 1, f"{algorithm}: the fourth tuple came after a step"


@pytest.mark.parametrize(("position", "first"), [(0, [39]), (0.5, [21, 20]), (1, [0, 1])])
def test_the_page_at_the_position_of_the_queue_is_loaded(tmp_path: Path, position: float, first: list[int]) -> None:
    store = mr.MasterStore.build(MASTER, tmp_path / "s", "key")
    join = mr.SemiStreamJoin(
        store, "key", algorithm="hybridjoin-l", memory="60kB", b=4, loads=1, position=position, guard=0
    )
    list(join.push(pa.record_batch({"key": [0, 1, 9, 21, 20, 12, 39]})))
    out = [row["key"] for batch in join.step() for row in batch.to_pylist()]
    assert sorted(out) == sorted(first)
    for _ in range(10):
        if not join.metrics.waiting:
            break
        list(join.step())
    assert not join.metrics.waiting, "a step loads a page while a tuple waits for one"


@pytest.mark.parametrize(("position", "loaded"), [(0, [[24], [33]]), (1, [[0], [12]])])
def test_positions_count_through_tuples_that_came_at_different_steps(
    tmp_path: Path, position: float, loaded: list[list[int]]
) -> None:
    store = mr.MasterStore.build(MASTER, tmp_path / "s", "key")
    join = mr.SemiStreamJoin(
        store, "key", algorithm="hybridjoin-l", memory="60kB", b=4, loads=1, position=position, guard=0
    )
    got = []
    for keys in ([0, 12, 20, 24], [39, 33]):
        list(join.push(pa.record_batch({"key": keys})))
        got.append([row["key"] for batch in join.step() for row in batch.to_pylist()])
    assert got == loaded, "one page a step, that of the tuple at the position"
