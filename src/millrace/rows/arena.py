"""Rows in memory by slot: columns of fixed width as arrays, strings in one heap, nested values as Arrow arrays.

The owner of an arena decides which slots are in use. The arena stores and moves rows, and knows how many bytes a slot
costs (``slot_bytes``) and how many bytes its heap holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.lanes import Task
from millrace.core.space import Space
from millrace.kernels import gather
from millrace.rows.columns import (
    BitsColumn,
    BytesColumn,
    FixedColumn,
    Indices,
    OutputColumn,
    bit_flags,
    bytes_pieces,
    fixed_values,
    is_wide,
    item_of,
    shape_of,
    valid_flags,
)

Slots = npt.NDArray[np.int32]


def run_of(slots: Slots) -> Slots | slice:
    """Return consecutive ascending slots as a slice, which NumPy copies faster, and other slots unchanged.

    >>> run_of(np.array([4, 5, 6], np.int32)), run_of(np.array([4, 6], np.int32)).tolist()
    (slice(4, 7, None), [4, 6])
    """
    if len(slots) and slots[-1] - slots[0] == len(slots) - 1 and (slots[1:] > slots[:-1]).all():
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return slots


class Arena:
    """Rows of one schema, each at a slot.

    Parameters
    ----------
    schema
        Columns to keep.
    capacity
        The largest number of slots.
    heap_capacity
        The most bytes that all strings and binary values together may take.
    space, name
        Where the arrays are allocated, and the beginning of their names there.
    """

    def __init__(self, schema: pa.Schema, capacity: int, heap_capacity: int, space: Space, name: str) -> None:
        self.schema = schema
        self._space = space
        self._nulls: npt.NDArray[Any] = space.array(
            f"{name}.nulls", np.uint8, capacity * max(1, -(-len(schema) // 8))
        ).reshape(capacity, -1)
        wide = [i for i, field in enumerate(schema) if is_wide(field.type)]
        self._block_rows = {column: row for row, column in enumerate(wide)}
        self._block: npt.NDArray[Any] = space.array(f"{name}.wide", np.uint64, len(wide) * capacity)
        self._block = self._block.reshape(len(wide), capacity)
        self._has_nulls = False  # before the first null, the masks need not be read
        self._columns: list[_Fixed | _Bytes | _Opaque] = []
        heap = _Heap(space, f"{name}.heap", heap_capacity)
        for i, field in enumerate(schema):
            shape = shape_of(field.type)
            if is_wide(field.type):
                self._columns.append(_Fixed(space, self._block[self._block_rows[i]], False))
            elif shape in ("fixed", "bits"):
                item = np.dtype(np.uint8) if shape == "bits" else item_of(field.type)
                self._columns.append(_Fixed(space, space.array(f"{name}.{i}", item, capacity), shape == "bits"))
            elif shape == "bytes":
                self._columns.append(_Bytes(space, f"{name}.{i}", heap, capacity))
            else:
                self._columns.append(_Opaque(space, f"{name}.{i}", field.type, capacity))
        self.heap = heap
        self.slot_bytes = self._nulls.shape[1] + sum(column.slot_bytes for column in self._columns)

    @staticmethod
    def bytes_per_slot(schema: pa.Schema) -> int:
        """Return the bytes that a row of this schema takes in its slot, without strings, binary and nested values."""
        cost = max(1, -(-len(schema) // 8))
        for field in schema:
            shape = shape_of(field.type)
            if shape == "bits":
                cost += 1
            elif shape == "fixed":
                cost += item_of(field.type).itemsize
            else:
                cost += _Bytes.slot_bytes if shape == "bytes" else _Opaque.slot_bytes
        return cost

    @staticmethod
    def heap_bytes_of(columns: Sequence[pa.Array]) -> int:
        """Return how many bytes these columns would take outside of the slots: in the heap and as Arrow arrays."""
        nbytes = 0
        for array in columns:
            shape = shape_of(array.type)
            if shape == "bytes":
                nbytes += int(bytes_pieces(array)[2].sum(dtype=np.int64))
            elif shape == "opaque":
                nbytes += array.get_total_buffer_size()
        return nbytes

    @property
    def heap_bytes(self) -> int:
        """Bytes held outside of the slots: in the heap, gaps included, and in the Arrow arrays of nested columns."""
        return self.heap.end + sum(c.segment_bytes for c in self._columns if isinstance(c, _Opaque))

    def store(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        """Write one row to each slot. The caller has reserved the slots and the heap bytes."""
        where = run_of(slots)
        masks = np.zeros((len(slots), self._nulls.shape[1]), np.uint8)
        for i, array in enumerate(columns):
            valid = valid_flags(array)
            if valid is not None:
                self._has_nulls = True
                masks[:, i >> 3] |= (valid ^ 1) << (i & 7)
        self._nulls[where] = masks
        for column, array in zip(self._columns, columns, strict=True):
            column.store(where, array)

    def blank(self, slots: Slots) -> None:
        """Mark slots as holding no row yet."""
        for column in self._columns:
            column.blank(slots)

    def gather(self, columns: Sequence[int], slots: Slots, outputs: Sequence[OutputColumn]) -> list[Task]:
        """Return tasks that append the given columns of the rows at ``slots`` to outputs. Any thread may run them."""
        tasks: list[Task] = []
        masks = self._nulls[slots] if self._has_nulls else None
        wide = FixedColumn.side_by_side(outputs) if masks is None else []
        if not all(columns[i] in self._block_rows for i in wide):
            wide = []
        for half in (wide[: len(wide) // 2], wide[len(wide) // 2 :]):
            if half:
                rows = np.array([self._block_rows[columns[i]] for i in half])
                tasks.append(partial(self._gather_wide, rows, slots, [outputs[i] for i in half]))
        for place, (i, output) in enumerate(zip(columns, outputs, strict=True)):
            if place in wide:
                continue
            valid = None
            if masks is not None:
                there = (~masks[:, i >> 3] >> np.uint8(i & 7)) & np.uint8(1)
                valid = None if there.all() else there
            tasks.append(partial(self._columns[i].gather, slots, valid, output))
        return tasks

    def _gather_wide(self, rows: Indices, slots: Slots, outputs: Sequence[OutputColumn]) -> None:
        """Gather several columns of 8 bytes without nulls whose outputs lie side by side."""
        first = outputs[0]
        assert isinstance(first, FixedColumn)
        gather.wide_items(self._block, rows, slots, first.block_of(len(rows), len(slots)))
        for output in outputs:
            assert isinstance(output, FixedColumn)
            output.filled(len(slots))

    def drop(self, slots: Slots) -> None:
        """Remove the rows at ``slots``, so that their bytes can be used again."""
        for column in self._columns:
            column.drop(slots)

    def move(self, sources: Slots, targets: Slots) -> None:
        """Copy rows between slots; the sources are free afterwards."""
        self._nulls[targets] = self._nulls[sources]
        for column in self._columns:
            column.move(sources, targets)

    def clear(self) -> None:
        """Remove all rows."""
        self.heap.end = self.heap.dead = 0
        for column in self._columns:
            column.clear()

    def longest(self, columns: Sequence[int]) -> int:
        """Return an upper bound of the bytes that any row so far takes in the given string and binary columns."""
        return sum(c.longest for c in (self._columns[i] for i in columns) if isinstance(c, _Bytes))

    def bytes_of(self, columns: Sequence[int], slots: Slots) -> int:
        """Return the total bytes of the strings and binary values in the given columns of the rows at ``slots``."""
        chosen = (self._columns[i] for i in columns)
        return sum(int(c.lengths[slots].sum(dtype=np.int64)) for c in chosen if isinstance(c, _Bytes))

    def compact_heap(self, live: Slots) -> None:
        """Close the gaps in the heap: move the bytes of the live rows together."""
        self.heap.compact([c for c in self._columns if isinstance(c, _Bytes)], live)

    @property
    def keepable(self) -> bool:
        """Whether the rows can be saved: they cannot if they have nested values, which are kept as Arrow arrays."""
        return not any(isinstance(column, _Opaque) for column in self._columns)

    def arrays(self, slots: int, heap: int) -> list[npt.NDArray[Any]]:
        """Return views of the first ``slots`` slots and ``heap`` heap bytes of all arrays, always in the same order."""
        parts = [self._nulls[:slots].reshape(-1)]
        for column in self._columns:
            if isinstance(column, _Fixed):
                parts.append(column.values[:slots])
            elif isinstance(column, _Bytes):
                parts += [column.starts[:slots], column.lengths[:slots]]
        return [*parts, self.heap.data[:heap]]

    def facts(self) -> dict[str, Any]:
        """Return the values that are needed besides the contents of the arrays to restore the rows."""
        longest = [column.longest for column in self._columns if isinstance(column, _Bytes)]
        return {"end": self.heap.end, "dead": self.heap.dead, "has_nulls": self._has_nulls, "longest": longest}

    def accept(self, facts: dict[str, Any]) -> None:
        """Accept the rows that the caller has put into :meth:`arrays`, with the ``facts`` that were saved with them."""
        self.heap.end, self.heap.dead, self._has_nulls = facts["end"], facts["dead"], facts["has_nulls"]
        columns = [column for column in self._columns if isinstance(column, _Bytes)]
        for column, longest in zip(columns, facts["longest"], strict=True):
            column.longest = longest

    def release(self, start: int) -> None:
        """Give the memory of the slots from ``start`` on, and of the heap beyond its end, back to the system."""
        self._space.release(self._nulls, start * self._nulls.shape[1])
        for column in self._columns:
            column.release(start)
        self._space.release(self.heap.data, self.heap.end)


class _Heap:
    """A byte buffer that is filled from the beginning; ``dead`` is how many of its bytes belong to removed rows."""

    def __init__(self, space: Space, name: str, capacity: int) -> None:
        self.data: npt.NDArray[Any] = space.array(name, np.uint8, capacity)
        self.end = 0
        self.dead = 0

    def compact(self, columns: Sequence[_Bytes], live: Slots) -> None:
        starts = np.concatenate([c.starts[live] for c in columns]) if columns else np.empty(0, np.int64)
        lengths = np.concatenate([c.lengths[live] for c in columns]) if columns else np.empty(0, np.int32)
        self.end = gather.slide_down(self.data, starts, lengths, np.argsort(starts, kind="stable"))
        self.dead = 0
        for i, column in enumerate(columns):
            column.starts[live] = starts[i * len(live) : (i + 1) * len(live)]


class _Fixed:
    def __init__(self, space: Space, values: npt.NDArray[Any], bits: bool) -> None:
        self._space, self._bits = space, bits
        self.values = values
        self.slot_bytes = values.itemsize

    def store(self, slots: Slots | slice, array: pa.Array) -> None:
        self.values[slots] = bit_flags(array) if self._bits else fixed_values(array)

    def gather(self, slots: Slots, valid: npt.NDArray[np.uint8] | None, output: OutputColumn) -> None:
        if isinstance(output, BitsColumn):
            output.flags(self.values[slots], valid)
        else:
            assert isinstance(output, FixedColumn)
            output.take(self.values, slots, valid)

    def blank(self, slots: Slots) -> None:
        """Do nothing: a slot without a row needs no value."""

    def clear(self) -> None:
        """Do nothing: there is nothing outside the slots to clear."""

    def drop(self, slots: Slots) -> None:
        """Do nothing: the slot itself is reused."""

    def move(self, sources: Slots, targets: Slots) -> None:
        self.values[targets] = self.values[sources]

    def release(self, start: int) -> None:
        self._space.release(self.values, start)


class _Bytes:
    slot_bytes = 12

    def __init__(self, space: Space, name: str, heap: _Heap, capacity: int) -> None:
        self._space, self._heap = space, heap
        self.longest = 0
        self.starts: npt.NDArray[Any] = space.array(f"{name}.starts", np.int64, capacity)
        self.lengths: npt.NDArray[Any] = space.array(f"{name}.lengths", np.int32, capacity)

    def store(self, slots: Slots | slice, array: pa.Array) -> None:
        data, starts, lengths = bytes_pieces(array)
        heap = self._heap
        ends = np.cumsum(lengths, dtype=np.int64) + heap.end
        self.starts[slots] = ends - lengths
        self.lengths[slots] = lengths
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        heap.end = gather.copy_bytes(data, starts, lengths, heap.data, heap.end)

    def gather(self, slots: Slots, valid: npt.NDArray[np.uint8] | None, output: OutputColumn) -> None:
        assert isinstance(output, BytesColumn)
        output.pieces(self._heap.data, self.starts[slots], self.lengths[slots], valid)

    def blank(self, slots: Slots) -> None:
        self.lengths[slots] = 0

    def clear(self) -> None:
        """Do nothing: the heap is cleared as a whole."""

    def drop(self, slots: Slots) -> None:
        self._heap.dead += int(self.lengths[slots].sum(dtype=np.int64))

    def move(self, sources: Slots, targets: Slots) -> None:
        self.starts[targets] = self.starts[sources]
        self.lengths[targets] = self.lengths[sources]

    def release(self, start: int) -> None:
        self._space.release(self.starts, start)
        self._space.release(self.lengths, start)


class _Opaque:
    """A column kept as the Arrow arrays that were stored. An array is freed when its last row is dropped."""

    slot_bytes = 8

    def __init__(self, space: Space, name: str, type_: pa.DataType, capacity: int) -> None:
        self._space, self._type = space, type_
        self._segment: npt.NDArray[Any] = space.array(f"{name}.segment", np.int32, capacity)
        self._row: npt.NDArray[Any] = space.array(f"{name}.row", np.int32, capacity)
        self._segments: dict[int, pa.Array] = {}
        self._alive: dict[int, int] = {}
        self._made = 0
        self.segment_bytes = 0

    def store(self, slots: Slots | slice, array: pa.Array) -> None:
        if len(array) == 0:
            return
        kept = pa.concat_arrays([array])
        self._segments[self._made] = kept
        self._alive[self._made] = len(array)
        self.segment_bytes += kept.get_total_buffer_size()
        self._segment[slots] = self._made
        self._row[slots] = np.arange(len(array), dtype=np.int32)
        self._made += 1

    def gather(self, slots: Slots, valid: npt.NDArray[np.uint8] | None, output: OutputColumn) -> None:
        if len(slots) == 0:
            return
        wanted = np.unique(self._segment[slots])
        pieces = [self._segments[int(s)] for s in wanted]
        base = np.cumsum([0] + [len(piece) for piece in pieces])
        rows = base[np.searchsorted(wanted, self._segment[slots])] + self._row[slots]
        output.arrow(pa.concat_arrays(pieces), rows.astype(np.int64))

    def blank(self, slots: Slots) -> None:
        self._segment[slots] = -1

    def clear(self) -> None:
        self._segments.clear()
        self._alive.clear()
        self.segment_bytes = 0

    def drop(self, slots: Slots) -> None:
        segments = self._segment[slots]
        for segment, count in zip(*np.unique(segments[segments >= 0], return_counts=True), strict=True):
            self._alive[int(segment)] -= int(count)
            if self._alive[int(segment)] == 0:
                del self._alive[int(segment)]
                self.segment_bytes -= self._segments.pop(int(segment)).get_total_buffer_size()

    def move(self, sources: Slots, targets: Slots) -> None:
        self._segment[targets] = self._segment[sources]
        self._row[targets] = self._row[sources]

    def release(self, start: int) -> None:
        self._space.release(self._segment, start)
        self._space.release(self._row, start)
