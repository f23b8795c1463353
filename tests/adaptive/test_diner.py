"""DINER: the rows it gives up when memory is full. Those that stay give results at once, so the choice is the point."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.adaptive.flush.regions import LOWER, UPPER, Regions
from millrace.adaptive.join import StreamJoin

_ROWS = 600


class Memory:
    """A join with room for everything, whose policy is made to flush: what leaves is its choice alone."""

    def __init__(self, left: Any = (), right: Any = (), **options: Any) -> None:
        self.join = StreamJoin("k", memory="10MB", block=1000, suffix="_r", **options)
        self.join.bind(left=_rows("left", []).schema, right=_rows("right", []).schema)
        random = np.random.default_rng(5)
        for side, keys in (("left", left), ("right", right)):
            self.push(side, random.permutation(np.asarray(keys, np.int64)))

    def push(self, side: str, keys: Any) -> None:
        list(self.join.push(side, _rows(side, keys)))

    def keys(self, side: str = "left") -> list[int]:
        """Keys of a side's rows in memory, in order."""
        number = self.join.inputs.index(side)
        return [int(code) for code in self.join.engine.inputs.sides[number].memory.entries()[0]]

    def flush(self, side: str = "left") -> list[int]:
        """Keys of the rows of a side that leave memory at a flush, in order."""
        other = "right" if side == "left" else "left"
        before, unmoved = Counter(self.keys(side)), self.keys(other)
        assert list(self.join.engine.flushing.flush()) == []
        self.join.check_invariants()
        assert self.keys(other) == unmoved, "one side's rows leave at a time"
        return sorted((before - Counter(self.keys(side))).elements())

    @property
    def block(self) -> int:
        """Rows of a block of the left side."""
        return self.join.engine.inputs.sides[0].block_rows

    def restored(self) -> Memory:
        """The same join after a restart."""
        again = Memory()
        again.join = StreamJoin("k", memory="10MB", block=1000, suffix="_r")
        again.join.restore(self.join.snapshot())
        return again


def _rows(side: str, keys: Any) -> pa.RecordBatch:
    values = np.asarray(keys, np.int64)
    return pa.record_batch({"k": values, side[0]: values})


def in_regions(keys: Any = range(0, 2 * _ROWS, 2), **options: Any) -> tuple[Memory, list[int], int]:
    """The left side after its first flush, which cuts its keys into regions; the keys left, and rows of a block."""
    memory = Memory(keys, **options)
    block = memory.block
    assert len(memory.flush()) == block
    return memory, memory.keys(), block


def test_one_block_of_the_side_with_more_rows_leaves() -> None:
    for more, fewer in (("left", "right"), ("right", "left")):
        memory = Memory(**{more: range(_ROWS), fewer: range(1000, 1300)})
        assert len(memory.flush(more)) == memory.block


@pytest.mark.parametrize(("ended", "other"), [("left", "right"), ("right", "left")])
def test_rows_that_nobody_new_can_meet_leave_first(ended: str, other: str) -> None:
    """Rows of an input that has ended still meet arrivals of the other, however many they are."""
    memory = Memory(**{ended: range(_ROWS), other: range(1000, 1100)})
    list(memory.join.end(ended))
    assert len(memory.flush(other)) == memory.block


def test_the_lowest_keys_leave_where_low_keys_have_met_least() -> None:
    memory, held, block = in_regions()
    memory.push("right", held[block:])
    assert memory.flush() == held[:block]


def test_the_highest_keys_leave_where_high_keys_have_met_least() -> None:
    memory, held, block = in_regions()
    memory.push("right", held[:-block])
    assert memory.flush() == held[-block:]


@pytest.mark.parametrize("region", [LOWER, UPPER])
def test_a_region_gives_up_no_rows_of_another(region: int) -> None:
    memory, held, block = in_regions()
    engine: Any = memory.join.engine
    codes, _ = engine.flushing.regions[0].take(engine.inputs.sides[0].memory, region, 3 * block)
    assert sorted(codes.tolist()) == (held[:block] if region == LOWER else held[-block:])


