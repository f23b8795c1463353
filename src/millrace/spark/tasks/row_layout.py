"""Routes the rows of a stream join's inputs to shards, computes their key codes, and sorts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.spark.plans.stream_join_plan import StreamJoinPlan
from millrace.spark.state.keyed_runs import RunRows


class RoutedRows(NamedTuple):
    """Rows and the shards that they go to. Row i goes to the shard ``shards[i] + offset`` for every offset."""

    rows: pa.RecordBatch
    shards: npt.NDArray[np.integer[Any]]
    offsets: tuple[int, ...]


class RowLayout(ABC):
    """Routes rows to shards before they are packed; after they are unpacked, computes key codes and sorts by them."""

    plan: StreamJoinPlan

    @abstractmethod
    def packed_schema(self, side: int) -> pa.Schema:
        """Return the schema in which an input's rows are packed."""

    @abstractmethod
    def route(self, batch: pa.RecordBatch, side: int) -> RoutedRows:
        """Return the rows of an input that may match other inputs' rows, and the shards that they go to."""

    @abstractmethod
    def code(self, rows: pa.RecordBatch, side: int) -> RunRows:
        """Return packed rows with their key codes, sorted by code."""

    @abstractmethod
    def restore(self, rows: pa.RecordBatch, side: int, *, sort: bool = True) -> RunRows:
        """Convert rows, with the key code as first column, to :class:`RunRows`; sort them unless ``sort`` is False."""

    def output(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return the output's columns as a batch, cast to the types that Spark expects."""
        schema = self.plan.sent_schema
        return pa.RecordBatch.from_arrays(cast(columns, schema.types), schema=schema)


def all_present(batch: pa.RecordBatch, places: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return for every row whether it has a value in all of these columns."""
    keep = np.ones(len(batch), np.bool_)
    for place in places:
        if batch.column(place).null_count:
            keep &= batch.column(place).is_valid().to_numpy(zero_copy_only=False)
    return keep


def cast(columns: Sequence[pa.Array], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return the columns, cast to these types where they differ."""
    return [
        column if column.type == type_ else column.cast(type_) for column, type_ in zip(columns, types, strict=True)
    ]


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a contiguous, read-only view or copy, like Arrow's arrays, so that kernels are compiled for one type."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
