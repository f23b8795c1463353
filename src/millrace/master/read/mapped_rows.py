"""The rows of one shard: a mapped Arrow file of which only the required values are read.

A record batch of the file is a page. The offsets of every column's buffers in every page are found once. From then on,
the place of any value is calculated from them, and the values of many rows are copied at once, whatever their pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import CorruptStoreError
from millrace.core.lanes import Task
from millrace.kernels import gather
from millrace.master.read.record_file import Records
from millrace.rows.columns import (
    BitsColumn,
    BytesColumn,
    FixedColumn,
    Indices,
    OutputColumn,
    item_of,
    offset_item,
    output_column,
    shape_of,
)


class MappedRows:
    """The rows of one shard, read by row number through a memory map.

    Parameters
    ----------
    path
        An uncompressed Arrow IPC file whose record batches all have ``page_rows`` rows, but for the last.
    longest
        For string and binary columns, the bytes of the longest value.
    records
        The records of the same rows, if there are any; columns that are in the records are read from there.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        rows: int,
        page_rows: int,
        longest: Mapping[str, int],
        records: Records | None = None,
    ) -> None:
        self.records = records
        self._longest = {name: longest.get(name, 0) for name in schema.names}
        self.schema = schema
        self.rows = rows
        self.page_rows = page_rows
        try:
            self._file = pa.memory_map(str(path)).read_buffer()
            self._reader = pa.ipc.open_file(self._file)
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptStoreError(f"{path}: not a readable Arrow file: {error}") from None
        if not self._reader.schema.equals(schema):
            raise CorruptStoreError(f"{path}: its columns are not those of the manifest")
        if self._reader.num_record_batches != -(-rows // page_rows):
            raise CorruptStoreError(
                f"{path}: expected {-(-rows // page_rows)} pages; it has {self._reader.num_record_batches}"
            )
        self._raw = np.frombuffer(self._file, np.uint8)
        self._layout: list[_MappedColumn] | None = None
        self._bases: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}

    def _columns(self) -> list[_MappedColumn]:
        """Return where the values of each column are in the file, page by page; the first call finds these places."""
        if self._layout is None:
            pages = self._reader.num_record_batches
            found = np.full((len(self.schema), 3, pages), -1, np.int64)
            base = self._file.address
            for page in range(pages):
                for i, array in enumerate(self._reader.get_batch(page).columns):
                    if shape_of(array.type) != "opaque":
                        for j, buffer in enumerate(array.buffers()):
                            if buffer is not None and buffer.size:
                                found[i, j, page] = buffer.address - base
            self._layout = [_MappedColumn(self._raw, f.type, found[i]) for i, f in enumerate(self.schema)]
        return self._layout

    def page(self, number: int) -> pa.RecordBatch:
        """Return one page as a record batch, without copying."""
        return self._reader.get_batch(number)

    def gather(self, columns: Sequence[int], rows: Indices, outputs: Sequence[OutputColumn]) -> list[Task]:
        """Return tasks that append the given columns of the given rows to output columns."""
        if len(rows) == 0:
            return []
        records = self.records
        if records is not None:
            here = [i for i, number in enumerate(columns) if records.has(number)]
            if here:
                task = partial(records.gather, [columns[i] for i in here], rows, [outputs[i] for i in here])
                rest = [i for i in range(len(columns)) if i not in here]
                return [task, *self._gather_columns([columns[i] for i in rest], rows, [outputs[i] for i in rest])]
        return self._gather_columns(columns, rows, outputs)

    def _gather_columns(self, columns: Sequence[int], rows: Indices, outputs: Sequence[OutputColumn]) -> list[Task]:
        """Return tasks, one per column, that take values from the Arrow file."""
        if not columns:
            return []
        page, inside = np.divmod(rows, self.page_rows)
        layout = self._columns()
        wide = [i for i in FixedColumn.side_by_side(outputs) if layout[columns[i]].validity is None]
        if wide != FixedColumn.side_by_side(outputs):
            wide = []
        tasks: list[Task] = [
            partial(self._gather_wide, [columns[i] for i in half], page, inside, [outputs[i] for i in half])
            for half in (wide[: len(wide) // 2], wide[len(wide) // 2 :])
            if half
        ]
        return tasks + [
            partial(self._gather_column, number, layout[number], page, inside, output)
            for i, (number, output) in enumerate(zip(columns, outputs, strict=True))
            if i not in wide
        ]

    def _gather_wide(
        self, columns: Sequence[int], page: Indices, inside: Indices, outputs: Sequence[OutputColumn]
    ) -> None:
        """Gather several columns at once.

        Their values take 8 bytes each, they have no nulls, and their output columns are adjacent in memory.
        """
        layout = self._columns()
        key = tuple(columns)
        if key not in self._bases:
            self._bases[key] = np.stack([layout[i].values for i in columns])
        items, first = layout[columns[0]].items, outputs[0]
        assert items is not None
        assert isinstance(first, FixedColumn)
        gather.wide_paged_items(items, self._bases[key], page, inside, first.block_of(len(columns), len(page)))
        for output in outputs:
            assert isinstance(output, FixedColumn)
            output.filled(len(page))

    def _gather_column(
        self, number: int, column: _MappedColumn, page: Indices, inside: Indices, output: OutputColumn
    ) -> None:
        valid = None if column.validity is None else self._valid(column.validity[page], inside)
        if isinstance(output, FixedColumn):
            if column.items is not None:
                output.take_paged(column.items, column.values, page, inside, valid)
            else:
                output.pieces(self._raw, column.values[page] + inside * column.width, valid)
        elif isinstance(output, BytesColumn):
            assert column.items is not None
            at = column.values[page] + inside
            starts = column.items.take(at).astype(np.int64)
            lengths = (column.items.take(at + 1) - starts).astype(np.int32)
            output.pieces(self._raw, starts + column.data[page], lengths, valid)
        elif isinstance(output, BitsColumn):
            flags = np.empty(len(inside), np.uint8)
            gather.bits_at(self._raw, column.values[page] + inside, flags)
            output.flags(flags, valid)
        else:
            self._opaque(number, page, inside, output)

    def _valid(self, bitmaps: Indices, inside: Indices) -> npt.NDArray[np.uint8]:
        valid = np.empty(len(inside), np.uint8)
        gather.bits_at(self._raw, np.where(bitmaps >= 0, bitmaps + inside, -1), valid)
        return valid

    def _opaque(self, column: int, page: Indices, inside: Indices, output: OutputColumn) -> None:
        """Append values of a nested column with pyarrow, one run of rows in the same page at a time."""
        edges = np.flatnonzero(np.diff(page)) + 1
        for run in np.split(np.arange(len(page)), edges):
            output.arrow(self._reader.get_batch(int(page[run[0]])).column(column), inside[run])

    def longest(self, columns: Sequence[int]) -> int:
        """Return an upper bound of the bytes that a row takes in the given string and binary columns."""
        return sum(self._longest[self.schema.field(i).name] for i in columns)

    def bytes_of(self, columns: Sequence[int], rows: Indices) -> int:
        """Return the total bytes of the strings and binary values in the given columns of these rows."""
        page, inside = np.divmod(rows, self.page_rows)
        total = 0
        for column in (self._columns()[i] for i in columns if shape_of(self.schema.field(i).type) == "bytes"):
            assert column.items is not None
            at = column.values[page] + inside
            total += int((column.items.take(at + 1) - column.items.take(at)).sum(dtype=np.int64))
        return total

    def take(self, columns: Sequence[int], rows: Indices) -> list[pa.Array]:
        """Return the given columns of the given rows as Arrow arrays."""
        outputs = [output_column(self.schema.field(i).type, len(rows)) for i in columns]
        for task in self.gather(columns, rows, outputs):
            task()
        return [output.finish() for output in outputs]


class _MappedColumn:
    """The places of one column's values in the file, in arrays with one item per page.

    ``values`` contains the place of each page's first value, or of its first offset for strings and binary values. It
    is counted in items, in bits for booleans, and in bytes for items that are not of an integer type. ``data`` is the
    byte where the page's strings begin. ``validity`` is the bit where the page's validity flags begin, or -1 if the
    page has no nulls; it is None if no page has nulls.
    """

    def __init__(self, raw: npt.NDArray[np.uint8], type_: pa.DataType, found: npt.NDArray[np.int64]) -> None:
        validity, values, data = found
        shape = shape_of(type_)
        self.validity = np.where(validity >= 0, validity * 8, -1) if (validity >= 0).any() else None
        self.values = values
        self.data = np.maximum(data, 0)
        self.items: npt.NDArray[Any] | None = None
        self.width = 0
        if shape == "bits":
            self.values = values * 8
        elif shape in ("fixed", "bytes"):
            item = item_of(type_) if shape == "fixed" else offset_item(type_)
            self.width = item.itemsize
            if item.kind in "ui":
                self.items = raw[: len(raw) // self.width * self.width].view(item)
                self.values = values // self.width
