"""Arrow columns as NumPy arrays, and output columns that are filled from the values at given positions.

Almost every column has one of three shapes:

=========  =============================================  =========================================
shape      Arrow types                                    values
=========  =============================================  =========================================
fixed      numbers, dates, times, decimals, fixed binary  one item per row
bits       booleans                                       one bit per row
bytes      strings and binary                             pieces of a byte buffer
=========  =============================================  =========================================

Anything else (lists, structs, dictionaries …) is ``opaque``: it stays an Arrow array and pyarrow moves it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.kernels import gather

Shape = Literal["fixed", "bits", "bytes", "opaque"]
Indices = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]

_ITEMS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


@lru_cache(maxsize=1024)
def shape_of(type_: pa.DataType) -> Shape:
    """Return the shape of columns of an Arrow type: fixed, bits, bytes or opaque.

    >>> [shape_of(t) for t in (pa.int32(), pa.bool_(), pa.string(), pa.list_(pa.int8()))]
    ['fixed', 'bits', 'bytes', 'opaque']
    """
    if pa.types.is_boolean(type_):
        return "bits"
    if (
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
    ):
        return "bytes"
    if pa.types.is_dictionary(type_) or pa.types.is_nested(type_) or isinstance(type_, pa.ExtensionType):
        return "opaque"
    try:
        width = type_.bit_width
    except ValueError:
        return "opaque"
    return "fixed" if width >= 8 and width % 8 == 0 and type_.num_fields == 0 else "opaque"


@lru_cache(maxsize=1024)
def item_of(type_: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy dtype for the values of a fixed column: an unsigned integer or raw bytes of the same width."""
    width: int = type_.bit_width // 8
    return _ITEMS[width] if width in _ITEMS else np.dtype(f"V{width}")


