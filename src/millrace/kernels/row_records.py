"""Kernels that fill records and read columns from them. A record holds the values of a row side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel

_AHEAD = 64


@kernel
def wide_items(
    words: npt.NDArray[np.uint64],
    width: int,
    columns: npt.NDArray[np.int64],
    rows: npt.NDArray[Any],
    out: npt.NDArray[np.uint64],
) -> np.uint64:
    """Write ``out[c] = words[rows * width + columns[c]]`` for several columns of 8 bytes, row by row.

    Records are read ahead, before they are needed, so that the memory reads of many rows overlap. The returned
    value has no meaning; it keeps the compiler from dropping these reads.
    """
    seen = np.uint64(0)
    last = np.uint64(width - 1)
    for begin in range(0, len(rows), _AHEAD):
        stop = min(len(rows), begin + _AHEAD)
        for i in range(begin, stop):
            base = np.uint64(rows[i]) * np.uint64(width)
            seen += words[base] + words[base + last]
        for i in range(begin, stop):
            base = np.uint64(rows[i]) * np.uint64(width)
            for c in range(len(columns)):
                out[c, i] = words[base + np.uint64(columns[c])]
    return seen


@kernel
def lay_texts(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    block: npt.NDArray[np.uint8],
    at: int,
) -> None:
    """Copy a string from ``data`` into the record of each row in ``block``, from byte ``at`` of the record on."""
    for i in range(len(starts)):
        for j in range(lengths[i]):
            block[i, at + j] = data[starts[i] + j]
