"""Kernels for joins in which each row matches a range of an ordered array: they narrow the ranges and write pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel


@kernel
def expand(
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    ordered: npt.NDArray[np.int32],
    cursor: npt.NDArray[np.int64],
    index: npt.NDArray[np.int32],
    out: npt.NDArray[np.int32],
) -> int:
    """Write pairs (row, ``ordered[place]``) for the places in each row's range; return how many.

    A range goes from ``starts[row]`` up to, not including, ``stops[row]``. ``cursor`` is (row, place to continue with
    or -1): start with (0, -1), and call again until the row reaches ``len(starts)``. O(rows + pairs).
    """
    limit = len(out)
    made = 0
    row = cursor[0]
    place = cursor[1]
    while row < len(starts):
        if place < 0:
            place = starts[row]
        while place < stops[row] and made < limit:
            index[made] = row
            out[made] = ordered[place]
            made += 1
            place += 1
        if place < stops[row]:
            break
        place = np.int64(-1)
        row += 1
    cursor[0] = row
    cursor[1] = place
    return made


@kernel
def narrow(
    firsts: npt.NDArray[Any],
    lasts: npt.NDArray[Any],
    lows: npt.NDArray[Any],
    highs: npt.NDArray[Any],
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
) -> None:
    """Narrow every row's range, ``starts`` to ``stops``, to the places whose interval overlaps the row's interval.

    The intervals of places go from ``firsts`` to ``lasts``, those of rows from ``lows`` to ``highs``, including
    both ends. Within a range, ``firsts`` and ``lasts`` must ascend. O(rows log places).
    """
    for row in range(len(starts)):
        start, stop = starts[row], stops[row]
        while start < stop:
            middle = (start + stop) >> 1
            if lasts[middle] < lows[row]:
                start = middle + 1
            else:
                stop = middle
        end = stops[row]
        starts[row] = start
        while start < end:
            middle = (start + end) >> 1
            if firsts[middle] <= highs[row]:
                start = middle + 1
            else:
                end = middle
        stops[row] = start
