"""A shard's rows once more, each in one piece: what a look-up reads is in one place instead of one for every column.

::

    record of a row     │ 8-byte columns │ 4 │ 2 │ 1 │ other widths │ length, text │ length, text │ padding to 8 │

A column is in the record if no row has a null there and its values are of one width, or are text or bytes that are all
short. Other columns are left to the Arrow file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.kernels import row_records as kernels
from millrace.rows.columns import (
    BytesColumn,
    FixedColumn,
    Indices,
    OutputColumn,
    bytes_pieces,
    fixed_values,
    item_of,
    shape_of,
)

FILE = "rows.records"

_LONGEST_TEXT = 64  # a place for the longest is kept in every record
_LENGTH = 2  # bytes of a text's length
_WRITTEN = 1 << 23  # bytes that are written at a time
_BLOCK = 8192  # rows gathered at a time: the columns after the first find them in the processor's cache


@dataclass(frozen=True)
class Layout:
    """Where a record has the values of its columns: the first byte and how many, by name."""

    width: int
    fields: Mapping[str, tuple[int, int]]

    @staticmethod
    def of(schema: pa.Schema, longest: Mapping[str, int], nulls: Mapping[str, int]) -> Layout | None:
        """The record of rows with such columns; None if none of them can be in it.

        >>> schema = pa.schema([("key", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
        >>> Layout.of(schema, {"name": 10}, {"key": 0, "name": 0, "day": 0})
        Layout(width=24, fields={'key': (0, 8), 'day': (8, 4), 'name': (12, 12)})
        """
        sizes = {}
        for field in schema:
            if nulls.get(field.name) != 0:
                continue
            if shape_of(field.type) == "fixed":
                sizes[field.name] = item_of(field.type).itemsize
            elif shape_of(field.type) == "bytes" and longest[field.name] <= _LONGEST_TEXT:
                sizes[field.name] = _LENGTH + longest[field.name]

        def place(name: str) -> tuple[bool, bool, int]:
            texts = shape_of(schema.field(name).type) == "bytes"
            return texts, sizes[name] not in (8, 4, 2, 1), -sizes[name]

        at, fields = 0, {}
        for name in sorted(sizes, key=place):
            if shape_of(schema.field(name).type) == "bytes":
                at += at % _LENGTH
            fields[name] = (at, sizes[name])
            at += sizes[name]
        return Layout(-(-at // 8) * 8, fields) if fields else None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"width": self.width, "fields": {name: list(place) for name, place in self.fields.items()}}

    @staticmethod
    def from_json(body: dict[str, Any]) -> Layout:
        """What :meth:`as_json` gave."""
        return Layout(int(body["width"]), {str(n): (int(at), int(size)) for n, (at, size) in body["fields"].items()})


def write_records(pages: Iterator[pa.RecordBatch], layout: Layout, path: Path) -> None:
    """Write the records of a shard's pages, a few megabytes at a time."""
    rows = max(1, _WRITTEN // layout.width)
    with path.open("wb") as file:
        for page in pages:
            for first in range(0, len(page), rows):
                packed(page.slice(first, rows), layout).tofile(file)


def packed(page: pa.RecordBatch, layout: Layout) -> npt.NDArray[np.uint8]:
    """The records of a page, one a row."""
    block = np.zeros((len(page), layout.width), np.uint8)
    for name, (at, size) in layout.fields.items():
        column = page.column(page.schema.get_field_index(name))
        if shape_of(column.type) == "fixed":
            block[:, at : at + size] = fixed_values(column).view(np.uint8).reshape(len(page), size)
        else:
            data, starts, lengths = bytes_pieces(column)
            block[:, at : at + _LENGTH] = lengths.astype("<u2").view(np.uint8).reshape(len(page), _LENGTH)
            kernels.lay_texts(data, starts, lengths, block, at + _LENGTH)
    return block


class Records:
    """The records of one shard, mapped."""

    def __init__(self, path: Path, schema: pa.Schema, rows: int, layout: Layout) -> None:
        self._layout = layout
        self._raw = (
            np.asarray(np.memmap(path, np.uint8, mode="r", shape=(rows * layout.width,)))
            if rows
            else np.empty(0, np.uint8)
        )
        self._places = {schema.get_field_index(name): place for name, place in layout.fields.items()}
        self._items: dict[int, npt.NDArray[Any]] = {size: self._raw.view(f"u{size}") for size in (1, 2, 4, 8)}

    @staticmethod
    def nbytes_of(rows: int, layout: Layout) -> int:
        """Length of the file."""
        return rows * layout.width

    def has(self, column: int) -> bool:
        """Whether a column, by its place in the schema, is in the records."""
        return column in self._places

    def gather(self, columns: Sequence[int], rows: Indices, outputs: Sequence[OutputColumn]) -> None:
        """Append columns that are in the records to output columns."""
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
            lengths = self._items[_LENGTH][rows * (width // _LENGTH) + at // _LENGTH].astype(np.int32)
            output.pieces(self._raw, rows * width + (at + _LENGTH), lengths, None)
        else:
            assert isinstance(output, FixedColumn)
            if size in self._items:
                output.take(self._items[size], rows * (width // size) + at // size, None)
            else:
                output.pieces(self._raw, rows * width + at, None)

    def check(self, page: pa.RecordBatch, first: int) -> bool:
        """Whether the records of a page, which begins at row ``first``, are those of its rows."""
        width, step = self._layout.width, max(1, _WRITTEN // self._layout.width)
        return all(
            np.array_equal(
                self._raw[(first + at) * width : (first + min(len(page), at + step)) * width],
                packed(page.slice(at, step), self._layout).reshape(-1),
            )
            for at in range(0, len(page), step)
        )
