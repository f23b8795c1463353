"""The hard state of ``pending="carry"``: one shard's waiting tuples, position of the wheel and cache.

All are values of one map state, because Spark sets up every state variable anew for each task, which costs more than a
value:

``head``
    a line of JSON (:class:`CarryHead`), then for every chunk its marks: which of its tuples still wait and what each
    has matched, a byte or less per tuple; written in every micro-batch
``rows <start>``
    the tuples of a chunk as they came; written once
``cache``
    the keys and rows of the cache; written when they have changed enough

Of the last two there are copies on the executor's disk (:mod:`millrace.spark.state.local_copies`).
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import StateError
from millrace.semistream.join import SemiStreamJoin
from millrace.semistream.snapshot_format import Progress, WaitingChunk
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.state.local_copies import LocalCopies, digest_of
from millrace.spark.state.soft_cache import worth_keeping
from millrace.spark.transport.batch_bytes import from_blob, to_blob

_HEAD, _CACHE = "head", "cache"
_FORMAT = 1
"""The layout of the state; another layout has another number."""

Slots = npt.NDArray[Any]


class ChunkEntry(NamedTuple):
    """A chunk of waiting tuples, as the head has it."""

    start: int
    """Position of the wheel when the tuples came."""
    step: int
    """Step of the join in which they came."""
    length: int
    """Tuples of the chunk when it was written."""
    marks_bytes: int
    """Bytes of its marks."""
    digest: str
    """Digest of its rows."""


@dataclass(frozen=True)
class CarryHead:
    """Where the last micro-batch left a shard."""

    format: int
    identity: str
    """Of which join the state is."""
    timer: int
    """When the next timer is due, in milliseconds."""
    at: int
    """When the micro-batch ran, in milliseconds."""
    progress: dict[str, Any]
    chunks: list[ChunkEntry]
    cache: str
    """Digest of the cache; empty if there is none."""

    @staticmethod
    def read(line: bytes) -> CarryHead:
        """Return the head that a line of JSON describes."""
        values = json.loads(line)
        if values.get("format") != _FORMAT:
            raise StateError(
                "carry: the checkpoint was made by another version of millrace, with another layout of the state. "
                "Run that version until no tuples wait, or start with a new checkpoint"
            )
        chunks = [ChunkEntry(*chunk) for chunk in values["chunks"]]
        return CarryHead(**{**values, "chunks": chunks})

    def check(self, plan: EnrichPlan) -> None:
        """Check that the state is of the join of this plan."""
        if self.identity != plan.identity:
            raise StateError(
                "carry: the checkpoint is of another join: master, keys, columns, kind of join or the stream's schema "
                "have changed. Go on with the old parameters, or start with a new checkpoint"
            )
        wrote = str(self.progress["join"]).partition(", ")[0]
        if wrote != plan.algorithm:
            raise StateError(
                f"carry: in the checkpoint tuples wait for {wrote}, and the query now runs {plan.algorithm}. Go "
                f"on with algorithm={wrote!r}, or start with a new checkpoint"
            )


class _StoredChunk:
    """A chunk whose rows are in the state."""

    def __init__(self, length: int, digest: str, present: Slots, slots: Slots) -> None:
        self.length, self.digest = length, digest
        self.present = present
        """Which of its rows waited when the join was restored, or when the chunk was written."""
        self.slots = slots
        """The slots of these rows in the join."""


class CarryState:
    """The state of one shard during one micro-batch.

    Parameters
    ----------
    values
        Spark's map state.
    """

    def __init__(self, plan: EnrichPlan, values: Any, copies: LocalCopies) -> None:
        self._plan, self._values, self._copies = plan, values, copies
        self._chunks: dict[int, _StoredChunk] = {}
        self._head: CarryHead | None = None
        self._cache = ""

    @property
    def timer(self) -> int:
        """When the timer is due that an earlier micro-batch has registered, in milliseconds; 0 if none has."""
        return self._head.timer if self._head else 0

    def restore(self, join: SemiStreamJoin) -> None:
        """Put the join where the last micro-batch left it."""
        line, _, marks = _value(self._values, _HEAD).partition(b"\n")
        if not line:
            return
        head = self._head = CarryHead.read(line)
        head.check(self._plan)
        self._cache = head.cache
        if head.cache:
            join.recall_cache(io.BytesIO(self._recall(_CACHE, head.cache)))
        waiting: list[WaitingChunk] = []
        present: list[Slots] = []
        for entry in head.chunks:
            rows = from_blob(self._recall(_rows_key(entry.start), entry.digest))
            still, tally = _read_marks(marks[: entry.marks_bytes], entry.length)
            marks = marks[entry.marks_bytes :]
            if len(still) < len(rows):
                rows = rows.take(pa.array(still))
            waiting.append(WaitingChunk(entry.start, entry.step, rows, tally))
            present.append(still)
        join.resume(Progress(**head.progress), waiting)
        for (start, _, slots), entry, still in zip(join.queue(), head.chunks, present, strict=True):
            assert start == entry.start
            self._chunks[start] = _StoredChunk(entry.length, entry.digest, still, slots)

    def save(self, join: SemiStreamJoin, timer: int, now: int) -> None:
        """Write down which tuples wait now and, if it has changed enough, the cache."""
        before = self._cache
        cache = io.BytesIO()
        if worth_keeping(join) and join.keep_cache(cache):
            self._cache = self._keep(_CACHE, cache.getvalue())
        chunks, marks = [], b""
        for start, step, slots in join.queue():
            if len(slots):
                entry, mine = self._saved_chunk(join, start, step, slots)
                chunks.append(entry)
                marks += mine
        waiting = {entry.start for entry in chunks}
        finished = [start for start in self._chunks if start not in waiting]
        for start in finished:
            self._values.removeKey((_rows_key(start),))
        progress = asdict(join.progress()) | {"counts": {}}
        head = CarryHead(_FORMAT, self._plan.identity, timer, now, progress, chunks, self._cache)
        self._values.updateValue((_HEAD,), (json.dumps(vars(head)).encode() + b"\n" + marks,))
        unused = [self._chunks[start].digest for start in finished]
        self._copies.forget(unused if self._cache == before else [*unused, before])

    def _saved_chunk(self, join: SemiStreamJoin, start: int, step: int, slots: Slots) -> tuple[ChunkEntry, bytes]:
        """Write the rows of a chunk unless they are in the state already; return its entry and its marks."""
        if start not in self._chunks:
            rows, _ = join.rows_at(slots)
            digest = self._keep(_rows_key(start), to_blob(rows))
            self._chunks[start] = _StoredChunk(len(slots), digest, np.arange(len(slots)), slots)
        chunk = self._chunks[start]
        still = _is_among(chunk.slots, slots)
        if int(still.sum()) != len(slots):
            raise StateError(f"carry: tuples were added to chunk {start} after it was written")
        marks = _write_marks(chunk.length, chunk.present[still], join.tally_at(chunk.slots[still]))
        return ChunkEntry(start, step, chunk.length, len(marks), chunk.digest), marks

    def _recall(self, key: str, digest: str) -> bytes:
        """Return the value with this digest, from the disk if there is a copy."""
        blob = self._copies.get(digest)
        if blob is None:
            blob = _value(self._values, key)
            self._copies.put(digest, blob)
        return blob

    def _keep(self, key: str, blob: bytes) -> str:
        """Write a value, and return its digest."""
        self._values.updateValue((key,), (blob,))
        digest = digest_of(blob)
        self._copies.put(digest, blob)
        return digest


def last_run(values: Any) -> int | None:
    """Return when the last micro-batch of a shard ran, in milliseconds; None if there was none."""
    line, _, _ = _value(values, _HEAD).partition(b"\n")
    return CarryHead.read(line).at if line else None


def _value(values: Any, key: str) -> bytes:
    value = values.getValue((key,))
    return b"" if value is None else bytes(value[0])


def _rows_key(start: int) -> str:
    """Return the key of the tuples of a chunk."""
    return f"rows {start}"


def _is_among(slots: Slots, others: Slots) -> npt.NDArray[np.bool_]:
    """Return for every slot whether it is among the others."""
    present = np.zeros(1 + max(int(slots.max(initial=0)), int(others.max(initial=0))), np.bool_)
    present[others] = True
    return np.asarray(present[slots])


def _write_marks(length: int, present: Slots, tally: npt.NDArray[np.uint8]) -> bytes:
    """Return the marks of a chunk: a bit for every tuple that still waits, then what each of these has matched."""
    waits = np.zeros(length, np.bool_)
    waits[present] = True
    return np.packbits(waits).tobytes() + tally.tobytes()


def _read_marks(marks: bytes, length: int) -> tuple[Slots, npt.NDArray[np.uint8]]:
    """Return which tuples of a chunk still wait, and what each of these has matched."""
    bits = -(-length // 8)
    waits = np.unpackbits(np.frombuffer(marks, np.uint8, bits), count=length)
    return np.flatnonzero(waits), np.frombuffer(marks, np.uint8, offset=bits)
