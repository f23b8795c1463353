"""Kernels that copy values, bits and strings between buffers by position.

Positions are made unsigned where they are used. A signed position might be negative and count from the end; testing
that each time costs more than the copy itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel


@kernel
def items(values: npt.NDArray[Any], positions: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Write ``out[:] = values[positions]``, outside the interpreter lock."""
    for i in range(len(positions)):
        out[i] = values[np.uint64(positions[i])]


@kernel
def paged_items(
    values: npt.NDArray[Any],
    bases: npt.NDArray[np.int64],
    pages: npt.NDArray[np.int64],
    inside: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
) -> None:
    """Write ``out[:] = values[bases[pages] + inside]``: items that are given by page and place in the page."""
    for i in range(len(pages)):
        out[i] = values[np.uint64(bases[np.uint64(pages[i])] + inside[i])]


@kernel
def wide_items(
    values: npt.NDArray[np.uint64],
    columns: npt.NDArray[np.int64],
    positions: npt.NDArray[Any],
    out: npt.NDArray[np.uint64],
) -> None:
    """Write ``out[c] = values[columns[c], positions]`` for several columns of 8 bytes."""
    for c in range(len(columns)):
        column = columns[c]
        for i in range(len(positions)):
            out[c, i] = values[column, np.uint64(positions[i])]


@kernel
def wide_paged_items(
    values: npt.NDArray[np.uint64],
    bases: npt.NDArray[np.int64],
    pages: npt.NDArray[np.int64],
    inside: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint64],
) -> None:
    """Write ``out[c] = values[bases[c, pages] + inside]`` for several columns of 8 bytes."""
    for c in range(len(bases)):
        for i in range(len(pages)):
            out[c, i] = values[np.uint64(bases[c, np.uint64(pages[i])] + inside[i])]


@kernel
def copy_runs(
    values: npt.NDArray[np.int64],
    firsts: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    out: npt.NDArray[np.int64],
) -> None:
    """Copy runs of values: run ``i`` begins at ``values[firsts[i]]`` and fills ``out[starts[i]:starts[i + 1]]``."""
    for i in range(len(firsts)):
        first = np.uint64(firsts[i])
        start = np.uint64(starts[i])
        for j in range(np.uint64(starts[i + 1] - starts[i])):
            out[start + j] = values[first + j]


@kernel
def bits_at(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> None:
    """Write bits as 0 or 1: at position p, bit ``p % 8`` of byte ``p // 8``; at a negative position, write 1."""
    for i in range(len(positions)):
        at = positions[i]
        out[i] = 1 if at < 0 else (data[at >> 3] >> (at & 7)) & 1


@kernel
def copy_bytes(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    out: npt.NDArray[np.uint8],
    at: int,
) -> int:
    """Copy pieces of ``data``, one after the other, to ``out`` from ``at`` on; return where the last one ends."""
    for i in range(len(starts)):
        start = np.uint64(starts[i])
        place = np.uint64(at)
        for j in range(np.uint64(lengths[i])):
            out[place + j] = data[start + j]
        at += lengths[i]
    return at


@kernel
def slide_down(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    order: npt.NDArray[np.int64],
) -> int:
    """Move pieces to the beginning of ``data``, one after the other, and update ``starts``; return where the last ends.

    ``order`` lists the pieces by ascending start.
    """
    end = 0
    for i in range(len(order)):
        piece = order[i]
        start = starts[piece]
        if start != end:
            for j in range(lengths[piece]):
                data[end + j] = data[start + j]
            starts[piece] = end
        end += lengths[piece]
    return end
