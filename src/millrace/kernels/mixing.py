"""Mixing of key codes, and the place of a mixed code in a hash table."""

from __future__ import annotations

import numpy as np

from millrace.core.jit import inlined

_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


@inlined
def mix(code: np.int64) -> np.uint64:
    """Return a code spread over 64 bits, so that consecutive codes are far apart. Different codes stay different."""
    bits = np.uint64(code) * _FIRST
    bits ^= bits >> _HALF
    return bits * _SECOND


@inlined
def place(bits: np.uint64, places: int) -> int:
    """Return a place from 0 to ``places - 1``, chosen by the upper half of ``bits``; ``places`` is less than 2**32."""
    return int(np.int64(((bits >> _HALF) * np.uint64(places)) >> _HALF))
