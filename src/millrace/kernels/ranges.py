"""Kernels for ranges of an ordered array: one range per row, written out as pairs."""

from __future__ import annotations

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
    """Pairs (row, ``ordered[place]``) for the places from a row's start up to its stop; return how many.

    ``cursor`` is (row, place to go on with or -1): start with (0, -1), call again until the first reaches
    ``len(starts)``. O(rows + pairs).
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
