"""Kernels for joins of sorted keys: ranges that cannot overflow, merging, and who has met whom already."""

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
    """The sum, or the end of int64 that it goes beyond."""
    if b > 0 and a > _LAST - b:
        return _LAST
    if b < 0 and a < _FIRST - b:
        return _FIRST
    return a + b


@kernel
def shift(codes: npt.NDArray[np.int64], by: np.int64, out: npt.NDArray[np.int64]) -> None:
    """Codes moved by a number, stopping at the ends of int64."""
    for i in range(len(codes)):
        out[i] = _added(codes[i], by)


@kernel
def within(
    left: npt.NDArray[np.int64],
    right: npt.NDArray[np.int64],
    low: np.int64,
    high: np.int64,
    out: npt.NDArray[np.bool_],
) -> None:
    """Whether ``low <= right - left <= high``, also where the difference is beyond int64; its ends mean no bound."""
    for i in range(len(left)):
        difference = right[i] - left[i]
        if right[i] >= 0 > left[i] and difference < 0:
            out[i] = high == _LAST
        elif left[i] >= 0 > right[i] and difference >= 0:
            out[i] = low == _FIRST
        else:
            out[i] = low <= difference <= high


@kernel
def merge(
    lows: npt.NDArray[np.int64],
    highs: npt.NDArray[np.int64],
    arrived: npt.NDArray[np.int64],
    left: npt.NDArray[np.int64],
    keys: npt.NDArray[np.int64],
    other_arrived: npt.NDArray[np.int64],
    other_left: npt.NDArray[np.int64],
    cursor: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int32],
    others: npt.NDArray[np.int32],
) -> int:
    """Pairs (i, j) with ``lows[i] <= keys[j] <= highs[i]`` that were never in memory together.

    All keys ascend. Two rows were in memory together if both had arrived before either left. ``cursor`` is (row, where
    its keys begin, next key or -1): start with (0, 0, -1), call again until the first reaches ``len(lows)``. Returns how
    many pairs were written. O(rows + keys + pairs looked at).
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
        arrival = arrived[i]
        departure = left[i]
        high = highs[i]
        while j < len(keys) and keys[j] <= high:
            if max(arrival, other_arrived[j]) >= min(departure, other_left[j]):
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
    """The first place behind ``at`` whose key is not below ``key``."""
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
