"""Kernels for joins of sorted keys: ranges that cannot overflow, merging, and which rows have met already."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel
from millrace.kernels.mixing import mix

_FIRST = np.int64(-(2**63))
_LAST = np.int64(2**63 - 1)


@kernel
def mix_all(codes: npt.NDArray[np.int64], out: npt.NDArray[np.int64]) -> None:
    """Spread codes over all of int64; equal ones stay equal, different ones different."""
    for i in range(len(codes)):
        out[i] = np.int64(mix(codes[i]))


@inlined
def _added(a: np.int64, b: np.int64) -> np.int64:
    """Return the sum, or the end of int64 that it goes beyond."""
    if b > 0 and a > _LAST - b:
        return _LAST
    if b < 0 and a < _FIRST - b:
        return _FIRST
    return a + b


@kernel
def shift(codes: npt.NDArray[np.int64], by: np.int64, out: npt.NDArray[np.int64]) -> None:
    """Move codes by a number, stopping at the ends of int64."""
    for i in range(len(codes)):
        out[i] = _added(codes[i], by)


@kernel
def within(
    left: npt.NDArray[np.int64],
    right: npt.NDArray[np.int64],
    low: np.int64,
    high: np.int64,
    no_low: bool,
    no_high: bool,
    out: npt.NDArray[np.bool_],
) -> None:
    """Return whether ``low <= right - left <= high``, also where that is beyond int64; either bound may be none."""
    for i in range(len(left)):
        if left[i] < 0 and right[i] > _LAST + left[i]:
            out[i] = no_high
        elif left[i] > 0 and right[i] < _FIRST + left[i]:
            out[i] = no_low
        else:
            difference = right[i] - left[i]
            out[i] = (no_low or low <= difference) and (no_high or difference <= high)


@inlined
def _probed(history: npt.NDArray[np.int64], gone: np.int64, arrival: np.int64, departure: np.int64) -> bool:
    """Return whether a row that left memory at ``gone`` was loaded again and met one that was in memory then."""
    for i in range(len(history)):
        if gone <= history[i, 0] and arrival < history[i, 1] < departure:
            return True
    return False


@kernel
def merge(
    lows: npt.NDArray[np.int64],
    highs: npt.NDArray[np.int64],
    rows_stamps: npt.NDArray[np.int64],
    keys: npt.NDArray[np.int64],
    keys_stamps: npt.NDArray[np.int64],
    corners: npt.NDArray[np.int64],
    rows_history: npt.NDArray[np.int64],
    keys_history: npt.NDArray[np.int64],
    cursor: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int32],
    others: npt.NDArray[np.int32],
) -> int:
    """Return pairs (i, j) with ``lows[i] <= keys[j] <= highs[i]`` that have not met before. All keys ascend.

    Two rows have met if both had arrived before either left memory; if both had left by one of the ``corners``, one
    moment for each side, and after its third, for then they were joined on disk; or if one was loaded
    again and met the other at a time in the history.
    Stamps are (arrival, departure) as two rows of an array; a history has (rows that had left by then, time).

    ``cursor`` is (row, where its keys begin, next key or -1): start with (0, 0, -1), call again until the first reaches
    ``len(lows)``. Returns how many pairs were written. O(rows * log + pairs looked at).
    """
    limit = len(rows)
    made = 0
    i = cursor[0]
    begin = cursor[1]
    j = cursor[2]
    while i < len(lows):
        if j < 0:
            if begin < len(keys) and keys[begin] < lows[i]:
                begin = _gallop(keys, begin, lows[i])
            j = begin
        arrival = rows_stamps[0, i]
        departure = rows_stamps[1, i]
        high = highs[i]
        while j < len(keys) and keys[j] <= high:
            came = keys_stamps[0, j]
            left = keys_stamps[1, j]
            met = max(arrival, came) < min(departure, left)
            for c in range(len(corners)):
                met |= departure <= corners[c, 0] and left <= corners[c, 1] and min(departure, left) > corners[c, 2]
            if not met and len(rows_history):
                met = _probed(rows_history, departure, came, left)
            if not met and len(keys_history):
                met = _probed(keys_history, left, arrival, departure)
            if not met:
                if made == limit:
                    cursor[0] = i
                    cursor[1] = begin
                    cursor[2] = j
                    return made
                rows[made] = i
                others[made] = j
                made += 1
            j += 1
        j = np.int64(-1)
        i += 1
    cursor[0] = i
    return made


@inlined
def _gallop(keys: npt.NDArray[np.int64], at: np.int64, key: np.int64) -> np.int64:
    """Return the first place behind ``at`` with a key of at least ``key``."""
    step = np.int64(1)
    while at + step < len(keys) and keys[at + step] < key:
        at += step
        step *= 2
    high = min(at + step, np.int64(len(keys)))
    while high - at > 1:
        middle = (at + high) >> 1
        if keys[middle] < key:
            at = middle
        else:
            high = middle
    return high


@kernel
def set_bits(bits: npt.NDArray[np.uint8], places: npt.NDArray[np.int32], mask: np.uint8) -> None:
    """Set bits at places, which may repeat."""
    for i in range(len(places)):
        bits[places[i]] |= mask


@kernel
def set_fresh(
    bits: npt.NDArray[np.uint8], places: npt.NDArray[np.int32], mask: np.uint8, fresh: npt.NDArray[np.int64]
) -> int:
    """Set a bit at places; write the positions of those that did not have it, each once; return how many."""
    found = 0
    for i in range(len(places)):
        if bits[places[i]] & mask == 0:
            bits[places[i]] |= mask
            fresh[found] = i
            found += 1
    return found


@kernel
def count_regions(keys: npt.NDArray[np.int64], lower: np.int64, upper: np.int64, counts: npt.NDArray[np.int64]) -> None:
    """Add up keys that are at most ``lower``, between, and at least ``upper``."""
    for i in range(len(keys)):
        if keys[i] <= lower:
            counts[0] += 1
        elif keys[i] >= upper:
            counts[2] += 1
        else:
            counts[1] += 1
