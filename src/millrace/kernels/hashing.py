"""xxhash64 as Spark SQL computes it, column by column.

The hash of a key is :data:`SEED` at first. Then a kernel is called for each column: it takes ``hashes``, the
hash of every row so far, and replaces it by the hash that includes the column. A null does not change the
hash of its row.

    hashes = [42, 42, …] ─► hash_longs(first column) ─► hash_bytes(second column) ─► xxhash64(first, second)

``valid`` is one byte per row, 0 for a null; an empty array means that no row is null.

Notes
-----
All arithmetic is on ``uint64``, constants and shift counts included: numba, like NumPy, turns an operation
between ``int64`` and ``uint64`` into ``float64``.

References
----------
Spark: ``org.apache.spark.sql.catalyst.expressions.XXH64`` and ``XxHash64``.
xxHash: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel

SEED = 42
"""The seed of Spark SQL's ``xxhash64``."""

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_P1_PLUS_P2 = np.uint64((0x9E3779B185EBCA87 + 0xC2B2AE3D27D4EB4F) % 2**64)
_P5_PLUS_4 = np.uint64(0x27D4EB2F165667C5 + 4)
_P5_PLUS_8 = np.uint64(0x27D4EB2F165667C5 + 8)

_BITS = np.uint64(64)
_LOW32 = np.uint64(0xFFFFFFFF)
_U8 = np.uint64(8)
_U16 = np.uint64(16)
_U24 = np.uint64(24)
_U32 = np.uint64(32)
_R1 = np.uint64(1)
_R7 = np.uint64(7)
_R11 = np.uint64(11)
_R12 = np.uint64(12)
_R18 = np.uint64(18)
_R23 = np.uint64(23)
_R27 = np.uint64(27)
_R29 = np.uint64(29)
_R30 = np.uint64(30)
_R31 = np.uint64(31)
_R33 = np.uint64(33)
_U56 = np.uint64(56)
_ZERO = np.uint64(0)
_HALF_BYTE = np.uint64(0x80)
_ALL_ONES = np.uint64(2**64 - 1)
_BYTE = np.uint64(0xFF)


@inlined
def _rotl(x: np.uint64, bits: np.uint64) -> np.uint64:
    return (x << bits) | (x >> (_BITS - bits))


@inlined
def _avalanche(h: np.uint64) -> np.uint64:
    h = (h ^ (h >> _R33)) * _P2
    h = (h ^ (h >> _R29)) * _P3
    return h ^ (h >> _U32)


@inlined
def _round(acc: np.uint64, word: np.uint64) -> np.uint64:
    return _rotl(acc + word * _P2, _R31) * _P1


@inlined
def _absorb_word(h: np.uint64, word: np.uint64) -> np.uint64:
    return _rotl(h ^ _round(_ZERO, word), _R27) * _P1 + _P4


@inlined
def _absorb_half(h: np.uint64, half: np.uint64) -> np.uint64:
    return _rotl(h ^ (half * _P1), _R23) * _P2 + _P3


@inlined
def _absorb_byte(h: np.uint64, byte: np.uint64) -> np.uint64:
    return _rotl(h ^ (byte * _P5), _R11) * _P1


@inlined
def _merge_lane(h: np.uint64, lane: np.uint64) -> np.uint64:
    return (h ^ _round(_ZERO, lane)) * _P1 + _P4


