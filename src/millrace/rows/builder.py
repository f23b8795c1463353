"""Output batches of bounded size, filled column by column."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.rows.columns import OutputColumn, item_of, output_column, shape_of

BATCH_ROWS = 65_536
BATCH_BYTES = 8_000_000
_GUESS = 32  # bytes of a string nobody has seen yet
_FIRST_PIECE = 512


def fixed_width(schema: pa.Schema) -> int:
    """Bytes of a row without what its strings and nested values hold."""
    return sum(item_of(f.type).itemsize if shape_of(f.type) == "fixed" else 4 for f in schema)


class BatchBuilder:
    """Collects output rows and hands them out as record batches of at most about ``BATCH_BYTES``.

    Fill at most :attr:`room` rows in every column, :meth:`advance`, then :meth:`flush` if :attr:`full`.
    """

    def __init__(self, schema: pa.Schema, rows: int = BATCH_ROWS) -> None:
        self.schema = schema
        self._varies = any(shape_of(field.type) in ("bytes", "opaque") for field in schema)
        self._fixed = max(1, fixed_width(schema))
        self._row_bytes = float(self._fixed + _GUESS * sum(shape_of(f.type) == "bytes" for f in schema))
        self._limit = max(1, min(rows, BATCH_BYTES // self._fixed))
        self._piece = _FIRST_PIECE if self._varies else self._limit
        self._start()

    def _start(self) -> None:
        self.rows = 0
        self.columns: list[OutputColumn] = []

    def _open(self) -> None:
        if not self.columns:
            self.columns = [output_column(field.type, self._limit) for field in self.schema]

    @property
    def room(self) -> int:
        """How many rows may be appended next."""
        self._open()
        by_bytes = int((BATCH_BYTES - self.rows * self._row_bytes) / self._row_bytes)
        return max(1, min(self._limit - self.rows, self._piece, by_bytes))

    @property
    def full(self) -> bool:
        return self.rows >= self._limit or self.rows * self._row_bytes >= BATCH_BYTES

    def part(self, start: int, stop: int) -> Sequence[OutputColumn]:
        """The output columns ``start`` to ``stop``."""
        return self.columns[start:stop]

    def advance(self, rows: int) -> None:
        """All columns have got ``rows`` more rows."""
        self.rows += rows
        if self._varies and self.rows:
            held = sum(column.heap_bytes for column in self.columns)
            self._row_bytes = self._fixed + held / self.rows
            self._piece = min(self._limit, self._piece * 2, max(1, int(BATCH_BYTES / self._row_bytes)))

    def flush(self) -> pa.RecordBatch | None:
        """What has been collected, or None if that is nothing."""
        if self.rows == 0:
            return None
        arrays = [column.finish() for column in self.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._start()
        return batch
