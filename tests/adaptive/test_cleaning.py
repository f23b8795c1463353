"""Which blocks clean-up sorts, and where it cuts the keys into ranges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from millrace.adaptive.join import StreamJoin
from millrace.adaptive.memory.key_ordered_rows import FIRST, LAST
from millrace.adaptive.reactive.pair_clean_up import _ranges, _reached


def test_ranges_cover_all_codes_once_and_have_room_for_what_reaches_into_them() -> None:
    lows = np.arange(0, 1000, 10)
    spans = np.stack([lows, lows + 14, np.full(100, 5), np.arange(100), np.ones(100, np.int64)], axis=1)
    ranges = _ranges(spans, 50)
    assert ranges[0][0] == FIRST
    assert ranges[-1][1] == LAST
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    for low, high in ranges:
        assert spans[(spans[:, 1] >= low) & (spans[:, 0] <= high), 2].sum() <= 50
    assert _reached(spans, ranges).max() == 2


@pytest.mark.parametrize("spread", [1, 7919])
def test_little_memory_gives_all_pairs_whether_or_not_blocks_reach_far(spread: int) -> None:
    keys = np.arange(6000) * spread % 6000
    pair = StreamJoin(on="key", memory=60_000)
    out = []
    for start in range(0, 6000, 500):
        for side, name, of in (("left", "l", keys), ("right", "r", keys[::-1])):
            part = of[start : start + 500]
            out += [*pair.push(side, pa.record_batch({"key": part, name: part * 2}))]
    out += [*pair.finish()]
    assert pair.metrics.bytes_written > 60_000
    table = pa.Table.from_batches(out).sort_by("key")
    assert table["key"].to_pylist() == list(range(6000))
    assert table["l"].equals(table["r"])


@pytest.mark.parametrize("how", ["inner", "full"])
def test_blocks_that_reach_into_several_ranges_are_read_about_once(how: str) -> None:
    random = np.random.default_rng(3)
    left, right = (random.integers(0, 40_000, 40_000) for _ in range(2))
    pair = StreamJoin(on="key", how=how, memory=400_000)
    out = 0
    for start in range(0, 40_000, 1000):
        for side, name, keys in (("left", "l", left), ("right", "r", right)):
            part = keys[start : start + 1000]
            out += sum(len(batch) for batch in pair.push(side, pa.record_batch({"key": part, name: part})))
    out += sum(len(batch) for batch in pair.finish())
    ours, theirs = np.bincount(left, minlength=40_000), np.bincount(right, minlength=40_000)
    alone = int(ours[theirs == 0].sum() + theirs[ours == 0].sum())
    assert out == int((ours * theirs).sum()) + (alone if how == "full" else 0)
    if how == "inner":  # else pages of the directory, which have the rows' bits, come and go as well
        assert pair.metrics.bytes_read < 1.5 * pair.metrics.bytes_written
