"""One bit per hashed code, asked before the hash table: most master rows match nothing and stop here.

A bit says "perhaps". Bits are only ever set, so removed codes leave stale bits (a wasted look-up, never a lost match)
until the owner clears and refills the filter. Cost of :func:`candidates`: O(codes), one load each, no branch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel
from millrace.kernels.mixing import mix

_WORD = np.uint64(6)
_IN_WORD = np.uint64(63)
_ONE = np.uint64(1)


def filter_words(codes: int) -> int:
    """Length of a filter for about ``codes`` codes: a power of two of 64-bit words, 8 to 16 bits a code."""
    return int(max(1, 1 << max(0, (codes * 8 - 1).bit_length() - 6)))


@kernel
def fill(bits: npt.NDArray[np.uint64], codes: npt.NDArray[np.int64]) -> None:
    """Set the bits of all ``codes``."""
    shift = np.uint64(64 - 6)
    words = len(bits)
    while words > 1:
        words >>= 1
        shift -= _ONE
    for i in range(len(codes)):
        bit = mix(codes[i]) >> shift
        bits[bit >> _WORD] |= _ONE << (bit & _IN_WORD)


@kernel
def candidates(
    bits: npt.NDArray[np.uint64], codes: npt.NDArray[np.int64], out: npt.NDArray[np.int32]
) -> int:
    """Write the positions of the codes that may be present to ``out``; return how many."""
    shift = np.uint64(64 - 6)
    words = len(bits)
    while words > 1:
        words >>= 1
        shift -= _ONE
    found = 0
    for i in range(len(codes)):
        bit = mix(codes[i]) >> shift
        out[found] = i
        found += np.int64((bits[bit >> _WORD] >> (bit & _IN_WORD)) & _ONE)
    return found
