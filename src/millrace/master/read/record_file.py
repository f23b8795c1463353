"""The record file of a shard: a second copy of its rows, each in one piece, so that a look-up reads one place.

See :mod:`millrace.master.record_layout` for the fields of a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.kernels import row_records as kernels
from millrace.master.record_layout import LENGTH_BYTES, RecordLayout
from millrace.rows.columns import (
    BytesColumn,
    FixedColumn,
    Indices,
    OutputColumn,
    bytes_pieces,
    fixed_values,
    shape_of,
)

FILE = "rows.records"

_WRITTEN = 1 << 23  # bytes that are written at a time
_BLOCK = 8192  # rows gathered at a time: the columns after the first find them in the processor's cache


def write_records(pages: Iterator[pa.RecordBatch], layout: RecordLayout, path: Path) -> None:
    """Write the records of a shard's pages, a few megabytes at a time."""
    rows = max(1, _WRITTEN // layout.width)
    with path.open("wb") as file:
        for page in pages:
            for first in range(0, len(page), rows):
                packed(page.slice(first, rows), layout).tofile(file)


def packed(page: pa.RecordBatch, layout: RecordLayout) -> npt.NDArray[np.uint8]:
    """Return the records of a page as bytes, one record per row."""
    block = np.zeros((len(page), layout.width), np.uint8)
    for name, (at, size) in layout.fields.items():
        column = page.column(page.schema.get_field_index(name))
        if shape_of(column.type) == "fixed":
            block[:, at : at + size] = fixed_values(column).view(np.uint8).reshape(len(page), size)
        else:
            data, starts, lengths = bytes_pieces(column)
            block[:, at : at + LENGTH_BYTES] = lengths.astype("<u2").view(np.uint8).reshape(len(page), LENGTH_BYTES)
            kernels.lay_texts(data, starts, lengths, block, at + LENGTH_BYTES)
    return block


class Records:
    """The memory-mapped records of one shard."""

    def __init__(self, path: Path, schema: pa.Schema, rows: int, layout: RecordLayout) -> None:
        self._layout = layout
        self._raw = (
            np.asarray(np.memmap(path, np.uint8, mode="r", shape=(rows * layout.width,)))
            if rows
            else np.empty(0, np.uint8)
        )
        self._places = {schema.get_field_index(name): place for name, place in layout.fields.items()}
        self._items: dict[int, npt.NDArray[Any]] = {size: self._raw.view(f"u{size}") for size in (1, 2, 4, 8)}

    @staticmethod
    def nbytes_of(rows: int, layout: RecordLayout) -> int:
        """Return the length of a file with this many records, in bytes."""
        return rows * layout.width

    def has(self, column: int) -> bool:
        """Return whether a column, given by its place in the schema, is in the records."""
        return column in self._places

    def gather(self, columns: Sequence[int], rows: Indices, outputs: Sequence[OutputColumn]) -> None:
        """Append the given columns of the given rows to output columns; the columns must be in the records."""
        wide = FixedColumn.side_by_side(outputs)
        words = np.array([self._places[columns[i]][0] // 8 for i in wide], np.int64)
        others = [(columns[i], output) for i, output in enumerate(outputs) if i not in wide]
        for start in range(0, len(rows), _BLOCK):
            some = rows[start : start + _BLOCK]
            if wide:
                first = outputs[wide[0]]
                assert isinstance(first, FixedColumn)
                block = first.block_of(len(wide), len(some))
                kernels.wide_items(self._items[8], self._layout.width // 8, words, some, block)
                for i in wide:
                    outputs[i].filled(len(some))  # type: ignore[attr-defined]
            for column, output in others:
                self._append(column, some, output)

    def _append(self, column: int, rows: Indices, output: OutputColumn) -> None:
        at, size = self._places[column]
        width = self._layout.width
        if isinstance(output, BytesColumn):
            lengths = self._items[LENGTH_BYTES][rows * (width // LENGTH_BYTES) + at // LENGTH_BYTES].astype(np.int32)
            output.pieces(self._raw, rows * width + (at + LENGTH_BYTES), lengths, None)
        else:
            assert isinstance(output, FixedColumn)
            if size in self._items:
                output.take(self._items[size], rows * (width // size) + at // size, None)
            else:
                output.pieces(self._raw, rows * width + at, None)

    def check(self, page: pa.RecordBatch, first: int) -> bool:
        """Return whether the records from row ``first`` on hold the same values as this page."""
        width, step = self._layout.width, max(1, _WRITTEN // self._layout.width)
        return all(
            np.array_equal(
                self._raw[(first + at) * width : (first + min(len(page), at + step)) * width],
                packed(page.slice(at, step), self._layout).reshape(-1),
            )
            for at in range(0, len(page), step)
        )
