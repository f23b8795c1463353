"""xxhash64 against the reference implementation and against constants printed by Spark 4.3."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kernels.hashing import SEED, hash_big_decimals, hash_bytes, hash_ints, hash_longs, pmod
from millrace.testing.collisions import colliding_pair, hash_long

NO_NULLS = np.zeros(0, np.uint8)
MAX = 10**38 - 1
quick = settings(max_examples=50, deadline=None)
int64s = st.integers(-(2**63), 2**63 - 1)


def seeds(rows: int) -> npt.NDArray[np.int64]:
    return np.full(rows, SEED, np.int64)


def longs(values: list[int]) -> npt.NDArray[np.int64]:
    hashes = seeds(len(values))
    hash_longs(np.array(values, np.int64), NO_NULLS, hashes)
    return hashes


def texts(values: list[bytes], hashes: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
    if hashes is None:
        hashes = seeds(len(values))
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    hash_bytes(offsets, np.frombuffer(b"".join(values), np.uint8), NO_NULLS, hashes)
    return hashes


def decimals(values: list[int]) -> npt.NDArray[np.int64]:
    raw = b"".join(value.to_bytes(16, "little", signed=True) for value in values)
    hashes = seeds(len(values))
    hash_big_decimals(np.frombuffer(raw, np.int64), NO_NULLS, hashes)
    return hashes


def reference(value: bytes, seed: int = SEED) -> int:
    unsigned = xxhash.xxh64_intdigest(value, seed % 2**64)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def java_bytes(value: int) -> bytes:
    """Java's ``BigInteger.toByteArray``."""
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


# What Spark 4.3 answers to `select xxhash64(...)`.
SPARK_INTS = {
    0: 3614696996920510707,
    1: -6698625589789238999,
    -1: 2017008487422258757,
    -128: 4160238337661960656,
    2147483647: 1508894993788531228,
    -2147483648: 2073849959933241805,
}
SPARK_LONGS = {
    0: -5252525462095825812,
    1: -7001672635703045582,
    -1: 3858142552250413010,
    125: 2287599437899865974,
    -125: -7646224701292229936,
    9223372036854775807: -3246596055638297850,
    -9223372036854775808: -8619748838626508300,
}
SPARK_TEXTS = {
    b"": -7444071767201028348,
    b"a": -8582455328737087284,
    b"Spark": -4294468057691064905,
    b"abcdefgh": 2470326616177429180,
    b"0123456789abcdefghij": -8703596712677511462,
    "Zürich 東京 🚲".encode(): 540775255921553598,
    b"xyz" * 40: 1346875773834910209,
    b"\x00\xff\x80": 7869338589911211550,
}
SPARK_DECIMALS = {
    0: -8959994473701255385,
    -1: -4006032525457443936,
    127: -5998106174972408993,
    128: 6715097930120473301,
    -128: -7898411661632158123,
    -129: -6459515886037897956,
    2**63: 2657851292443253618,
    MAX: -47190729175993179,
    -MAX: -2254039905620870768,
}
SPARK_INT_1_LONG_2_TEXT_X = -3342340946539169663


def test_ints_are_spark_s() -> None:
    hashes = seeds(len(SPARK_INTS))
    hash_ints(np.array(list(SPARK_INTS), np.int32), NO_NULLS, hashes)
    assert hashes.tolist() == list(SPARK_INTS.values())


def test_longs_are_spark_s() -> None:
    assert longs(list(SPARK_LONGS)).tolist() == list(SPARK_LONGS.values())


def test_bytes_are_spark_s() -> None:
    assert texts(list(SPARK_TEXTS)).tolist() == list(SPARK_TEXTS.values())


def test_big_decimals_are_spark_s() -> None:
    assert decimals(list(SPARK_DECIMALS)).tolist() == list(SPARK_DECIMALS.values())


def test_columns_are_chained() -> None:
    hashes = seeds(1)
    hash_ints(np.array([1], np.int32), NO_NULLS, hashes)
    hash_longs(np.array([2]), NO_NULLS, hashes)
    assert texts([b"x"], hashes).tolist() == [SPARK_INT_1_LONG_2_TEXT_X]


@quick
@given(st.lists(st.binary(max_size=100), max_size=10), int64s)
def test_bytes_are_xxh64(values: list[bytes], seed: int) -> None:
    hashes = np.full(len(values), seed, np.int64)
    assert texts(values, hashes).tolist() == [reference(value, seed) for value in values]


@pytest.mark.parametrize("length", range(70))
def test_every_tail_length(length: int) -> None:
    value = bytes((7 * at + 130) % 256 for at in range(length))
    assert texts([b"pad", value, b""])[1] == reference(value)


@quick
@given(st.lists(int64s, max_size=10), int64s)
def test_longs_are_xxh64_of_eight_bytes(values: list[int], seed: int) -> None:
    hashes = np.full(len(values), seed, np.int64)
    hash_longs(np.array(values, np.int64), NO_NULLS, hashes)
    expected = [reference(value.to_bytes(8, "little", signed=True), seed) for value in values]
    assert hashes.tolist() == expected
    assert hashes.tolist() == [hash_long(value, seed) for value in values]


@quick
@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=10), int64s)
def test_ints_are_xxh64_of_four_bytes(values: list[int], seed: int) -> None:
    hashes = np.full(len(values), seed, np.int64)
    hash_ints(np.array(values, np.int32), NO_NULLS, hashes)
    assert hashes.tolist() == [reference(value.to_bytes(4, "little", signed=True), seed) for value in values]


@quick
@given(st.lists(st.integers(-MAX, MAX) | st.integers(-(2**17), 2**17), max_size=10))
def test_big_decimals_are_xxh64_of_java_bytes(values: list[int]) -> None:
    assert decimals(values).tolist() == [reference(java_bytes(value)) for value in values]


def test_big_decimals_at_every_byte_border() -> None:
    borders = [sign * 2**bits + step for bits in range(126) for sign in (1, -1) for step in (-1, 0, 1)]
    assert decimals(borders).tolist() == [reference(java_bytes(value)) for value in borders]


def test_a_null_leaves_the_hash_as_it_is() -> None:
    valid = np.array([1, 0], np.uint8)
    hashes = np.array([SEED, 17], np.int64)
    hash_ints(np.zeros(2, np.int32), valid, hashes)
    hash_longs(np.zeros(2, np.int64), valid, hashes)
    hash_bytes(np.array([0, 1, 2]), np.zeros(2, np.uint8), valid, hashes)
    hash_big_decimals(np.zeros(4, np.int64), valid, hashes)
    assert hashes[0] != SEED
    assert hashes[1] == 17


def test_nothing_to_hash() -> None:
    assert longs([]).size == 0
    assert texts([]).size == 0
    assert pmod(seeds(0), 3).size == 0


@quick
@given(st.lists(int64s, max_size=20), st.integers(1, 2**31 - 1))
def test_pmod_is_never_negative(values: list[int], n: int) -> None:
    shards = pmod(np.array(values, np.int64), n)
    assert shards.dtype == np.int32
    assert shards.tolist() == [value % n for value in values]


@quick
@given(int64s, int64s, int64s)
def test_collisions_of_pairs_can_be_made(a1: int, b1: int, a2: int) -> None:
    b2 = colliding_pair(a1, b1, a2)
    hashes = longs([a1, a2])
    hash_longs(np.array([b1, b2]), NO_NULLS, hashes)
    assert hashes[0] == hashes[1]
    assert colliding_pair(a2, b2, a1) == b1