def test_exactly_a_block_leaves_where_keys_are_equal() -> None:
    """The block begins in the middle of rows of one key, and nothing above it stays."""
    memory, held, block = in_regions(np.arange(_ROWS) // 7)
    edge = held[-block]
    assert edge == held[-block - 1]
    memory.push("right", sorted({key for key in held if key < edge}))
    assert memory.flush() == held[-block:]


def test_rows_after_equal_low_keys_are_in_the_upper_region() -> None:
    memory = Memory([7] * 400 + [9] * 3)
    regions = Regions()
    rows = memory.join.engine.inputs.sides[0].memory
    regions.divide(rows, memory.block)
    assert (regions.lower, regions.upper, regions.rows_in(rows)) == (7, 9, [400, 0, 3])
    regions.check_invariants(rows)


def test_rows_of_the_middle_stay_if_they_have_met_and_the_clock_goes_on_where_it_was() -> None:
    memory, held, block = in_regions()
    middle = held[block:-block]
    lonely = middle[::2]
    memory.push("right", [*middle[1::2], *held[:block], *held[-block:]])
    left = [memory.flush() for _ in range(4)]
    places = sorted(lonely.index(key) for each in left for key in each)
    assert len(places) == 4 * block
    gaps = [after - before for before, after in zip(places, places[1:] + places[:1], strict=True)]
    assert sum(gap != 1 for gap in gaps) <= 2, "one run of the rows that have met nobody, over the end perhaps"


def test_rows_of_the_middle_leave_in_a_second_turn_if_all_have_met() -> None:
    memory, held, block = in_regions()
    memory.push("right", held)
    memory.push("right", [*held[:block], *held[-block:]])
    list(memory.join.end("right"))  # it has more rows now, and the left ones are to leave
    left = memory.flush()
    assert len(left) == block
    assert set(left) <= set(held[block:-block])


def test_matches_count_per_row_of_a_region() -> None:
    """The middle has met more often than each end, and is so much larger that one of its rows has met least."""
    memory, held, block = in_regions()
    memory.push("right", [*held[: 4 * block], *held[-block:]])
    left = memory.flush()
    assert len(left) == block
    assert set(left) <= set(held[block:-block])


def test_matches_of_rows_that_come_in_count_for_their_own_side() -> None:
    memory, held, block = in_regions()
    partners = [key + 1 for key in held[block:]]  # of nobody yet
    memory.push("right", partners)
    memory.push("left", partners)
    assert memory.flush() == held[:block]


def test_a_match_counts_for_the_key_of_the_row_that_was_met() -> None:
    """In a band the other row's key may lie in another region."""
    memory, held, block = in_regions(band=(5000, 5000))
    memory.push("right", [key + 5000 for key in held[block:]])
    assert memory.flush() == held[:block]


def test_matches_before_a_flush_do_not_count_any_more() -> None:
    memory, held, block = in_regions()
    memory.push("right", held[:-block])
    assert memory.flush() == held[-block:]
    held = memory.keys()
    memory.push("right", [held[2 * block], held[-1]])
    list(memory.join.end("right"))
    assert memory.flush() == held[:block]


def test_where_a_region_has_too_few_rows_the_next_worst_goes_on() -> None:
    block = in_regions()[2]
    memory, held, block = in_regions(range(3 * block + 5))
    middle, upper = held[block:-block], held[-block:]
    assert len(middle) == 5
    memory.push("right", [*held[:block], *upper])
    memory.push("right", held[: block // 2])
    list(memory.join.end("right"))
    assert memory.flush() == [*middle, *upper[5:]]


@pytest.mark.parametrize("met", ["lower", "middle", "upper", "all but a few"])
def test_the_same_rows_leave_after_a_restart(met: str) -> None:
    memory, held, block = in_regions()
    regions = {"lower": held[:block], "middle": held[block:-block], "upper": held[-block:]}
    memory.push("right", regions.get(met, held[::2]))
    again = memory.restored()
    for _ in range(3):
        assert again.flush() == memory.flush()


@pytest.mark.parametrize(("first", "second"), [("left", "right"), ("right", "left")])
def test_blocks_that_share_only_the_key_at_their_ends_are_joined(first: str, second: str) -> None:
    """The keys of a block on disk end where those of the other side's begin."""
    memory = Memory()
    block = memory.block
    memory.push(first, range(block))
    assert memory.flush(first) == [*range(block)]
    memory.push(second, range(block - 1, 2 * block - 1))
    assert memory.flush(second) == [*range(block - 1, 2 * block - 1)]
    assert len(memory.join.engine.inputs.sides[0].disk.partitions[0]) == 1
    out: list[pa.RecordBatch] = []
    while memory.join.work:
        out += memory.join.idle()
    assert [row["k"] for batch in [*out, *memory.join.finish()] for row in batch.to_pylist()] == [block - 1]
