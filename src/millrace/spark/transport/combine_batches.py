"""Combines small record batches into larger ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

_BATCH_BYTES = 1 << 25


def combined(batches: Iterable[pa.RecordBatch], rows: int, nbytes: int = _BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the rows in combined batches of at least ``rows`` rows or ``nbytes`` bytes; the last may be smaller."""
    pending: list[pa.RecordBatch] = []
    pending_rows = pending_bytes = 0
    for batch in batches:
        pending.append(batch)
        pending_rows, pending_bytes = pending_rows + len(batch), pending_bytes + batch.nbytes
        if pending_rows >= rows or pending_bytes >= nbytes:
            yield pa.concat_batches(pending)
            pending, pending_rows, pending_bytes = [], 0, 0
    if pending_rows:
        yield pa.concat_batches(pending)
