"""Where the record of a row has its values: all columns in one piece instead of each in a place of its own.

::

    record of a row     │ 8-byte columns │ 4 │ 2 │ 1 │ other widths │ length, text │ length, text │ padding to 8 │

A column is in the record if no row has a null there and its values are of one width, or are text or bytes that are all
short. Other columns are left to the Arrow file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.rows.columns import item_of, shape_of

LENGTH_BYTES = 2
"""Bytes of the length in front of a text."""
_LONGEST_TEXT = 64  # a place for the longest is kept in every record


@dataclass(frozen=True)
class RecordLayout:
    """Where a record has the values of its columns: the first byte and how many, by name."""

    width: int
    fields: Mapping[str, tuple[int, int]]

    @staticmethod
    def of(schema: pa.Schema, longest: Mapping[str, int], nulls: Mapping[str, int]) -> RecordLayout | None:
        """Return the layout of a record of rows with such columns; None if none of them can be in it.

        >>> schema = pa.schema([("key", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
        >>> RecordLayout.of(schema, {"name": 10}, {"key": 0, "name": 0, "day": 0})
        RecordLayout(width=24, fields={'key': (0, 8), 'day': (8, 4), 'name': (12, 12)})
        """
        sizes = {}
        for field in schema:
            if nulls.get(field.name) != 0:
                continue
            if shape_of(field.type) == "fixed":
                sizes[field.name] = item_of(field.type).itemsize
            elif shape_of(field.type) == "bytes" and longest[field.name] <= _LONGEST_TEXT:
                sizes[field.name] = LENGTH_BYTES + longest[field.name]

        def place(name: str) -> tuple[bool, bool, int]:
            texts = shape_of(schema.field(name).type) == "bytes"
            return texts, sizes[name] not in (8, 4, 2, 1), -sizes[name]

        at, fields = 0, {}
        for name in sorted(sizes, key=place):
            if shape_of(schema.field(name).type) == "bytes":
                at += at % LENGTH_BYTES
            fields[name] = (at, sizes[name])
            at += sizes[name]
        return RecordLayout(-(-at // 8) * 8, fields) if fields else None

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"width": self.width, "fields": {name: list(place) for name, place in self.fields.items()}}

    @staticmethod
    def from_json(body: dict[str, Any]) -> RecordLayout:
        """Make a layout from what :meth:`as_json` gave."""
        fields = {str(name): (int(at), int(size)) for name, (at, size) in body["fields"].items()}
        return RecordLayout(int(body["width"]), fields)
