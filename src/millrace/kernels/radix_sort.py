"""A stable radix sort of int64 keys, byte by byte; a byte that is the same in all keys is skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel

_SIGN = np.uint64(1 << 63)
_BYTE = np.uint64(255)


@kernel
def stable_order(keys: npt.NDArray[np.int64], order: npt.NDArray[np.int64], spare: npt.NDArray[np.int64]) -> None:
    """Write the positions of the keys in stable ascending order; ``spare`` is scratch space. O(keys * bytes)."""
    count = len(keys)
    counts = np.zeros((8, 256), np.int64)
    for i in range(count):
        bits = np.uint64(keys[i]) ^ _SIGN
        for byte in range(8):
            counts[byte, (bits >> np.uint64(8 * byte)) & _BYTE] += 1
    for i in range(count):
        order[i] = i
    source, target = order, spare
    swapped = False
    for byte in range(8):
        shift = np.uint64(8 * byte)
        if counts[byte, ((np.uint64(keys[0]) ^ _SIGN) >> shift) & _BYTE] == count:
            continue
        start = 0
        for at in range(256):
            held = counts[byte, at]
            counts[byte, at] = start
            start += held
        for i in range(count):
            position = source[i]
            value = ((np.uint64(keys[position]) ^ _SIGN) >> shift) & _BYTE
            target[counts[byte, value]] = position
            counts[byte, value] += 1
        source, target = target, source
        swapped = not swapped
    if swapped:
        for i in range(count):
            order[i] = spare[i]


def order_of(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions of the keys in ascending order; equal keys keep their order.

    >>> order_of(np.array([3, -1, 3, 0])).tolist()
    [1, 3, 0, 2]
    """
    order, spare = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    if len(keys):
        stable_order(keys, order, spare)
    return order


def least_of(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """Return the positions of the ``count`` lowest values in ascending order; equal values keep their order.

    O(values + count log count). NumPy's ``argpartition`` is not used, because it depends on the processor which of
    several equal values it chooses.

    >>> least_of(np.array([3, 1, 2, 1, 2]), 3).tolist(), least_of(np.array([2, 1]), 5).tolist()
    ([1, 3, 2], [1, 0])
    """
    least = np.arange(len(values))
    if 0 < count < len(values):
        limit = np.partition(values, count - 1)[count - 1]
        least = np.concatenate([np.flatnonzero(values < limit), np.flatnonzero(values == limit)])
    least = least[:count]
    return least[np.argsort(values[least], kind="stable")]
