"""What ``pending="carry"`` keeps in Spark's state: one shard's waiting tuples, position of the scan, and cache.

Waiting tuples are stored in chunks. A chunk holds the tuples that came at the same position of the scan. All is stored
in one map state, because each further state variable would cost every task more than another key in the map:

``head``
    a line of JSON (:class:`CarryHead`), then the marks of every chunk: a bit for each of its tuples, set if the tuple
    still waits, and for each waiting tuple its tally, a byte that says how many master rows with its key code it has
    met, and whether one matched; written in every micro-batch
``rows <start>``
    the tuples of the chunk that came at position ``start``; written once
``cache``
    the keys and rows of the cache; written when they have changed enough

The last two are also copied to the executor's disk (:mod:`millrace.spark.state.local_copies`).
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
"""The version number of the state's layout."""

Slots = npt.NDArray[Any]


class ChunkEntry(NamedTuple):
    """What the state's head records about a chunk of waiting tuples."""

    start: int
    """Position of the scan when the tuples came, in master rows scanned so far."""
    step: int
    """Number of the join's step in which the tuples came."""
    length: int
    """Number of tuples in the chunk when it was written."""
    marks_bytes: int
    """Length of the chunk's marks, in bytes."""
    digest: str
    """Digest of the chunk's rows."""


@dataclass(frozen=True)
class CarryHead:
    """The head of a shard's state: everything but the rows, the cache and the marks."""

    format: int
    identity: str
    """Digest of the join that the state belongs to (:attr:`EnrichPlan.identity`)."""
    timer: int
    """Time at which the next timer is due, in milliseconds since 1970."""
    at: int
    """Time at which the micro-batch ran, in milliseconds since 1970."""
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
        """Check that the state belongs to the join of this plan."""
        if self.identity != plan.identity:
            raise StateError(
                "carry: the checkpoint belongs to another join: master, keys, columns, kind of join or the stream's "
                "schema have changed. Undo the change, or start with a new checkpoint"
            )
        wrote = str(self.progress["join"]).partition(", ")[0]
        if wrote != plan.algorithm:
            raise StateError(
                f"carry: the checkpoint has tuples that wait with {wrote}, but the query now runs {plan.algorithm}. "
                f"Use algorithm={wrote!r}, or start with a new checkpoint"
            )


class _StoredChunk:
    """A chunk of tuples whose rows are in the state already."""

    def __init__(self, length: int, digest: str, present: Slots, slots: Slots) -> None:
        self.length, self.digest = length, digest
        self.present = present
        """The positions in the chunk of the rows that waited when the join was restored or the chunk was written."""
        self.slots = slots
        """For each position in ``present``, the slot in the join's memory that holds the row."""


class CarryState:
    """The state of one shard during one micro-batch.

    Parameters
    ----------
    values
        Spark's map state of the shard.
    copies
        Copies of the map state's large values on a local disk.
    """

    def __init__(self, plan: EnrichPlan, values: Any, copies: LocalCopies) -> None:
        self._plan, self._values, self._copies = plan, values, copies
        self._chunks: dict[int, _StoredChunk] = {}
        self._head: CarryHead | None = None
        self._cache = ""

    @property
    def timer(self) -> int:
        """Time at which an earlier micro-batch's timer is due, in milliseconds since 1970; 0 if there is none."""
        return self._head.timer if self._head else 0

    def restore(self, join: SemiStreamJoin) -> None:
        """Restore the join from the state that the last micro-batch left."""
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
        """Write the waiting tuples and the scan's position to the state, and the cache if it has changed enough.

        ``timer`` is when the next timer is due, ``now`` the current time, both in milliseconds since 1970.
        """
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
        progress = asdict(join.progress()) | {"counts": {}}  # metrics are those of one micro-batch
        head = CarryHead(_FORMAT, self._plan.identity, timer, now, progress, chunks, self._cache)
        self._values.updateValue((_HEAD,), (json.dumps(vars(head)).encode() + b"\n" + marks,))
        unused = [self._chunks[start].digest for start in finished]
        self._copies.forget(unused if self._cache == before else [*unused, before])

    def _saved_chunk(self, join: SemiStreamJoin, start: int, step: int, slots: Slots) -> tuple[ChunkEntry, bytes]:
        """Write the rows of a chunk unless they are in the state already; return its entry and its marks.

        The marks are bytes that say which tuples of the chunk still wait, and how many rows of its key each has met.
        ``start`` and ``step`` are the position of the scan and the step of the join at which the tuples came.
        """
        if start not in self._chunks:
            rows, _ = join.rows_at(slots)
            digest = self._keep(_rows_key(start), to_blob(rows))
            self._chunks[start] = _StoredChunk(len(slots), digest, np.arange(len(slots)), slots)
        chunk = self._chunks[start]
        still = _is_among(chunk.slots, slots)
        if int(still.sum()) != len(slots):
            raise StateError(
                f"carry: expected no new tuples in the chunk of waiting tuples at scan position {start}, which is "
                f"written already; got {len(slots) - int(still.sum())}. This is an error in Millrace; please report it"
            )
        marks = _write_marks(chunk.length, chunk.present[still], join.tally_at(chunk.slots[still]))
        return ChunkEntry(start, step, chunk.length, len(marks), chunk.digest), marks

    def _recall(self, key: str, digest: str) -> bytes:
        """Return the value of ``key`` from the local copy with this digest or, if there is no copy, from the state."""
        blob = self._copies.get(digest)
        if blob is None:
            blob = _value(self._values, key)
            self._copies.put(digest, blob)
        return blob

    def _keep(self, key: str, blob: bytes) -> str:
        """Write a value to the state and a copy to the local disk, and return its digest."""
        self._values.updateValue((key,), (blob,))
        digest = digest_of(blob)
        self._copies.put(digest, blob)
        return digest


def last_run(values: Any) -> int | None:
    """Return the time at which a shard's last micro-batch ran, in milliseconds since 1970; None if there was none."""
    line, _, _ = _value(values, _HEAD).partition(b"\n")
    return CarryHead.read(line).at if line else None


def _value(values: Any, key: str) -> bytes:
    value = values.getValue((key,))
    return b"" if value is None else bytes(value[0])


def _rows_key(start: int) -> str:
    """Return the key under which the state stores the tuples of a chunk."""
    return f"rows {start}"


def _is_among(slots: Slots, others: Slots) -> npt.NDArray[np.bool_]:
    """Return a mask of the slots that are among ``others``."""
    present = np.zeros(1 + max(int(slots.max(initial=0)), int(others.max(initial=0))), np.bool_)
    present[others] = True
    return np.asarray(present[slots])


def _write_marks(length: int, present: Slots, tally: npt.NDArray[np.uint8]) -> bytes:
    """Return the marks of a chunk: a bit per tuple, set if it still waits, then the tally of each waiting tuple.

    A tally is a byte that says how many master rows with its key code the tuple has met, and whether one matched.
    """
    waits = np.zeros(length, np.bool_)
    waits[present] = True
    return np.packbits(waits).tobytes() + tally.tobytes()


def _read_marks(marks: bytes, length: int) -> tuple[Slots, npt.NDArray[np.uint8]]:
    """Return the positions of the tuples that still wait, in a chunk of ``length`` tuples, and the tally of each.

    For the meaning of a tally see :func:`_write_marks`.
    """
    bits = -(-length // 8)
    waits = np.unpackbits(np.frombuffer(marks, np.uint8, bits), count=length)
    return np.flatnonzero(waits), np.frombuffer(marks, np.uint8, offset=bits)
