"""What every join of streams tells its workers, and what the stateful operator asks of a join."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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


class Placed(NamedTuple):
    """Rows and where they go: row i to the shard ``shards[i] + each`` for each of ``copies``."""

    rows: pa.RecordBatch
    shards: npt.NDArray[np.integer[Any]]
    copies: tuple[int, ...]


@dataclass(frozen=True)
class OperatorPlan(ABC):
    """One ``join_streams``, as its workers see it.

    ``schemas`` are the columns of all inputs as they come, ``names`` what Spark calls the shards, ``sent`` the output's
    columns. ``memory`` is what one task may use.
    """

    schemas: tuple[bytes, ...]
    names: tuple[int, ...]
    memory: int
    sent: bytes

    @property
    def shards(self) -> int:
        return len(self.names)

    @cached_property
    def arriving(self) -> tuple[pa.Schema, ...]:
        """The columns of all inputs."""
        return tuple(pa.ipc.read_schema(pa.py_buffer(schema)) for schema in self.schemas)

    @cached_property
    def sent_schema(self) -> pa.Schema:
        """The output's columns as Spark gets them."""
        return pa.ipc.read_schema(pa.py_buffer(self.sent))

    @cached_property
    def identity(self) -> str:
        """What must not change from one micro-batch to the next."""
        return hashlib.sha256(repr(self._fixed()).encode()).hexdigest()[:16]

    @property
    def chunk_bytes(self) -> int:
        """Rows that are written as one value; a merge holds some of each of four runs."""
        return min(self.memory // 64, 1 << 22)

    @property
    @abstractmethod
    def block_bytes(self) -> int:
        """Arriving rows that are joined in one go."""

    @abstractmethod
    def _fixed(self) -> tuple[Any, ...]:
        """What the state depends on."""

    @abstractmethod
    def shipped(self, side: int) -> pa.Schema:
        """The columns in which an input's rows travel."""

    @abstractmethod
    def placed(self, batch: pa.RecordBatch, side: int) -> Placed:
        """The rows of an input that may have a partner, and where to."""

    @abstractmethod
    def in_order(self, rows: pa.RecordBatch, side: int) -> SortedRows:
        """Rows as they were shipped, coded and sorted."""

    @abstractmethod
    def again(self, rows: pa.RecordBatch, side: int, *, sort: bool = True) -> SortedRows:
        """Rows that have their codes already, sorted, or known to be."""

    def output(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Columns as rows of the output."""
        return pa.RecordBatch.from_arrays(cast(columns, self.sent_schema.types), schema=self.sent_schema)


def present(batch: pa.RecordBatch, places: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which rows have a value in all of these columns."""
    keep = np.ones(len(batch), np.bool_)
    for place in places:
        if batch.column(place).null_count:
            keep &= batch.column(place).is_valid().to_numpy(zero_copy_only=False)
    return keep


def cast(columns: Sequence[pa.Array], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """The columns in these types."""
    return [
        column if column.type == type_ else column.cast(type_) for column, type_ in zip(columns, types, strict=True)
    ]


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read-only and contiguous, as Arrow's are: a kernel is compiled once."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
