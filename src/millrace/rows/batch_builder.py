"""Output batches of bounded size, filled column by column."""

from __future__ import annotations

import pyarrow as pa

from millrace.rows.columns import OutputColumn, item_of, output_columns, shape_of

BATCH_ROWS = 65_536
BATCH_BYTES = 8_000_000
_OPAQUE_PIECE = 16  # rows that are appended at first if their sizes are not known beforehand


def fixed_width(schema: pa.Schema) -> int:
    """Return about how many bytes a row of this schema takes, without the contents of strings and nested values."""
    return sum(item_of(f.type).itemsize if shape_of(f.type) == "fixed" else 4 for f in schema)


class BatchBuilder:
    """Collects output rows and returns them as record batches of at most about ``BATCH_BYTES`` (8 MB).

    To use it, append at most :attr:`room` rows to every column, with at most :attr:`bytes_left` bytes of strings in all
    (a single row may have more). Then call :meth:`advance`, and :meth:`flush` if the batch is :attr:`full`.
    """

    def __init__(self, schema: pa.Schema, rows: int = BATCH_ROWS) -> None:
        self.schema = schema
        self._fixed = max(1, fixed_width(schema))
        self._limit = max(1, min(rows, BATCH_BYTES // self._fixed))
        self.opaque = any(shape_of(field.type) == "opaque" for field in schema)
        """Whether there are nested columns, so that the size of the rows is not known before :meth:`settle`."""
        self._piece = min(self._limit, _OPAQUE_PIECE) if self.opaque else self._limit
        self._start()

    def _start(self) -> None:
        self.rows = 0
        self._held = 0
        self._columns: list[OutputColumn] = []

    @property
    def columns(self) -> list[OutputColumn]:
        """The output columns, made at their first use."""
        if not self._columns:
            self._columns = output_columns(self.schema, self._limit)
        return self._columns

    @property
    def room(self) -> int:
        """Maximum number of rows that may be appended next."""
        return min(self._limit - self.rows, self._piece)

    @property
    def bytes_left(self) -> int:
        """Maximum number of bytes that the strings and nested values of the next rows may take."""
        return BATCH_BYTES - self.rows * self._fixed - self._held

    @property
    def full(self) -> bool:
        return self.rows >= self._limit or self.bytes_left <= self._fixed

    def advance(self, rows: int, held: int) -> None:
        """Count ``rows`` more rows with at most ``held`` bytes of strings; call it before or after appending them."""
        self.rows += rows
        self._held += held

    def settle(self) -> None:
        """Replace estimates by the true size of strings and nested values. Call it once all columns have their rows."""
        self._held = sum(column.heap_bytes for column in self._columns)
        if self.opaque and self.rows:
            mean = max(1, self._held // self.rows)
            self._piece = max(1, min(self._limit, 1024, BATCH_BYTES // 8 // mean))

    def flush(self) -> pa.RecordBatch | None:
        """Return the rows collected so far as a batch and begin a new one; None if there are no rows."""
        if self.rows == 0:
            return None
        batch = pa.RecordBatch.from_arrays([column.finish() for column in self._columns], schema=self.schema)
        self._start()
        return batch
