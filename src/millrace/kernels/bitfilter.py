"""A Bloom filter with two bits per code. It is tested before the hash table, since most master rows match nothing.

A code whose bits are set may be in the table; no other code is. Bits are never cleared one by one. So removed codes
leave stale bits, which cost a look-up but cause no match, until the owner clears and refills the filter. The first bit
is tested for a whole block of codes without a branch, the second only for the codes that are left, just before the
look-up.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel
from millrace.kernels.mixing import mix

_WORD = np.uint64(6)
_IN_WORD = np.uint64(63)
_ONE = np.uint64(1)
_OTHER = np.uint64(0xA0761D6478BD642F)


def filter_words(codes: int) -> int:
    """Return how many 64-bit words a filter for ``codes`` codes has: a power of two with 8 to 16 bits per code."""
    return int(max(1, 1 << max(0, (codes * 8 - 1).bit_length() - 6)))


@inlined
def shift_of(bits: npt.NDArray[np.uint64]) -> np.uint64:
    """Return by how many bits a mixed code must be shifted right to give the place of its bit in the filter."""
    shift = np.uint64(64 - 6)
    words = len(bits)
    while words > 1:
        words >>= 1
        shift -= _ONE
    return shift


@inlined
def is_set(bits: npt.NDArray[np.uint64], bit: np.uint64) -> np.uint64:
    flag: np.uint64 = (bits[bit >> _WORD] >> (bit & _IN_WORD)) & _ONE
    return flag


@inlined
def second(bits: npt.NDArray[np.uint64], shift: np.uint64, code: np.int64) -> np.uint64:
    """Return 1 if the second of a code's two bits in the filter is set, else 0."""
    return is_set(bits, (mix(code) * _OTHER) >> shift)


@kernel
def fill(bits: npt.NDArray[np.uint64], codes: npt.NDArray[np.int64]) -> None:
    """Set both bits of each code in the filter."""
    shift = shift_of(bits)
    for i in range(len(codes)):
        mixed = mix(codes[i])
        bit = mixed >> shift
        bits[bit >> _WORD] |= _ONE << (bit & _IN_WORD)
        bit = (mixed * _OTHER) >> shift
        bits[bit >> _WORD] |= _ONE << (bit & _IN_WORD)


@kernel
def candidates(bits: npt.NDArray[np.uint64], codes: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> int:
    """Write to ``out`` the positions of the codes whose first bit in the filter is set; return how many there are.

    It takes O(codes) time and has no branches.
    """
    shift = shift_of(bits)
    found = 0
    for i in range(len(codes)):
        out[found] = i
        found += int(np.int64(is_set(bits, mix(codes[i]) >> shift)))
    return found
