"""What a join of two streams sends to its workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from millrace.rows.key_codes import KeyCoder
from millrace.spark.plans.band_buckets import BucketedBand
from millrace.spark.plans.stream_join_plan import StreamJoinPlan

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")
BUCKET = "__millrace_bucket"


@dataclass(frozen=True)
class PairPlan(StreamJoinPlan):
    """The plan of a join of two streams: which columns must be equal, and which must be within a band."""

    keys: tuple[tuple[int, ...], tuple[int, ...]]
    """For each side, the positions of the columns that must be equal."""
    key_types: bytes
    """The types in which the columns that must be equal are compared, as a serialized Arrow schema."""
    banded: tuple[int, int] | None
    """For each side, the position of the column that the band compares; None without a band."""
    band: BucketedBand | None
    right_columns: tuple[int, ...]
    """The positions of the right columns that are in the output."""

    @property
    def block_bytes(self) -> int:
        """Size in bytes of a block, which consists of the new rows that are joined at a time."""
        return self.memory // 8

    def _fixed(self) -> tuple[Any, ...]:
        return (self.schemas, self.keys, self.key_types, self.banded, self.band, self.names)

    @cached_property
    def coder(self) -> KeyCoder:
        """The :class:`KeyCoder` for the key, which is the columns that must be equal and, with a band, the bucket."""
        fields = list(pa.ipc.read_schema(pa.py_buffer(self.key_types)))
        if self.band is not None:
            fields.append(pa.field(BUCKET, pa.int64()))
        return KeyCoder([field.type for field in fields], [field.name for field in fields])
