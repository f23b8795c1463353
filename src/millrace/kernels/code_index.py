"""An index over key codes in flat arrays: entries in the order of their mixed codes, and the start of each bucket.

Mixing spreads codes evenly, so a bucket is found by the upper bits of the mixed code and holds a few entries::

    starts   ─►  [0, 3, 3, 7, …]                     one number per bucket, and the end
    entries  ─►  (code, row) (code, row) …           equal codes side by side, their rows ascending

A look-up reads one place of each array. The arrays are usually mapped files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel
from millrace.kernels.mixing import mix

ENTRY = np.dtype([("code", np.int64), ("row", np.uint32)])
"""One row of the master: its key code, and its number in the shard."""

_AHEAD = 64
_SHORT = 16


@inlined
def _search(entries: npt.NDArray[Any], first: Any, stop: Any, code: np.int64) -> Any:
    """Return the place of a code's first entry in the bucket ``entries[first:stop]``.

    If the bucket has no entry of this code, the returned place has no meaning.
    """
    if stop - first > _SHORT:
        mixed = mix(code)
        while stop - first > 1:
            middle = (first + stop - 1) // 2
            if mix(entries[middle].code) < mixed:
                first = middle + 1
            else:
                stop = middle + 1
        return first
    while first < stop and entries[first].code != code:
        first += 1
    return first


@kernel
def rows_of(
    starts: npt.NDArray[np.uint32],
    entries: npt.NDArray[Any],
    shift: np.uint64,
    codes: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> np.int64:
    """Write the first row of each code, or -1 if it has none. O(1) each if codes seldom repeat in the index.

    Entries are read ahead, before they are needed. The returned value has no meaning; it keeps the compiler from
    dropping these reads.
    """
    firsts = np.empty(_AHEAD, np.int64)
    stops = np.empty(_AHEAD, np.int64)
    last = len(entries) - 1
    seen = np.int64(0)
    for begin in range(0, len(codes), _AHEAD):
        count = min(_AHEAD, len(codes) - begin)
        for i in range(count):  # the reads of different look-ups overlap; those of one look-up cannot
            bucket = mix(codes[begin + i]) >> shift
            firsts[i] = starts[bucket]
            stops[i] = starts[bucket + np.uint64(1)]
        if last >= 0:
            for i in range(count):
                seen += entries[min(firsts[i], last)].code
        for i in range(count):
            code = codes[begin + i]
            at = _search(entries, firsts[i], stops[i], code)
            if at < stops[i] and entries[at].code == code:
                rows[begin + i] = entries[at].row
            else:
                rows[begin + i] = -1
    return seen


@kernel
def ranges_of(
    starts: npt.NDArray[np.uint32],
    entries: npt.NDArray[Any],
    shift: np.uint64,
    codes: npt.NDArray[np.int64],
    firsts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
) -> None:
    """Write to ``firsts`` the place of each code's first entry, and to ``counts`` how many entries the code has."""
    for i in range(len(codes)):
        code = codes[i]
        bucket = mix(code) >> shift
        stop = np.int64(starts[bucket + np.uint64(1)])
        at = _search(entries, np.int64(starts[bucket]), stop, code)
        end = at
        while end < stop and entries[end].code == code:
            end += 1
        firsts[i] = at
        counts[i] = end - at


@kernel
def rows_in(
    entries: npt.NDArray[Any],
    firsts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    index: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> None:
    """Write the rows of some ranges of entries, one range after the other, and for each row the number of its range."""
    made = 0
    for i in range(len(firsts)):
        for at in range(firsts[i], firsts[i] + counts[i]):
            index[made] = i
            rows[made] = entries[at].row
            made += 1


@kernel
def mixed(codes: npt.NDArray[np.int64], out: npt.NDArray[np.uint64]) -> None:
    """Write the mixed form of each code, in which codes are spread evenly over 64 bits."""
    for i in range(len(codes)):
        out[i] = mix(codes[i])


@kernel
def within(codes: npt.NDArray[np.int64], least: np.uint64, most: np.uint64, rows: npt.NDArray[np.uint32]) -> int:
    """Write the rows with mixed codes from ``least`` to ``most``; return how many match, even if not all fit."""
    found = 0
    for i in range(len(codes)):
        bits = mix(codes[i])
        if least <= bits <= most:
            if found < len(rows):
                rows[found] = i
            found += 1
    return found
