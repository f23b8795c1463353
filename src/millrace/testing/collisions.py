"""Real 64-bit collisions of composite keys, to test that matches are verified by comparing values.

For a fixed seed Spark's ``hashLong`` is a bijection of 64-bit integers, and the hash of ``(a, b)`` is
``hashLong`` of ``b`` seeded with the hash of ``a``. So for every other ``a`` there is exactly one ``b`` that gives
the same hash.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5
_SEED = 42


def hash_long(value: int, seed: int = _SEED) -> int:
    """Return Spark's ``hashLong`` of an integer, as a signed 64-bit number; computed with Python integers.

    >>> hash_long(1)
    -7001672635703045582
    """
    h = ((seed + _P5 + 8) ^ _scramble(value)) & _MASK
    h = (_rotl(h, 27) * _P1 + _P4) & _MASK
    h = ((h ^ (h >> 33)) * _P2) & _MASK
    h = ((h ^ (h >> 29)) * _P3) & _MASK
    return _signed(h ^ (h >> 32))


def colliding_pair(a1: int, b1: int, a2: int) -> int:
    """Return the ``b2`` for which ``xxhash64(a1, b1) == xxhash64(a2, b2)``; all are int64.

    ``hashLong`` combines the seed and the scrambled value by exclusive or; the steps after it are a bijection. So the
    scrambled ``b2`` must compensate for the difference between the two seeds.

    >>> b2 = colliding_pair(1, 2, 3)
    >>> hash_long(b2, seed=hash_long(3)) == hash_long(2, seed=hash_long(1))
    True
    """
    start1 = (hash_long(a1) + _P5 + 8) & _MASK
    start2 = (hash_long(a2) + _P5 + 8) & _MASK
    return _signed(_unscramble(_scramble(b1) ^ start1 ^ start2))


def _scramble(value: int) -> int:
    return (_rotl((value * _P2) & _MASK, 31) * _P1) & _MASK


def _unscramble(scrambled: int) -> int:
    turned = (scrambled * pow(_P1, -1, 2**64)) & _MASK
    return (_rotl(turned, 64 - 31) * pow(_P2, -1, 2**64)) & _MASK


def _rotl(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (64 - bits))) & _MASK


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x
