"""Records, in which the values of a row lie side by side: filling them, and taking columns out of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel


@kernel
def wide_items(
    words: npt.NDArray[np.uint64],
    width: int,
    columns: npt.NDArray[np.int64],
    rows: npt.NDArray[Any],
    out: npt.NDArray[np.uint64],
) -> None:
    """``out[c] = words[rows * width + columns[c]]`` for several columns of 8 bytes, row by row."""
    for i in range(len(rows)):
        base = np.uint64(rows[i]) * np.uint64(width)
        for c in range(len(columns)):
            out[c, i] = words[base + np.uint64(columns[c])]


@kernel
def lay_texts(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    block: npt.NDArray[np.uint8],
    at: int,
) -> None:
    """Copy the piece of every row to its place in the row's record."""
    for i in range(len(starts)):
        for j in range(lengths[i]):
            block[i, at + j] = data[starts[i] + j]
