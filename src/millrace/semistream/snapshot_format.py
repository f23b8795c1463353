"""The binary format of a join's snapshot: its progress and its waiting tuples."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import StateError
from millrace.semistream.output.output_order import HeldTuples

_MAGIC = b"MILLSNAP\x01"
_ORDERED = b"MILLORDR\x01"
Tally = npt.NDArray[np.uint8]
"""A byte per tuple: 7 bits count the master rows with its key code met so far, the top bit is set if one matched."""


@dataclass(frozen=True)
class Progress:
    """How far a join had come when it was saved.

    ``store`` identifies the master's data, ``join`` describes the join: its algorithm, kind, keys and condition.
    ``turned`` is the progress of the access policy, ``step`` the number of steps, ``counts`` are metrics.
    """

    store: str
    join: str
    turned: int
    step: int
    counts: Mapping[str, int]


@dataclass(frozen=True)
class WaitingChunk:
    """Waiting tuples that entered together, with the scan position and the step at which they entered.

    ``tally`` holds, for each tuple, how many master rows with its key code it has met, and whether one matched.
    """

    start: int
    step: int
    rows: pa.RecordBatch
    tally: Tally


@dataclass(frozen=True)
class SavedJoin:
    """Content of a snapshot."""

    stream: pa.Schema
    progress: Progress
    chunks: Iterator[WaitingChunk]
    held: HeldTuples | None
    """Tuples that have not left yet, if output is ordered; None if it is not."""


def read(state: bytes, *, ordered: bool) -> SavedJoin:
    """Return the content of a snapshot; raise an error if ``ordered`` differs from the saved join's."""
    if not ordered:
        schema, progress, chunks = from_bytes(state)
        return SavedJoin(schema, progress, chunks, None)
    waiting, held, head = ordered_from_bytes(state)
    _, progress, chunks = from_bytes(waiting)
    return SavedJoin(held_schema(held), progress, chunks, HeldTuples(held, head))


def to_bytes(schema: pa.Schema, progress: Progress, chunks: Sequence[WaitingChunk]) -> bytes:
    """Return a snapshot as bytes: an Arrow stream with a batch per chunk, and the progress in its metadata."""
    head = asdict(progress) | {"chunks": [[chunk.start, chunk.step] for chunk in chunks]}
    schema = pa.schema([*schema, pa.field("tally", pa.uint8())], {b"millrace": json.dumps(head).encode()})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for chunk in chunks:
            arrays = [*chunk.rows.columns, pa.array(chunk.tally)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    body = sink.getvalue()
    return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def from_bytes(state: bytes) -> tuple[pa.Schema, Progress, Iterator[WaitingChunk]]:
    """Return the schema of the waiting tuples, the progress of the join, and the chunks of a snapshot."""
    if isinstance(state, bytes) and state[: len(_ORDERED)] == _ORDERED:
        raise StateError("restore: the snapshot was taken from a join with ordered output; set ordered=True here too")
    if not isinstance(state, bytes) or state[: len(_MAGIC)] != _MAGIC:
        raise StateError("restore: not a snapshot of a join, or one of another version")
    crc, body = state[len(_MAGIC) : len(_MAGIC) + 4], state[len(_MAGIC) + 4 :]
    if zlib.crc32(body).to_bytes(4, "little") != crc:
        raise StateError("restore: the snapshot is damaged: its checksum is wrong")
    try:
        reader = pa.ipc.open_stream(body)
        head: dict[str, Any] = json.loads(reader.schema.metadata[b"millrace"])
        places = [(int(start), int(step)) for start, step in head.pop("chunks")]
        progress = Progress(**head)
        batches = list(reader)
        if len(batches) != len(places):
            raise ValueError(f"it has {len(batches)} chunks instead of {len(places)}")
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError, OSError) as error:
        raise StateError(f"restore: not a snapshot of a join: {error}") from None
    schema = pa.schema(list(reader.schema)[:-1])

    def chunks() -> Iterator[WaitingChunk]:
        for (start, step), batch in zip(places, batches, strict=True):
            *columns, tally = batch.columns
            yield WaitingChunk(start, step, pa.RecordBatch.from_arrays(columns, schema=schema), tally.to_numpy())

    return schema, progress, chunks()


def ordered_to_bytes(waiting: bytes, held: pa.RecordBatch, head: int) -> bytes:
    """Return the snapshot of a join with ordered output: its waiting room's snapshot, then its order buffer.

    ``held`` holds the tuples of the order buffer, ``head`` is the sequence number of the first.
    """
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, held.schema.with_metadata({b"head": str(head).encode()})) as writer:
        writer.write_batch(held)
    body = len(waiting).to_bytes(8, "little") + waiting + sink.getvalue()
    return _ORDERED + zlib.crc32(body).to_bytes(4, "little") + body


def ordered_from_bytes(state: bytes) -> tuple[bytes, pa.RecordBatch, int]:
    """Return the waiting room's snapshot, the tuples of the order buffer, and the sequence number of the first."""
    if isinstance(state, bytes) and state[: len(_MAGIC)] == _MAGIC:
        raise StateError(
            "restore: the snapshot was taken from a join without ordered output; set ordered=False here too"
        )
    if not isinstance(state, bytes) or state[: len(_ORDERED)] != _ORDERED:
        raise StateError("restore: not a snapshot of a join, or one of another version")
    crc, body = state[len(_ORDERED) : len(_ORDERED) + 4], state[len(_ORDERED) + 4 :]
    if zlib.crc32(body).to_bytes(4, "little") != crc:
        raise StateError("restore: the snapshot is damaged: its checksum is wrong")
    length = int.from_bytes(body[:8], "little")
    reader = pa.ipc.open_stream(body[8 + length :])
    return body[8 : 8 + length], reader.read_next_batch(), int(reader.schema.metadata[b"head"])


def stream_schema(state: bytes) -> pa.Schema:
    """Return the stream's schema from a snapshot."""
    if state[: len(_ORDERED)] == _ORDERED:
        return held_schema(ordered_from_bytes(state)[1])
    return from_bytes(state)[0]


def algorithm_of(state: bytes) -> str:
    """Return the name of the algorithm from a snapshot."""
    if state[: len(_ORDERED)] == _ORDERED:
        state = ordered_from_bytes(state)[0]
    return from_bytes(state)[1].join.partition(", ")[0]


def held_schema(held: pa.RecordBatch) -> pa.Schema:
    """Return the stream's schema, given the saved tuples of an order buffer."""
    return pa.schema(list(held.schema)[:-2])
