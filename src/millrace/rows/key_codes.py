"""Key codes: one int64 per row, whatever the types of the key's columns.

If the key is one integer-like column, the code is the value itself. The code of any other key is its 64-bit hash, the
same as Spark SQL's ``xxhash64``; two keys may then share a code, so matches have to be verified with
:meth:`KeyCoder.equal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import ConfigError, SchemaError
from millrace.kernels.hashing import SEED, hash_big_decimals, hash_bytes, hash_ints, hash_longs, pmod

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)

SUPPORTED = (
    "int8, int16, int32, int64, uint8, uint16, uint32, bool, date32, timestamp, decimal128, string, "
    "large_string, string_view, binary, large_binary, binary_view, fixed_size_binary, "
    "or a dictionary of one of these"
)
"""The types that a key column may have, as listed in error messages."""

_MAX_LONG_DIGITS = 18
_LONG = np.iinfo(np.int64)


class KeyCoder:
    """Computes the codes, hashes and shards of keys from the key columns of a batch.

    Parameters
    ----------
    types
        The key columns' types. Encodings do not matter: a column declared ``string`` may be passed as
        ``large_string``, ``string_view`` or a dictionary, and a timestamp with a time zone may have another
        time zone. Apart from that, types must be equal.
    names
        The columns' names, for error messages.

    Notes
    -----
    Every method is vectorized and takes one array per key column, sliced or not. The arrays of codes and of
    validity flags are read-only and contiguous; the codes may be a view of the Arrow buffer.

    Examples
    --------
    >>> one = KeyCoder([pa.int32()])
    >>> one.exact, one.codes([pa.array([7, None, -7], pa.int32())])[1]
    (True, array([ True, False,  True]))
    >>> two = KeyCoder([pa.int64(), pa.string()], ["id", "country"])
    >>> two.exact
    False
    >>> two.hashes([pa.array([1, None]), pa.array(["de", "fr"])])
    array([-586344185427585570, 1286800426338868419])
    """

    def __init__(self, types: Sequence[pa.DataType], names: Sequence[str] | None = None) -> None:
        if not types:
            raise SchemaError("key: expected at least one column; got none")
        self.names = tuple(names) if names is not None else tuple(f"#{at}" for at in range(len(types)))
        if len(self.names) != len(types):
            raise SchemaError(f"key: expected {len(types)} names, one per column; got {len(self.names)}")
        self.types = tuple(types)
        self._plain_types = tuple(_plain_type(type_) for type_ in types)
        self._encodings = tuple(
            _key_encoding(name, plain, given)
            for name, plain, given in zip(self.names, self._plain_types, types, strict=True)
        )
        self.exact = len(types) == 1 and self._encodings[0].exact
        """Whether equal codes mean equal keys. If not, matches must be verified with :meth:`equal`."""

    def codes(self, columns: Sequence[pa.Array]) -> tuple[Int64s, Bools | None]:
        """Return the code of every row, and flags that are True for rows with a code, or None if all rows have one.

        A row with a null in any key column has no code; the number in its place has no meaning. A plain int64
        column is not copied.

        >>> KeyCoder([pa.date32()]).codes([pa.array([1, 2], pa.date32())])
        (array([1, 2]), None)
        """
        given = self._read(columns)
        if self.exact:
            column = given[0]
            codes = self._encodings[0].codes(column.array)
            valid = column.valid
        else:
            codes = self._hash(given)
            valid = None
            for column in given:
                if column.valid is not None:
                    valid = column.valid if valid is None else _frozen(valid & column.valid)
        return _frozen(codes), valid

    def hashes(self, columns: Sequence[pa.Array]) -> Int64s:
        """Return Spark SQL's ``xxhash64(columns…)`` of every row, which skips nulls.

        >>> KeyCoder([pa.string()]).hashes([pa.array(["Spark", None])])
        array([-4294468057691064905,                   42])
        """
        return self._hash(self._read(columns))

    def shards(self, columns: Sequence[pa.Array], n: int) -> Int32s:
        """Return the shard of every row: Spark SQL's ``pmod(xxhash64(columns…), n)``.

        >>> KeyCoder([pa.int64()]).shards([pa.array([1, 2, 3])], 8)
        array([2, 5, 3], dtype=int32)
        """
        if not 1 <= n < 2**31:
            raise ConfigError(f"shards: expected a number from 1 to {2**31 - 1}; got {n}")
        return pmod(self.hashes(columns), n)

    def equal(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bools:
        """Return whether row i of ``left`` and row i of ``right`` have the same key. A null equals nothing.

        >>> KeyCoder([pa.string()]).equal([pa.array(["a", "b", None])], [pa.array(["a", "c", None])])
        array([ True, False, False])
        """
        pairs = list(zip(self._read(left), self._read(right), strict=True))
        if len(pairs[0][0].array) != len(pairs[0][1].array):
            raise SchemaError(
                f"key: expected the same number of rows on both sides; "
                f"got {len(pairs[0][0].array)} on the left, {len(pairs[0][1].array)} on the right"
            )
        same = pc.equal(pairs[0][0].array, pairs[0][1].array)
        for one, other in pairs[1:]:
            same = pc.and_(same, pc.equal(one.array, other.array))
        rows: Bools = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return rows

    def _read(self, columns: Sequence[pa.Array]) -> list[_Column]:
        """Check the columns against the declared types, and decode dictionaries and views."""
        if len(columns) != len(self.types):
            raise SchemaError(f"key: expected {len(self.types)} columns {self.names}; got {len(columns)}")
        declared = zip(self.names, self.types, self._plain_types, strict=True)
        for (name, type_, plain), column in zip(declared, columns, strict=True):
            if column.type != type_ and _plain_type(column.type) != plain:
                raise SchemaError(f"key column {name!r}: expected {type_}; got {column.type}")
            if len(column) != len(columns[0]):
                raise SchemaError(
                    f"key column {name!r}: expected {len(columns[0])} rows, as in {self.names[0]!r}; got {len(column)}"
                )
        arrays = [_plain_array(column) for column in columns]
        return [_Column(array, _validity(array)) for array in arrays]

    def _hash(self, columns: Sequence[_Column]) -> Int64s:
        hashes = np.full(len(columns[0].array), SEED, dtype=np.int64)
        if hashes.size:
            for encoding, column in zip(self._encodings, columns, strict=True):
                valid = _NO_NULLS if column.valid is None else column.valid.view(np.uint8)
                encoding.hash_into(column.array, valid, hashes)
        return hashes


class _Column(NamedTuple):
    array: pa.Array
    valid: Bools | None


class _KeyEncoding(Protocol):
    """The layout of the values of one key column, and the way in which Spark hashes them."""

    @property
    def exact(self) -> bool:
        """Whether every value fits in an int64, so that it is its own code. If not, ``codes`` is never called."""

    def codes(self, array: pa.Array) -> Int64s: ...

    def hash_into(self, array: pa.Array, valid: Bytes, hashes: Int64s) -> None: ...


class _Ints:
    """Values that Spark hashes as 32-bit integers, among them booleans and dates."""

    exact = True

    def codes(self, array: pa.Array) -> Int64s:
        return self._values(array).astype(np.int64)

    def hash_into(self, array: pa.Array, valid: Bytes, hashes: Int64s) -> None:
        hash_ints(_frozen(self._values(array).astype(np.int32, copy=False)), valid, hashes)

    def _values(self, array: pa.Array) -> npt.NDArray[Any]:
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        dtype = np.int32 if pa.types.is_date32(array.type) else array.type.to_pandas_dtype()
        return _values(array, dtype)


class _Longs:
    """Values that Spark hashes as 64-bit integers."""

    exact = True

    def codes(self, array: pa.Array) -> Int64s:
        return _values(array, array.type.to_pandas_dtype()).astype(np.int64, copy=False)

    def hash_into(self, array: pa.Array, valid: Bytes, hashes: Int64s) -> None:
        hash_longs(_frozen(self.codes(array)), valid, hashes)


class _Timestamps:
    """Encoding of timestamps as key codes in microseconds; timestamps in nanoseconds get codes in nanoseconds.

    Hashes are always computed from microseconds, the only unit that Spark has.
    """

    exact = True

    def __init__(self, name: str, unit: str) -> None:
        self._name = name
        self._unit = unit
        self._micros = {"s": 1_000_000, "ms": 1_000}.get(unit, 1)

    def codes(self, array: pa.Array) -> Int64s:
        values = _values(array, np.int64)
        if self._micros == 1:
            return values
        self._check_range(array)
        return values * self._micros

    def hash_into(self, array: pa.Array, valid: Bytes, hashes: Int64s) -> None:
        values = self.codes(array)
        if self._unit == "ns":
            values = values // 1000
        hash_longs(_frozen(values), valid, hashes)

    def _check_range(self, array: pa.Array) -> None:
        """Raise an error if a value in microseconds overflows, because two times could then have the same code."""
        span = pc.min_max(array.view(pa.int64())).as_py()
        for value in (span["min"], span["max"]):
            if value is not None and not _LONG.min <= value * self._micros <= _LONG.max:
                raise SchemaError(
                    f"key column {self._name!r} of type {array.type}: expected times that fit in 64 "
                    f"bits as microseconds; got {value} {self._unit}"
                )


class _SmallDecimals:
    """Decimals of at most 18 digits, whose unscaled value fits in 64 bits."""

    exact = True

    def codes(self, array: pa.Array) -> Int64s:
        return np.ascontiguousarray(_values(array, np.int64, per_row=2)[::2])

    def hash_into(self, array: pa.Array, valid: Bytes, hashes: Int64s) -> None:
        hash_longs(_frozen(self.codes(array)), valid, hashes)


class _Hashed:
    """Values that do not fit in 64 bits, so that their code is a hash."""

    exact = False

    def codes(self, array: pa.Array) -> Int64s:
        raise NotImplementedError


class _BigDecimals(_Hashed):
    def hash_into(self, array: pa.Array, valid: Bytes, hashes: Int64s) -> None:
        hash_big_decimals(_values(array, np.int64, per_row=2), valid, hashes)


class _FixedBytes(_Hashed):
    def __init__(self, width: int) -> None:
        self._width = width

    def hash_into(self, array: pa.Array, valid: Bytes, hashes: Int64s) -> None:
        offsets = np.arange(len(array) + 1, dtype=np.int64) * self._width
        hash_bytes(_frozen(offsets), _values(array, np.uint8, per_row=self._width), valid, hashes)


class _VarBytes(_Hashed):
    def hash_into(self, array: pa.Array, valid: Bytes, hashes: Int64s) -> None:
        large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        offsets = _values(array, np.int64 if large else np.int32, extra=1)
        data = array.buffers()[2]
        text = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        hash_bytes(offsets, _frozen(text), valid, hashes)


def _key_encoding(name: str, plain: pa.DataType, given: pa.DataType) -> _KeyEncoding:
    if plain in _INT_TYPES:
        return _Ints()
    if plain in _LONG_TYPES:
        return _Longs()
    if pa.types.is_timestamp(plain):
        return _Timestamps(name, plain.unit)
    if pa.types.is_decimal128(plain):
        return _SmallDecimals() if plain.precision <= _MAX_LONG_DIGITS else _BigDecimals()
    if pa.types.is_string(plain) or pa.types.is_binary(plain):
        return _VarBytes()
    if pa.types.is_fixed_size_binary(plain):
        return _FixedBytes(plain.byte_width)
    raise SchemaError(f"key column {name!r}: expected one of {SUPPORTED}; got {given}")


_INT_TYPES = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.bool_(), pa.date32())
_LONG_TYPES = (pa.int64(), pa.uint32())


def _plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type without its encoding, such as a dictionary. Columns with the same plain type can be compared."""
    if pa.types.is_dictionary(type_):
        return _plain_type(type_.value_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, "UTC")
    return type_


