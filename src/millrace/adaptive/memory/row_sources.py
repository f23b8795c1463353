"""Sources that output batches are filled from: numbered rows of an input, either in a batch or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.array_types import Bits, Rows
from millrace.adaptive.memory.key_ordered_rows import KeyOrderedRows
from millrace.rows.columns import OutputColumn, bytes_pieces, output_column, shape_of


class RowSource(Protocol):
    """Numbered rows of one input, either in a record batch or in the join's memory."""

    @property
    def bits(self) -> Bits:
        """Bit flags by row; one of them says whether the row has matched."""
        ...

    def longest(self, columns: Sequence[int]) -> int:
        """Return an upper bound on the string and binary bytes of any row in the given columns."""
        ...

    def bytes_of(self, columns: Sequence[int], rows: Rows) -> int:
        """Return the total string and binary bytes of some rows in the given columns."""
        ...

    def fill(self, columns: Sequence[int], rows: Rows, outputs: Sequence[OutputColumn]) -> None:
        """Append some rows to output columns."""
        ...

    def values(self, columns: Sequence[int], rows: Rows) -> list[pa.Array]:
        """Return the values of some rows, one array per column."""
        ...


class BatchRows:
    """Rows of a record batch that has just been pushed or read from disk."""

    def __init__(self, batch: pa.RecordBatch, bits: Bits) -> None:
        self.batch, self.bits = batch, bits

    @cached_property
    def _lengths(self) -> dict[int, npt.NDArray[np.int32]]:
        columns = enumerate(self.batch.columns)
        return {i: bytes_pieces(column)[2] for i, column in columns if shape_of(column.type) == "bytes"}

    def longest(self, columns: Sequence[int]) -> int:
        return sum(int(self._lengths[i].max(initial=0)) for i in columns if i in self._lengths)

    def bytes_of(self, columns: Sequence[int], rows: Rows) -> int:
        return sum(int(self._lengths[i][rows].sum(dtype=np.int64)) for i in columns if i in self._lengths)

    def fill(self, columns: Sequence[int], rows: Rows, outputs: Sequence[OutputColumn]) -> None:
        for i, output in zip(columns, outputs, strict=True):
            output.arrow(self.batch.column(i), rows)  # type: ignore[arg-type]

    def values(self, columns: Sequence[int], rows: Rows) -> list[pa.Array]:
        return [self.batch.column(i).take(pa.array(rows)) for i in columns]


class SlotRows:
    """Rows in memory, numbered by slot."""

    def __init__(self, rows: KeyOrderedRows) -> None:
        self._rows = rows

    @property
    def bits(self) -> Bits:
        return self._rows.bits

    def longest(self, columns: Sequence[int]) -> int:
        return self._rows.arena.longest(columns)

    def bytes_of(self, columns: Sequence[int], rows: Rows) -> int:
        return self._rows.arena.bytes_of(columns, rows)

    def fill(self, columns: Sequence[int], rows: Rows, outputs: Sequence[OutputColumn]) -> None:
        for task in self._rows.arena.gather(columns, rows, outputs):
            task()

    def values(self, columns: Sequence[int], rows: Rows) -> list[pa.Array]:
        outputs = [output_column(self._rows.schema.field(i).type, len(rows)) for i in columns]
        self.fill(columns, rows, outputs)
        return [output.finish() for output in outputs]
