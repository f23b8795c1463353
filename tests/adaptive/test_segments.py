"""HMJ and RPJ merge a few segments at a time, and hand over between merges."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.adaptive.reactive.partition_policies import SegmentMerging
from millrace.adaptive.reactive.segments import Merge, Segment, Segments
from millrace.core.errors import ConfigError

pytestmark = pytest.mark.sampled(4)


class _Block:
    def __init__(self, left: int, rows: int) -> None:
        self.left, self.rows = left, rows


def lists(*sides: list[tuple[int, int]]) -> Any:
    return [[_Block(left, rows) for left, rows in side] for side in sides]


def test_blocks_that_left_together_are_a_segment() -> None:
    segments = Segments()
    segments.update(lists([(7, 5), (8, 4), (15, 5)], [(9, 3), (16, 2), (31, 1)]), most=10)
    assert segments.known == [Segment(6, 9, 9, 3, 3), Segment(14, 16, 5, 2, 2), Segment(30, 31, 0, 1, 1)]


def test_no_more_segments_are_known_than_may_be() -> None:
    segments, blocks = Segments(), lists([(1, 1), (3, 1), (5, 1)], [(7, 1)])
    segments.update(blocks, most=2)
    assert [each.until for each in segments.known] == [1, 3]
    segments.merged(Merge(0, 2, 0.0, 2), blocks, [3, 1])
    segments.update(blocks, most=2)
    assert segments.known == [Segment(0, 3, 2, 0, 2), Segment(4, 5, 1, 0, 1)]


def test_the_best_merge_promises_most_for_a_block() -> None:
    segments = Segments()
    segments.known = [Segment(0, 1, 1, 1, 2), Segment(2, 3, 1, 1, 2), Segment(4, 5, 9, 0, 2), Segment(6, 7, 0, 9, 2)]
    assert segments.best(2) == Merge(2, 2, 81.0, 4)
    assert segments.best(4) == Merge(0, 4, 11 * 11 - 2.0, 8)
    segments.known = segments.known[:1]
    assert segments.best(10) is None


@pytest.mark.parametrize("algorithm", ["hmj", "rpj"])
@pytest.mark.parametrize("fan_in", [2, 3, 10])
def test_merges_between_arrivals_give_exactly_the_join(algorithm: str, fan_in: int) -> None:
    random = np.random.default_rng(fan_in)
    left, right = (np.minimum(random.zipf(1.4, 1_500), 400) for _ in range(2))
    join = mr.StreamJoin("k", algorithm, memory=30_000, block=500, fan_in=fan_in)
    found: list[pa.RecordBatch] = []
    for start in range(0, 1_500, 100):
        rows = np.arange(start, start + 100)
        found += join.push("left", pa.record_batch({"k": left[rows], "l": rows}))
        found += join.push("right", pa.record_batch({"k": right[rows], "r": rows}))
        for _ in range(2):
            found += join.idle()
            join.check_invariants()
    assert join.metrics.rows_reactive > 0
    if algorithm == "hmj":
        known = cast(SegmentMerging, join.engine.reactive).segments
        assert max(len(each.known) for each in known) <= 2 * fan_in
    found += join.finish()
    table = pa.Table.from_batches(found)
    ours = np.sort(table["l"].to_numpy() * 3_000 + table["r"].to_numpy())
    i, j = np.nonzero(left[:, None] == right)
    assert np.array_equal(ours, np.sort(i * 3_000 + j))


def test_a_unit_is_a_part_of_a_partition() -> None:
    """With less to merge at a time there are more units, each with fewer results."""
    most = {}
    for fan_in in (2, 1_000):
        random = np.random.default_rng(5)
        join = mr.StreamJoin("k", "hmj", memory=60_000, block=1_000, fan_in=fan_in)
        for start in range(0, 2_500, 100):
            for side in ("left", "right"):
                rows = {"k": random.integers(0, 50, 100), side[0]: np.arange(start, start + 100)}
                for _ in join.push(side, pa.record_batch(rows)):
                    continue
        units = []
        while join.work:
            units.append(sum(len(batch) for batch in join.idle()))
        most[fan_in] = max(units)
        join.close()
    assert most[2] < most[1_000]


@pytest.mark.parametrize("fan_in", [1, 0, True, 2.5, "many"])
def test_a_fan_in_that_is_none(fan_in: Any) -> None:
    with pytest.raises(ConfigError, match="fan_in: expected a whole number of at least 2"):
        mr.StreamJoin("k", "hmj", memory="1MB", fan_in=fan_in)