def _plain_array(array: pa.Array) -> pa.Array:
    """Return the column as an array without a dictionary or a view type, so that its buffers can be read.

    String views become ``large_string``, and binary views ``large_binary``.
    """
    if pa.types.is_dictionary(array.type):
        # Arrow cannot decode a dictionary of views, so the values are made plain first.
        values = _plain_array(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def _values(array: pa.Array, dtype: Any, *, per_row: int = 1, extra: int = 0) -> npt.NDArray[Any]:
    """Return a view of an array's values, ``per_row`` for each row.

    For strings and binaries these are the offsets; ``extra=1`` includes the last one.
    """
    count = len(array) * per_row + extra
    buffer = array.buffers()[1]
    if buffer is None or buffer.size == 0:
        return _frozen(np.zeros(count, dtype))
    start = array.offset * per_row * np.dtype(dtype).itemsize
    return _frozen(np.frombuffer(buffer, dtype, count, start))


def _validity(array: pa.Array) -> Bools | None:
    if array.null_count == 0:
        return None
    first, skipped = divmod(array.offset, 8)
    bits = np.frombuffer(array.buffers()[0], np.uint8)[first:]
    valid = np.unpackbits(bits, count=skipped + len(array), bitorder="little")[skipped:]
    return _frozen(valid.view(np.bool_))


def _frozen(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Return a read-only view. Arrow buffers may be writable or not, and numba would compile a kernel for each case."""
    view = array.view()
    view.flags.writeable = False
    return view


_NO_NULLS: Bytes = _frozen(np.zeros(0, np.uint8))