@lru_cache(maxsize=1024)
def offset_item(type_: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy dtype of a bytes column's offsets."""
    large = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    return np.dtype("i8") if large else np.dtype("i4")


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which columns of a type are stored and output.

    View types become plain ones, because Arrow cannot select rows of them. Dictionaries are decoded, because they
    differ from batch to batch.

    >>> plain_type(pa.string_view()), plain_type(pa.list_(pa.binary_view()))
    (DataType(string), ListType(list<item: binary>))
    """
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type)
    if pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(plain_type(type_.value_type)))
    if pa.types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(plain_type(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(plain_type(field.type)) for field in type_])
    return type_


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with :func:`plain_type` for every column, and without metadata."""
    return pa.schema([f.with_type(plain_type(f.type)).remove_metadata() for f in schema])


def plain_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with its columns cast to a schema that :func:`plain_schema` returned."""
    if batch.schema.types == schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    columns = [c if c.type == t else c.cast(t) for c, t in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fixed_values(array: pa.Array) -> Values:
    """Return the values of a fixed column, without copying."""
    buffer = array.buffers()[1]
    item = item_of(array.type)
    if buffer is None or len(array) == 0:
        return np.empty(0, item)
    return np.frombuffer(buffer, item, count=len(array), offset=array.offset * item.itemsize)


def bytes_pieces(array: pa.Array) -> tuple[Bytes, Indices, npt.NDArray[np.int32]]:
    """Return the byte buffer of a bytes column, and the start and the length of each row's value in it."""
    offsets_buffer, data_buffer = array.buffers()[1:3]
    if offsets_buffer is None or len(array) == 0:
        return np.empty(0, np.uint8), np.zeros(len(array), np.int64), np.zeros(len(array), np.int32)
    item = offset_item(array.type)
    offsets = np.frombuffer(offsets_buffer, item, count=len(array) + 1, offset=array.offset * item.itemsize)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return data, offsets[:-1].astype(np.int64), (offsets[1:] - offsets[:-1]).astype(np.int32, copy=False)


def valid_flags(array: pa.Array) -> Bytes | None:
    """Return 1 where a row has a value and 0 where it is null; None when there are no nulls."""
    if array.null_count == 0:
        return None
    return np.asarray(array.is_valid()).astype(np.uint8)


def bit_flags(array: pa.Array) -> Bytes:
    """Return the values of a boolean column as 0 and 1; where a row is null, the value has no meaning."""
    out = np.empty(len(array), np.uint8)
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        out[:] = 0
        return out
    positions = np.arange(array.offset, array.offset + len(array), dtype=np.int64)
    gather.bits_at(np.frombuffer(buffer, np.uint8), positions, out)
    return out


def _bitmap(flags: Bytes) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _set_aside(shape: int | tuple[int, int], item: npt.DTypeLike) -> Values:
    """Allocate an array from Arrow's memory pool.

    The pool reuses the memory of released batches. Fresh memory from the system is zeroed page by page at its first
    use, which took a fifth of the time of a join in memory.
    """
    count, dtype = shape if isinstance(shape, int) else math.prod(shape), np.dtype(item)
    if not count:
        return np.empty(shape, dtype)
    return np.frombuffer(pa.allocate_buffer(count * dtype.itemsize), dtype, count).reshape(shape)


class OutputColumn(ABC):
    """One column of an output batch, filled piece by piece; ``finish`` hands its memory to Arrow without a copy."""

    def __init__(self, type_: pa.DataType, capacity: int) -> None:
        self.type = type_
        self.capacity = capacity
        self.rows = 0
        self._valid: Bytes | None = None

    def _advance(self, count: int, valid: Bytes | None) -> None:
        """Add ``count`` to the number of rows and set the new rows' validity flags to ``valid`` (None: no nulls)."""
        if valid is not None and self._valid is None:
            self._valid = np.ones(self.capacity, np.uint8)
        if self._valid is not None:
            self._valid[self.rows : self.rows + count] = 1 if valid is None else valid
        self.rows += count

    @property
    def heap_bytes(self) -> int:
        """Bytes of strings or nested values, in addition to the fixed width of the rows."""
        return 0

    def _validity(self) -> pa.Buffer | None:
        return None if self._valid is None else _bitmap(self._valid[: self.rows])

    @abstractmethod
    def nulls(self, count: int) -> None:
        """Append ``count`` nulls."""

    @abstractmethod
    def arrow(self, array: pa.Array, rows: Indices | None) -> None:
        """Append the given rows of an Arrow array (all of it when ``rows`` is None)."""

    @abstractmethod
    def finish(self) -> pa.Array:
        """Return the column as an Arrow array. The output column must not be used afterwards."""


class FixedColumn(OutputColumn):
    """An output column of values of a fixed width: numbers, dates, decimals …"""

    def __init__(self, type_: pa.DataType, capacity: int, block: Values | None = None, row: int = 0) -> None:
        super().__init__(type_, capacity)
        self._block, self._row = block, row
        self._values = _set_aside(capacity, item_of(type_)) if block is None else block[row]

    @staticmethod
    def side_by_side(outputs: Sequence[OutputColumn]) -> list[int]:
        """Return the positions of the output columns that lie side by side in one block and can be filled together.

        These are columns with values of 8 bytes. If there are fewer than two, the list is empty.
        """
        wide = [i for i, o in enumerate(outputs) if isinstance(o, FixedColumn) and o._block is not None]
        rows = [o._row for o in outputs if isinstance(o, FixedColumn) and o._block is not None]
        return wide if len(wide) > 1 and rows == list(range(rows[0], rows[0] + len(rows))) else []

    def block_of(self, columns: int, count: int) -> Values:
        """Return a view of the next ``count`` rows of this column and of those after it, ``columns`` in all.

        The columns must lie side by side in one block of memory, see :meth:`side_by_side`.
        """
        assert self._block is not None
        block: Values = self._block[self._row : self._row + columns, self.rows : self.rows + count]
        return block

    def filled(self, count: int) -> None:
        """Add ``count`` rows without nulls, which the caller has already written to the block."""
        self._advance(count, None)

    def take(self, values: Values, positions: npt.NDArray[Any], valid: Bytes | None) -> None:
        """Append ``values[positions]``. ``valid`` is 1 per value and 0 per null, or None if there are no nulls."""
        count = len(positions)
        if values.dtype.kind == "V":
            np.take(values, positions, out=self._values[self.rows : self.rows + count], mode="clip")
        else:
            gather.items(values, positions, self._values[self.rows : self.rows + count])
        self._advance(count, valid)

    def take_paged(self, values: Values, bases: Indices, pages: Indices, inside: Indices, valid: Bytes | None) -> None:
        """Append ``values[bases[pages] + inside]``; for ``valid``, see :meth:`take`."""
        count = len(pages)
        gather.paged_items(values, bases, pages, inside, self._values[self.rows : self.rows + count])
        self._advance(count, valid)

    def pieces(self, data: Bytes, starts: Indices, valid: Bytes | None) -> None:
        """Append values whose width no NumPy integer has; value ``i`` begins at byte ``starts[i]`` of ``data``."""
        width = self._values.dtype.itemsize
        lengths = np.full(len(starts), width, np.int32)
        gather.copy_bytes(data, starts, lengths, self._values.view(np.uint8), self.rows * width)
        self._advance(len(starts), valid)

    def nulls(self, count: int) -> None:
        self._values[self.rows : self.rows + count] = np.zeros((), self._values.dtype)
        self._advance(count, np.zeros(count, np.uint8))

    def arrow(self, array: pa.Array, rows: Indices | None) -> None:
        rows = np.arange(len(array), dtype=np.int64) if rows is None else rows
        flags = valid_flags(array)
        self.take(fixed_values(array), rows, None if flags is None else flags[rows])

    def finish(self) -> pa.Array:
        values = pa.py_buffer(self._values[: self.rows])
        return pa.Array.from_buffers(self.type, self.rows, [self._validity(), values])


class BitsColumn(OutputColumn):
    """An output column of booleans."""

    def __init__(self, type_: pa.DataType, capacity: int) -> None:
        super().__init__(type_, capacity)
        self._values = _set_aside(capacity, np.uint8)

    def flags(self, values: Bytes, valid: Bytes | None) -> None:
        """Append values given as 0 and 1."""
        self._values[self.rows : self.rows + len(values)] = values
        self._advance(len(values), valid)

    def nulls(self, count: int) -> None:
        self.flags(np.zeros(count, np.uint8), np.zeros(count, np.uint8))

    def arrow(self, array: pa.Array, rows: Indices | None) -> None:
        values, valid = bit_flags(array), valid_flags(array)
        if rows is not None:
            values, valid = values[rows], None if valid is None else valid[rows]
        self.flags(values, valid)

    def finish(self) -> pa.Array:
        values = _bitmap(self._values[: self.rows])
        return pa.Array.from_buffers(self.type, self.rows, [self._validity(), values])


class BytesColumn(OutputColumn):
    """An output column of strings or binary values."""

    def __init__(self, type_: pa.DataType, capacity: int) -> None:
        super().__init__(type_, capacity)
        self._offsets = _set_aside(capacity + 1, offset_item(type_))
        self._offsets[0] = 0
        self._data = np.empty(0, np.uint8)
        self._end = 0

    @property
    def heap_bytes(self) -> int:
        return self._end

    def pieces(self, data: Bytes, starts: Indices, lengths: npt.NDArray[np.int32], valid: Bytes | None) -> None:
        """Append strings or binary values, given by their starts and lengths in a byte buffer."""
        count = len(starts)
        ends = self._offsets[self.rows + 1 : self.rows + 1 + count]
        np.cumsum(lengths, out=ends)
        ends += self._end
        needed = int(ends[-1]) if count else self._end
        if needed > len(self._data):
            grown = _set_aside(max(needed, 2 * len(self._data)), np.uint8)
            grown[: self._end] = self._data[: self._end]
            self._data = grown
        self._end = gather.copy_bytes(data, starts, lengths, self._data, self._end)
        self._advance(count, valid)

    def nulls(self, count: int) -> None:
        self._offsets[self.rows + 1 : self.rows + 1 + count] = self._end
        self._advance(count, np.zeros(count, np.uint8))

    def arrow(self, array: pa.Array, rows: Indices | None) -> None:
        data, starts, lengths = bytes_pieces(array)
        valid = valid_flags(array)
        if rows is not None:
            starts, lengths = starts[rows], lengths[rows]
            valid = None if valid is None else valid[rows]
        self.pieces(data, starts, lengths, valid)

    def finish(self) -> pa.Array:
        offsets = pa.py_buffer(self._offsets[: self.rows + 1])
        data = pa.py_buffer(self._data[: self._end])
        return pa.Array.from_buffers(self.type, self.rows, [self._validity(), offsets, data])


class OpaqueColumn(OutputColumn):
    """An output column of any other Arrow type; it collects Arrow arrays and concatenates them at the end."""

    def __init__(self, type_: pa.DataType, capacity: int) -> None:
        super().__init__(type_, capacity)
        self._pieces: list[pa.Array] = []

    @property
    def heap_bytes(self) -> int:
        return sum(piece.get_total_buffer_size() for piece in self._pieces)

    def arrow(self, array: pa.Array, rows: Indices | None) -> None:
        self._pieces.append(array if rows is None else array.take(pa.array(rows)))
        self.rows += len(self._pieces[-1])

    def nulls(self, count: int) -> None:
        self.arrow(pa.nulls(count, self.type), None)

    def finish(self) -> pa.Array:
        return pa.concat_arrays(self._pieces) if self._pieces else pa.array([], self.type)


def output_columns(schema: pa.Schema, capacity: int) -> list[OutputColumn]:
    """Return empty output columns for a schema; those with values of 8 bytes share one block of memory."""
    types = schema.types
    block = _set_aside((sum(map(is_wide, types)), capacity), np.uint64)
    row = count()
    return [
        FixedColumn(type_, capacity, block, next(row)) if is_wide(type_) else output_column(type_, capacity)
        for type_ in types
    ]


@lru_cache(maxsize=1024)
def is_wide(type_: pa.DataType) -> bool:
    """Return whether each value of a type takes exactly 8 bytes."""
    return shape_of(type_) == "fixed" and item_of(type_).itemsize == 8


def output_column(type_: pa.DataType, capacity: int) -> OutputColumn:
    """Return an empty output column of a type."""
    return _KINDS[shape_of(type_)](type_, capacity)


_KINDS: dict[str, type[OutputColumn]] = {
    "fixed": FixedColumn,
    "bits": BitsColumn,
    "bytes": BytesColumn,
    "opaque": OpaqueColumn,
}
