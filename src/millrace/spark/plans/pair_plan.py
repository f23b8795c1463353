"""What the workers of a join of two streams are told, and how they read codes and intervals from rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.rows.key_codes import KeyCoder
from millrace.spark.plans.band_buckets import Band
from millrace.spark.plans.stream_join_plan import CODE, OperatorPlan, Placed, SortedRows, cast, frozen, present

LEFT, RIGHT = 0, 1
BUCKET = "__millrace_bucket"


@dataclass(frozen=True)
class MeetingPlan(OperatorPlan):
    """Two streams: what has to be equal, and what may be in a band.

    ``keys`` are the places of the columns that have to be equal, ``key_types`` the types in which they are compared;
    ``banded`` are the places of the columns that ``band`` is about.
    """

    keys: tuple[tuple[int, ...], tuple[int, ...]]
    key_types: bytes
    banded: tuple[int, int] | None
    band: Band | None
    right_columns: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        return self.memory // 8

    def _fixed(self) -> tuple[Any, ...]:
        return (self.schemas, self.keys, self.key_types, self.banded, self.band, self.names)

    def shipped(self, side: int) -> pa.Schema:
        schema = self.arriving[side]
        return schema if self.band is None else schema.append(pa.field(BUCKET, pa.int64()))

    @cached_property
    def coder(self) -> KeyCoder:
        """The key of a row: what has to be equal, the bucket among it."""
        fields = list(pa.ipc.read_schema(pa.py_buffer(self.key_types)))
        if self.band is not None:
            fields.append(pa.field(BUCKET, pa.int64()))
        return KeyCoder([field.type for field in fields], [field.name for field in fields])

    # rows

    def placed(self, batch: pa.RecordBatch, side: int) -> Placed:
        rows = self.with_buckets(batch, side)
        return Placed(rows, self.coder.shards(self.key_columns(rows, side), self.shards), (0,))

    def with_buckets(self, batch: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """The rows that may have a partner, with their bucket if there is a band; a left row once for every bucket."""
        keep = present(batch, [*self.keys[side], *([] if self.banded is None else [self.banded[side]])])
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
        return cast(columns, self.coder.types)

    def in_order(self, rows: pa.RecordBatch, side: int) -> SortedRows:
        codes, _ = self.coder.codes(self.key_columns(rows, side))
        return self.again(rows.add_column(0, CODE, pa.array(codes, pa.int64())), side)

    def again(self, rows: pa.RecordBatch, side: int, *, sort: bool = True) -> SortedRows:
        codes = frozen(rows.column(0).to_numpy())
        values = None
        if self.band is not None and self.banded is not None:
            values = self.band.values(rows.column(self.banded[side] + 1))
        if sort and len(rows):
            order = np.argsort(codes, kind="stable") if values is None else np.lexsort((values, codes))
            rows, codes = rows.take(pa.array(order)), frozen(codes[order])
            values = None if values is None else values[order]
        if values is None or self.band is None:
            return SortedRows(rows, codes, None)
        firsts, lasts = self.band.reach(values) if side == LEFT else (values, values)
        return SortedRows(rows, codes, (frozen(firsts), frozen(lasts)))

    def joined(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Output rows from as many rows of both sides, codes in front."""
        count = len(self.arriving[LEFT])
        return self.output(left.columns[1 : 1 + count] + [right.column(1 + place) for place in self.right_columns])
