"""Kernels for joins of sorted keys: range tests without overflow, and a merge that skips pairs joined before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel
from millrace.kernels.mixing import mix

_FIRST = np.int64(-(2**63))
_LAST = np.int64(2**63 - 1)


@kernel
def mix_all(codes: npt.NDArray[np.int64], out: npt.NDArray[np.int64]) -> None:
    """Write the mixed codes, which are spread over all of int64. Equal codes stay equal, different codes different."""
    for i in range(len(codes)):
        out[i] = np.int64(mix(codes[i]))


@inlined
def _added(a: np.int64, b: np.int64) -> np.int64:
    """Return the sum, limited to the range of int64."""
    if b > 0 and a > _LAST - b:
        return _LAST
    if b < 0 and a < _FIRST - b:
        return _FIRST
    return a + b


@kernel
def shift(codes: npt.NDArray[np.int64], by: np.int64, out: npt.NDArray[np.int64]) -> None:
    """Write each code plus ``by``, limited to the range of int64."""
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
    """Write whether ``low <= right - left <= high`` for each pair, even if the difference does not fit in int64.

    With ``no_low`` there is no lower bound, with ``no_high`` no upper bound.
    """
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
    """Return whether a row that left memory at ``gone`` was read from disk while another row was in memory.

    The other row was in memory from ``arrival`` to ``departure``. For ``history``, see :func:`merge`.
    """
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
    """Write pairs (i, j) with ``lows[i] <= keys[j] <= highs[i]`` that were not joined before; return how many.

    Keys and bounds ascend. Index 0 of the stamps holds the times when rows arrived in memory, index 1 the times when
    they left it. A pair was joined before

    - in memory, if both rows had arrived before either left;
    - on disk, if for one of the ``corners`` (a, b, c) row i left memory by time a, row j by time b, and both after c;
    - or when one of them was read from disk while the other was in memory. An entry (t, u) of a history says that the
      rows that had left memory by time t were read at time u.

    ``cursor`` is (i, first j for this i, next j or -1): start with (0, 0, -1), and call again until its first number
    reaches ``len(lows)``. O(rows * log + pairs looked at).
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
    """Return the first place after ``at`` with a key of at least ``key``, or ``len(keys)``."""
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
    """Set the bits of ``mask`` at some places, which may repeat."""
    for i in range(len(places)):
        bits[places[i]] |= mask


@kernel
def set_fresh(
    bits: npt.NDArray[np.uint8], places: npt.NDArray[np.int32], mask: np.uint8, fresh: npt.NDArray[np.int64]
) -> int:
    """Set the bit ``mask`` at some places, and write to ``fresh`` the indexes of places where it was not set before.

    An index i stands for ``places[i]``. Returns how many indexes were written.
    """
    found = 0
    for i in range(len(places)):
        if bits[places[i]] & mask == 0:
            bits[places[i]] |= mask
            fresh[found] = i
            found += 1
    return found


@kernel
def count_regions(keys: npt.NDArray[np.int64], lower: np.int64, upper: np.int64, counts: npt.NDArray[np.int64]) -> None:
    """Add to ``counts`` the numbers of keys up to ``lower``, between the bounds, and from ``upper`` on."""
    for i in range(len(keys)):
        if keys[i] <= lower:
            counts[0] += 1
        elif keys[i] >= upper:
            counts[2] += 1
        else:
            counts[1] += 1