@inlined
def _half_at(data: npt.NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Return the four bytes from ``at`` on as a little-endian number. LLVM compiles this to one load."""
    return (
        np.uint64(data[at])
        | (np.uint64(data[at + np.uint64(1)]) << _U8)
        | (np.uint64(data[at + np.uint64(2)]) << _U16)
        | (np.uint64(data[at + np.uint64(3)]) << _U24)
    )


@inlined
def _word_at(data: npt.NDArray[np.uint8], at: np.uint64) -> np.uint64:
    return _half_at(data, at) | (_half_at(data, at + np.uint64(4)) << _U32)


@kernel
def _hash_span(data: npt.NDArray[np.uint8], start: np.uint64, end: np.uint64, seed: np.uint64) -> np.uint64:
    """Return the xxhash64 of ``data[start:end]``."""
    at = start
    if end - start >= _U32:
        lane1 = seed + _P1_PLUS_P2
        lane2 = seed + _P2
        lane3 = seed
        lane4 = seed - _P1
        while at + _U32 <= end:
            lane1 = _round(lane1, _word_at(data, at))
            lane2 = _round(lane2, _word_at(data, at + _U8))
            lane3 = _round(lane3, _word_at(data, at + _U16))
            lane4 = _round(lane4, _word_at(data, at + _U24))
            at += _U32
        h = _rotl(lane1, _R1) + _rotl(lane2, _R7) + _rotl(lane3, _R12) + _rotl(lane4, _R18)
        h = _merge_lane(h, lane1)
        h = _merge_lane(h, lane2)
        h = _merge_lane(h, lane3)
        h = _merge_lane(h, lane4)
    else:
        h = seed + _P5
    h += end - start
    while at + _U8 <= end:
        h = _absorb_word(h, _word_at(data, at))
        at += _U8
    if at + np.uint64(4) <= end:
        h = _absorb_half(h, _half_at(data, at))
        at += np.uint64(4)
    while at < end:
        h = _absorb_byte(h, np.uint64(data[at]))
        at += np.uint64(1)
    return _avalanche(h)


@kernel
def hash_ints(values: npt.NDArray[np.int32], valid: npt.NDArray[np.uint8], hashes: npt.NDArray[np.int64]) -> None:
    """Hash tinyint, smallint, int, boolean and date columns as Spark's ``hashInt`` does."""
    all_valid = valid.size == 0
    for row in range(hashes.size):
        if all_valid or valid[row] != 0:
            h = np.uint64(hashes[row]) + _P5_PLUS_4
            hashes[row] = np.int64(_avalanche(_absorb_half(h, np.uint64(values[row]) & _LOW32)))


@kernel
def hash_longs(values: npt.NDArray[np.int64], valid: npt.NDArray[np.uint8], hashes: npt.NDArray[np.int64]) -> None:
    """Hash bigint, timestamp (microseconds) and decimal (unscaled, to 18 digits) as Spark's ``hashLong`` does."""
    all_valid = valid.size == 0
    for row in range(hashes.size):
        if all_valid or valid[row] != 0:
            h = np.uint64(hashes[row]) + _P5_PLUS_8
            hashes[row] = np.int64(_avalanche(_absorb_word(h, np.uint64(values[row]))))


@kernel
def hash_bytes(
    offsets: npt.NDArray[np.int32] | npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
    valid: npt.NDArray[np.uint8],
    hashes: npt.NDArray[np.int64],
) -> None:
    """Hash strings and binaries as Spark's ``hashUnsafeBytes`` does; row i is ``data[offsets[i]:offsets[i + 1]]``."""
    all_valid = valid.size == 0
    for row in range(hashes.size):
        if all_valid or valid[row] != 0:
            start = np.uint64(offsets[row])
            end = np.uint64(offsets[row + 1])
            hashes[row] = np.int64(_hash_span(data, start, end, np.uint64(hashes[row])))


@kernel
def hash_big_decimals(
    words: npt.NDArray[np.int64], valid: npt.NDArray[np.uint8], hashes: npt.NDArray[np.int64]
) -> None:
    """Hash decimal columns of more than 18 digits.

    Row i is the 128-bit integer with the low half ``words[2 * i]`` and the high half ``words[2 * i + 1]``.
    Spark hashes its shortest big-endian two's complement form (Java's ``BigInteger.toByteArray``).
    """
    all_valid = valid.size == 0
    scratch = np.empty(16, dtype=np.uint8)
    for row in range(hashes.size):
        if all_valid or valid[row] != 0:
            low = np.uint64(words[2 * row])
            high = np.uint64(words[2 * row + 1])
            sign = _ZERO
            if words[2 * row + 1] < 0:
                sign = _ALL_ONES
            # Count the bytes up to the last one that does not just repeat the sign bit.
            rest_low = low ^ sign
            rest_high = high ^ sign
            length = 1
            while rest_high != _ZERO or rest_low >= _HALF_BYTE:
                rest_low = (rest_low >> _U8) | (rest_high << _U56)
                rest_high = rest_high >> _U8
                length += 1
            for at in range(length - 1, -1, -1):
                scratch[at] = np.uint8(low & _BYTE)
                low = (low >> _U8) | (high << _U56)
                high = high >> _U8
            hashes[row] = np.int64(_hash_span(scratch, _ZERO, np.uint64(length), np.uint64(hashes[row])))


@kernel
def pmod(hashes: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int32]:
    """Return Spark's ``pmod(hash, n)`` for n > 0: the remainder that is never negative."""
    remainders = np.empty(hashes.size, dtype=np.int32)
    for row in range(hashes.size):
        remainders[row] = np.int32(hashes[row] % n)
    return remainders
