"""The layout of a record, which holds the values of a row side by side instead of each column in one piece.

::

    record of a row     │ 8-byte columns │ 4 │ 2 │ 1 │ other widths │ length, text │ length, text │ padding to 8 │

A column is in the record if no row has a null there and its values are of one width, or are text or bytes that are all
short. Other columns are only in the Arrow file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.rows.columns import item_of, shape_of

LENGTH_BYTES = 2
"""Bytes of the length field in front of a text."""
_LONGEST_TEXT = 64  # every record has room for the longest text


@dataclass(frozen=True)
class RecordLayout:
    """The layout of a record: its width in bytes, and for each column in it the first byte and the number of bytes."""

    width: int
    fields: Mapping[str, tuple[int, int]]

    @staticmethod
    def of(schema: pa.Schema, longest: Mapping[str, int], nulls: Mapping[str, int]) -> RecordLayout | None:
        """Return the layout for rows of this schema; None if no column can be in a record.

        ``longest`` is the number of bytes of the longest value of each string or binary column, ``nulls`` the number of
        nulls in each column.

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
        """Return the layout as plain values, for JSON."""
        return {"width": self.width, "fields": {name: list(place) for name, place in self.fields.items()}}

    @staticmethod
    def from_json(body: dict[str, Any]) -> RecordLayout:
        """Make a layout from what :meth:`as_json` returned."""
        fields = {str(name): (int(at), int(size)) for name, (at, size) in body["fields"].items()}
        return RecordLayout(int(body["width"]), fields)
