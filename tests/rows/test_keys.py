"""Codes, hashes, shards and equality of keys of every supported type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import ConfigError, SchemaError
from millrace.rows.key_codes import KeyCoder
from millrace.testing.collisions import colliding_pair

quick = settings(max_examples=40, deadline=None)

EXACT: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, None, 127, 0],
    pa.int16(): [-(2**15), None, 2**15 - 1, 0],
    pa.int32(): [-(2**31), None, 2**31 - 1, 0],
    pa.int64(): [-(2**63), None, 2**63 - 1, 0],
    pa.uint8(): [255, None, 1, 0],
    pa.uint16(): [2**16 - 1, None, 1, 0],
    pa.uint32(): [2**32 - 1, None, 1, 0],
    pa.bool_(): [True, None, False, True],
    pa.date32(): [-1, None, 20_000, 0],
    pa.timestamp("us"): [-1, None, 2**57, 0],
    pa.timestamp("us", "Asia/Tokyo"): [-1, None, 2**57, 0],
    pa.timestamp("ns"): [-1, None, 2**62, 0],
}
HASHED: dict[pa.DataType, list[Any]] = {
    pa.decimal128(38, 2): [Decimal("-1.25"), None, Decimal("9" * 30), Decimal(0)],
    pa.string(): ["", None, "Zürich 東京", "x" * 100],
    pa.large_string(): ["", None, "Zürich 東京", "x" * 100],
    pa.string_view(): ["", None, "Zürich 東京", "x" * 100],
    pa.binary(): [b"", None, b"\x00\xff", b"x" * 100],
    pa.large_binary(): [b"", None, b"\x00\xff", b"x" * 100],
    pa.binary_view(): [b"", None, b"\x00\xff", b"x" * 100],
    pa.binary(3): [b"abc", None, b"\x00\xff\x80", b"xyz"],
}
EVERY = {**EXACT, pa.decimal128(18, 4): [Decimal("-1.25"), None, Decimal("9.75"), Decimal(0)], **HASHED}
every_type = pytest.mark.parametrize("type_", EVERY, ids=str)


def xxh64(value: bytes, seed: int = 42) -> int:
    unsigned = xxhash.xxh64_intdigest(value, seed % 2**64)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def as_int(value: int, width: int) -> int:
    return xxh64(value.to_bytes(width, "little", signed=True))


def signs_of(coder: KeyCoder, columns: Sequence[pa.Array]) -> tuple[list[int | None], list[int], list[int]]:
    """Everything a coder says of the columns; None where a row has no code."""
    codes, valid = coder.codes(columns)
    known = [True] * len(codes) if valid is None else valid.tolist()
    visible = [code if has else None for code, has in zip(codes.tolist(), known, strict=True)]
    return visible, coder.hashes(columns).tolist(), coder.shards(columns, 5).tolist()


@pytest.mark.parametrize("type_", EXACT, ids=str)
def test_the_code_of_an_integer_like_column_is_its_value(type_: pa.DataType) -> None:
    coder = KeyCoder([type_])
    codes, valid = coder.codes([pa.array(EXACT[type_], type_)])
    assert coder.exact
    assert codes.dtype == np.int64
    assert valid is not None
    assert valid.tolist() == [True, False, True, True]
    assert codes[valid].tolist() == [int(value) for value in EXACT[type_] if value is not None]


@pytest.mark.parametrize("type_", HASHED, ids=str)
def test_the_code_of_any_other_column_is_its_hash(type_: pa.DataType) -> None:
    coder = KeyCoder([type_])
    column = pa.array(HASHED[type_], type_)
    codes, valid = coder.codes([column])
    assert not coder.exact
    assert valid is not None
    assert valid.tolist() == [True, False, True, True]
    assert codes.tolist() == coder.hashes([column]).tolist()


def test_small_decimals_are_coded_unscaled() -> None:
    column = pa.array([Decimal("1.25"), Decimal("-99999999999999.9999")], pa.decimal128(18, 4))
    coder = KeyCoder([column.type])
    codes, valid = coder.codes([column])
    assert coder.exact
    assert valid is None
    assert codes.tolist() == [12500, -(10**18 - 1)]


@pytest.mark.parametrize(("unit", "factor"), [("s", 10**6), ("ms", 1000)])
def test_coarse_timestamps_become_microseconds(unit: str, factor: int) -> None:
    coder = KeyCoder([pa.timestamp(unit)], ["at"])
    column = pa.array([3, -3, None], pa.timestamp(unit))
    codes, _ = coder.codes([column])
    assert codes[:2].tolist() == [3 * factor, -3 * factor]
    assert coder.hashes([column])[0] == as_int(3 * factor, 8)
    with pytest.raises(SchemaError, match=r"'at'.*64 bits as microseconds; got 9223372036854775807"):
        coder.codes([pa.array([2**63 - 1], pa.timestamp(unit))])


def test_values_under_nulls_are_not_looked_at() -> None:
    bitmap = pa.py_buffer(b"\x01")
    values = pa.py_buffer(np.array([1, 2**63 - 1]).tobytes())
    column = pa.Array.from_buffers(pa.timestamp("s"), 2, [bitmap, values])
    codes, _ = KeyCoder([column.type]).codes([column])
    assert codes[0] == 10**6


def test_nanoseconds_are_hashed_as_floored_microseconds() -> None:
    hashes = KeyCoder([pa.timestamp("ns")]).hashes([pa.array([1999, -1], pa.timestamp("ns"))])
    assert hashes.tolist() == [as_int(1, 8), as_int(-1, 8)]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([200], pa.uint8()), as_int(200, 4)),
        (pa.array([60_000], pa.uint16()), as_int(60_000, 4)),
        (pa.array([2**32 - 1], pa.uint32()), as_int(2**32 - 1, 8)),
        (pa.array([-7], pa.int8()), as_int(-7, 4)),
        (pa.array([-7], pa.int16()), as_int(-7, 4)),
        (pa.array([True]), as_int(1, 4)),
        (pa.array([date(1969, 12, 31)]), as_int(-1, 4)),
        (pa.array([Decimal("-1.25")], pa.decimal128(10, 2)), as_int(-125, 8)),
        (pa.array([Decimal("-1.25")], pa.decimal128(19, 2)), xxh64(b"\x83")),
        (pa.array([b"abc"], pa.binary(3)), xxh64(b"abc")),
        (pa.array(["é"], pa.string_view()), xxh64("é".encode())),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_column_is_hashed_by_its_width(column: pa.Array, expected: int) -> None:
    assert KeyCoder([column.type]).hashes([column]).tolist() == [expected]


def test_a_plain_int64_column_is_not_copied() -> None:
    column = pa.array(range(100))
    codes, valid = KeyCoder([pa.int64()]).codes([column.slice(10, 50)])
    assert valid is None
    assert codes.tolist() == list(range(10, 60))
    assert codes.__array_interface__["data"][0] == column.buffers()[1].address + 80


@every_type
def test_codes_are_read_only_and_contiguous(type_: pa.DataType) -> None:
    codes, valid = KeyCoder([type_]).codes([pa.array(EVERY[type_], type_)])
    assert codes.flags.c_contiguous
    assert not codes.flags.writeable
    assert valid is not None
    assert not valid.flags.writeable


@every_type
def test_slices_say_what_the_whole_says(type_: pa.DataType) -> None:
    column = pa.array(EVERY[type_] * 5, type_)
    coder = KeyCoder([type_])
    whole = signs_of(coder, [column])
    for start, length in [(0, 20), (1, 3), (2, 2), (7, 9), (9, 8), (19, 1), (20, 0)]:
        part = signs_of(coder, [column.slice(start, length)])
        assert part == tuple(signs[start : start + length] for signs in whole)


@every_type
@pytest.mark.parametrize("ordered", [False, True])
def test_a_dictionary_is_only_an_encoding(type_: pa.DataType, ordered: bool) -> None:
    indices = pa.array([3, 0, None, 2, 1, 0], pa.int8())  # the dictionary holds a null of its own at 1
    encoded = pa.DictionaryArray.from_arrays(indices, pa.array(EVERY[type_], type_), ordered=ordered)
    decoded = pa.array([None if at is None else EVERY[type_][at] for at in indices.to_pylist()], type_)
    expected = signs_of(KeyCoder([type_]), [decoded])
    assert signs_of(KeyCoder([encoded.type]), [encoded]) == expected
    assert signs_of(KeyCoder([type_]), [encoded]) == expected
    assert signs_of(KeyCoder([type_]), [encoded.slice(1, 4)])[1] == expected[1][1:5]


@every_type
def test_no_rows(type_: pa.DataType) -> None:
    coder = KeyCoder([type_, type_])
    for empty in (pa.array([], type_), pa.array(EVERY[type_], type_).slice(4)):
        assert signs_of(coder, [empty, empty]) == ([], [], [])
        assert coder.equal([empty, empty], [empty, empty]).tolist() == []
        assert KeyCoder([type_]).codes([empty])[0].size == 0


@every_type
def test_only_nulls(type_: pa.DataType) -> None:
    coder = KeyCoder([type_])
    codes, valid = coder.codes([pa.nulls(3, type_)])
    assert codes.size == 3
    assert valid is not None
    assert valid.tolist() == [False] * 3
    assert coder.hashes([pa.nulls(3, type_)]).tolist() == [42] * 3


def test_missing_buffers() -> None:
    empties = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(bytes(12)), pa.py_buffer(b"")])
    assert KeyCoder([pa.string()]).hashes([empties]).tolist() == [xxh64(b"")] * 2
    for type_ in (pa.int64(), pa.string(), pa.binary(3), pa.decimal128(38, 2)):
        data = [pa.py_buffer(b"")] if type_ == pa.string() else []
        column = pa.Array.from_buffers(type_, 0, [None, None, *data])
        assert signs_of(KeyCoder([type_]), [column]) == ([], [], [])


@quick
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(max_size=40),
            st.none() | st.integers(-(2**31), 2**31 - 1),
        ),
        max_size=12,
    ),
    st.integers(0, 12),
)
def test_composite_keys_are_chained(rows: list[tuple[Any, ...]], start: int) -> None:
    types = [pa.int64(), pa.string(), pa.int32()]
    columns = [pa.array([row[at] for row in rows], type_).slice(start) for at, type_ in enumerate(types)]
    coder = KeyCoder(types)
    encode: list[Callable[[Any], bytes]] = [
        lambda value: value.to_bytes(8, "little", signed=True),
        str.encode,
        lambda value: value.to_bytes(4, "little", signed=True),
    ]
    expected = []
    for row in rows[start:]:
        h = 42
        for value, to_bytes in zip(row, encode, strict=True):
            h = h if value is None else xxh64(to_bytes(value), h)
        expected.append(h)
    codes, valid = coder.codes(columns)
    complete = [None not in row for row in rows[start:]]
    assert not coder.exact
    assert codes.tolist() == coder.hashes(columns).tolist() == expected
    assert (complete if valid is None else valid.tolist()) == complete
    assert (valid is None) == all(complete)
    assert coder.shards(columns, 7).tolist() == [h % 7 for h in expected]
    assert coder.equal(columns, columns).tolist() == complete


@every_type
def test_equality_is_of_values(type_: pa.DataType) -> None:
    values = EVERY[type_]
    left = pa.array([values[0], values[0], values[0], None], type_)
    right = pa.array([values[0], values[2], None, None], type_)
    assert KeyCoder([type_]).equal([left], [right]).tolist() == [True, False, False, False]


def test_colliding_keys_share_a_code_but_are_not_equal() -> None:
    a1, b1, a2 = 11, 22, 33
    b2 = colliding_pair(a1, b1, a2)
    coder = KeyCoder([pa.int64(), pa.int64()])
    one = [pa.array([a1]), pa.array([b1])]
    other = [pa.array([a2]), pa.array([b2])]
    assert coder.codes(one)[0].tolist() == coder.codes(other)[0].tolist()
    assert coder.equal(one, other).tolist() == [False]
    assert coder.equal(one, one).tolist() == [True]


def test_encodings_and_time_zones_may_differ_between_sides() -> None:
    texts = ["a", "b", None]
    coder = KeyCoder([pa.string()])
    plain = pa.array(texts)
    for other in (
        pa.array(texts, pa.large_string()),
        pa.array(texts, pa.string_view()),
        plain.dictionary_encode(),
    ):
        assert coder.hashes([other]).tolist() == coder.hashes([plain]).tolist()
        assert coder.equal([plain], [other]).tolist() == [True, True, False]
    moments = KeyCoder([pa.timestamp("us", "UTC")])
    utc = pa.array([5], pa.timestamp("us", "UTC"))
    assert moments.equal([utc], [pa.array([5], pa.timestamp("us", "Asia/Tokyo"))]).tolist() == [True]


@pytest.mark.parametrize(
    "type_",
    [
        pa.float32(),
        pa.float64(),
        pa.uint64(),
        pa.decimal256(40, 2),
        pa.null(),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.date64(),
        pa.time64("us"),
        pa.duration("us"),
        pa.dictionary(pa.int8(), pa.float64()),
    ],
    ids=str,
)
def test_an_unsupported_type_is_named(type_: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"column 'price': expected one of int8, .*dictionary") as caught:
        KeyCoder([pa.int64(), type_], ["id", "price"])
    assert f"got {type_}" in str(caught.value)


def test_columns_that_do_not_fit_are_refused() -> None:
    coder = KeyCoder([pa.int64(), pa.string()], ["id", "country"])
    longs, texts = pa.array([1, 2]), pa.array(["a", "b"])
    with pytest.raises(SchemaError, match="at least one column"):
        KeyCoder([])
    with pytest.raises(SchemaError, match="expected 1 names"):
        KeyCoder([pa.int64()], ["a", "b"])
    with pytest.raises(SchemaError, match="expected 2 columns"):
        coder.codes([longs])
    with pytest.raises(SchemaError, match="'id': expected int64; got int32"):
        coder.codes([longs.cast(pa.int32()), texts])
    with pytest.raises(SchemaError, match="'country': expected 2 rows, as in 'id'; got 1"):
        coder.codes([longs, texts.slice(1)])
    with pytest.raises(SchemaError, match="2 on the left, 1 on the right"):
        coder.equal([longs, texts], [longs.slice(1), texts.slice(1)])
    with pytest.raises(SchemaError, match="'at'"):
        KeyCoder([pa.timestamp("us")], ["at"]).codes([pa.array([1], pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize("n", [0, -1, 2**31])
def test_the_number_of_shards_is_checked(n: int) -> None:
    with pytest.raises(ConfigError, match=f"shards: .*got {n}"):
        KeyCoder([pa.int64()]).shards([pa.array([1])], n)
