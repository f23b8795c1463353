"""Ranges written out as pairs, in pieces of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millrace.kernels import index_ranges as ranges


@pytest.mark.parametrize("room", [1, 2, 3, 7, 100])
def test_every_place_of_every_range_comes_once(room: int) -> None:
    rng = np.random.default_rng(room)
    ordered = rng.permutation(20).astype(np.int32)
    starts = rng.integers(0, 20, 30)
    stops = np.minimum(20, starts + rng.integers(0, 6, 30))
    cursor = np.array([0, -1], np.int64)
    index, out = np.empty(room, np.int32), np.empty(room, np.int32)
    pairs = []
    while cursor[0] < len(starts):
        made = ranges.expand(starts, stops, ordered, cursor, index, out)
        pairs += list(zip(index[:made].tolist(), out[:made].tolist(), strict=True))
    expected = [(row, int(ordered[place])) for row in range(30) for place in range(starts[row], stops[row])]
    assert pairs == expected


def test_no_rows_and_empty_ranges_give_nothing() -> None:
    index, out = np.empty(4, np.int32), np.empty(4, np.int32)
    for rows in (0, 3):
        cursor, bounds = np.array([0, -1], np.int64), np.full(rows, 2, np.int64)
        assert ranges.expand(bounds, bounds, np.arange(5, dtype=np.int32), cursor, index, out) == 0
        assert cursor[0] == rows


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_places_whose_interval_meets_the_row(dtype: Any) -> None:
    random = np.random.default_rng(1)
    firsts = np.sort(random.integers(-20, 20, 50)).astype(dtype)
    lasts = firsts + 3
    lows = random.integers(-25, 25, 200).astype(dtype)
    highs = lows + random.integers(0, 5, 200).astype(dtype)
    starts = random.integers(0, 50, 200)
    stops = np.minimum(50, starts + random.integers(0, 30, 200))
    begins, ends = starts.copy(), stops.copy()
    ranges.narrow(firsts, lasts, lows, highs, begins, ends)
    for row in range(200):
        places = range(starts[row], stops[row])
        meeting = [place for place in places if firsts[place] <= highs[row] and lows[row] <= lasts[place]]
        assert list(range(begins[row], ends[row])) == meeting
