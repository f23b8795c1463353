"""What the workers of a stream-stream join are told, and how they read codes and intervals from rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.rows.keys import KeyCoder
from millrace.spark.bands import Band

LEFT, RIGHT = 0, 1
BUCKET = "__millrace_bucket"
CODE = "__millrace_code"


class SortedRows(NamedTuple):
    """Rows in order of their codes, and of what the band is about within a code.

    The first column of ``rows`` is the code. With a band, two rows match if their codes are equal and their intervals
    meet; ``spans`` has the first and the last value of each, and a right row's interval is its value.
    """

    rows: pa.RecordBatch
    codes: npt.NDArray[np.int64]
    spans: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None

    def cut(self, start: int, stop: int) -> SortedRows:
        """Some of them, uncopied."""
        return SortedRows(
            self.rows.slice(start, stop - start),
            self.codes[start:stop],
            None if self.spans is None else (self.spans[0][start:stop], self.spans[1][start:stop]),
        )


@dataclass(frozen=True)
class MeetingPlan:
    """One ``join_streams``, as its workers see it.

    ``schemas`` are the columns of both sides as they come, ``keys`` the places of the columns that have to be equal,
    ``key_types`` the types in which they are compared; ``banded`` are the places of the columns that ``band`` is about.
    ``memory`` is what one task may use.
    """

    schemas: tuple[bytes, bytes]
    keys: tuple[tuple[int, ...], tuple[int, ...]]
    key_types: bytes
    banded: tuple[int, int] | None
    band: Band | None
    right_columns: tuple[int, ...]
    names: tuple[int, ...]
    memory: int
    sent: bytes

    @property
    def shards(self) -> int:
        return len(self.names)

    @cached_property
    def arriving(self) -> tuple[pa.Schema, pa.Schema]:
        """The columns of both sides."""
        left, right = (pa.ipc.read_schema(pa.py_buffer(schema)) for schema in self.schemas)
        return left, right

    def shipped(self, side: int) -> pa.Schema:
        """The columns in which a side's rows travel."""
        schema = self.arriving[side]
        return schema if self.band is None else schema.append(pa.field(BUCKET, pa.int64()))

    @cached_property
    def sent_schema(self) -> pa.Schema:
        """The output's columns as Spark gets them."""
        return pa.ipc.read_schema(pa.py_buffer(self.sent))

    @cached_property
    def coder(self) -> KeyCoder:
        """The key of a row: what has to be equal, the bucket among it."""
        fields = list(pa.ipc.read_schema(pa.py_buffer(self.key_types)))
        if self.band is not None:
            fields.append(pa.field(BUCKET, pa.int64()))
        return KeyCoder([field.type for field in fields], [field.name for field in fields])

    @cached_property
    def identity(self) -> str:
        """What must not change from one micro-batch to the next."""
        parts = (self.schemas, self.keys, self.key_types, self.banded, self.band, self.names)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    # sizes

    @property
    def block_bytes(self) -> int:
        """Arriving rows that are joined in one go."""
        return self.memory // 8

    @property
    def chunk_bytes(self) -> int:
        """Rows that are written as one value; a merge holds some of each of four runs."""
        return min(self.memory // 64, 1 << 22)

    # rows

    def with_buckets(self, batch: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """The rows that may have a partner, with their bucket if there is a band; a left row once for every bucket."""
        keep = np.ones(len(batch), np.bool_)
        watched = [*self.keys[side], *([] if self.banded is None else [self.banded[side]])]
        for place in watched:
            if batch.column(place).null_count:
                keep &= batch.column(place).is_valid().to_numpy(zero_copy_only=False)
        if self.band is None or self.banded is None:
            return batch if keep.all() else batch.filter(pa.array(keep))
        values = self.band.values(batch.column(self.banded[side]))
        keep &= ~self.band.hopeless(values, side == LEFT)
        rows = np.flatnonzero(keep)
        if side == LEFT:
            picked, buckets = self.band.copies(values[rows])
            rows = rows[picked]
        else:
            buckets = self.band.buckets(values[rows])
        return batch.take(pa.array(rows)).append_column(BUCKET, pa.array(buckets, pa.int64()))

    def key_columns(self, rows: pa.RecordBatch, side: int, ahead: int = 0) -> list[pa.Array]:
        """The key of every row, in the types both sides have in common; ``ahead`` columns stand before a row's own."""
        columns = [rows.column(place + ahead) for place in self.keys[side]]
        if self.band is not None:
            columns.append(rows.column(rows.num_columns - 1))
        return [
            column if column.type == type_ else column.cast(type_)
            for column, type_ in zip(columns, self.coder.types, strict=True)
        ]

    def in_order(self, rows: pa.RecordBatch, side: int) -> SortedRows:
        """Rows as they were shipped, coded and sorted."""
        codes, _ = self.coder.codes(self.key_columns(rows, side))
        return self.again(rows.add_column(0, CODE, pa.array(codes, pa.int64())), side)

    def again(self, rows: pa.RecordBatch, side: int, *, sort: bool = True) -> SortedRows:
        """Rows that have their codes already, sorted, or known to be."""
        codes = _frozen(rows.column(0).to_numpy())
        values = None
        if self.band is not None and self.banded is not None:
            values = self.band.values(rows.column(self.banded[side] + 1))
        if sort and len(rows):
            order = np.argsort(codes, kind="stable") if values is None else np.lexsort((values, codes))
            rows, codes = rows.take(pa.array(order)), _frozen(codes[order])
            values = None if values is None else values[order]
        if values is None or self.band is None:
            return SortedRows(rows, codes, None)
        firsts, lasts = self.band.reach(values) if side == LEFT else (values, values)
        return SortedRows(rows, codes, (_frozen(firsts), _frozen(lasts)))

    def joined(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Output rows from as many rows of both sides, codes in front."""
        count = len(self.arriving[LEFT])
        columns = left.columns[1 : 1 + count] + [right.column(1 + place) for place in self.right_columns]
        fitting = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, self.sent_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(fitting, schema=self.sent_schema)


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read-only and contiguous, as Arrow's are: a kernel is compiled once."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
