"""Conversion between record batches and bytes, so that a batch fits into one value of a row."""

from __future__ import annotations

import pyarrow as pa


def to_blob(batch: pa.RecordBatch) -> bytes:
    """Return one batch as bytes in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_blob(blob: bytes | pa.Buffer) -> pa.RecordBatch:
    """Return the batch in bytes made by :func:`to_blob`; its data is not copied."""
    return pa.ipc.open_stream(blob).read_next_batch()
