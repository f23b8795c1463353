"""What a join leaves behind and goes on from: who waits, how far each has come, and what the cache has learned.

The first two are hard state, of which nothing may be lost: a snapshot. The cache is soft: it refills, and what is kept
of it is only taken where it can be trusted.
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from millrace.core.errors import BudgetExceededError, StateError
from millrace.core.operator import StreamOperator
from millrace.core.sizes import format_size
from millrace.rows.arena import Slots
from millrace.rows.keyed_rows import Codes
from millrace.semistream import snapshot_format as snapshots
from millrace.semistream.algorithms import ALGORITHMS, Algorithm
from millrace.semistream.choose.auto import Decision
from millrace.semistream.loop import cut
from millrace.semistream.output.order_buffer import WAITING
from millrace.semistream.output.ordered_loop import OrderedLoop
from millrace.semistream.snapshot_format import Progress, Tally, WaitingChunk


class Surviving(OrderedLoop, StreamOperator):
    """A loop that can stop and go on elsewhere. Who inherits it sets it up: the attributes below."""

    algorithm: Algorithm
    ordered: bool
    _schema: pa.Schema | None
    _cached_columns: list[int]

    @property
    @abstractmethod
    def _stream_schema(self) -> pa.Schema:
        """The stream's columns, or an error if they are not known."""

    @property
    @abstractmethod
    def matching(self) -> str:
        """What makes a match, in words."""

    @abstractmethod
    def bind(self, stream: pa.Schema) -> pa.Schema:
        """Fix the stream's schema."""

    @abstractmethod
    def _become(self, decision: Decision) -> None:
        """Begin with another algorithm."""

    def snapshot(self) -> bytes:
        """The waiting tuples, how far each has come, and the counts. The cache is not part of it: it refills."""
        self._check_between_calls("snapshot")
        schema = self._stream_schema if self._order is None else WAITING
        chunks = [WaitingChunk(start, step, *self.rows_at(slots)) for start, step, slots in self.queue()]
        waiting = snapshots.to_bytes(schema, self.progress(), chunks)
        if self._order is None:
            return waiting
        return snapshots.ordered_to_bytes(waiting, self._order.to_batch(), self._order.head)

    def restore(self, state: bytes) -> None:
        if self._schema is not None and (self._step or self._metrics.tuples_in):
            raise StateError("restore: this join has already begun; restore into a fresh one")
        if not self.ordered:
            schema, progress, chunks = snapshots.from_bytes(state)
            self.bind(schema)
            self.resume(progress, chunks)
            return
        waiting, held, head = snapshots.ordered_from_bytes(state)
        _, progress, chunks = snapshots.from_bytes(waiting)
        self.bind(snapshots.held_schema(held))
        self._check_same_join(progress)
        assert self._order is not None
        if not self._order.accept(held, cut(held, 0, len(held))[:-2], head):
            self._broken = "restore failed half-way"
            raise BudgetExceededError(f"restore: the held tuples do not fit in {format_size(self.budget.total)}")
        self.resume(progress, chunks)

    def progress(self) -> Progress:
        """How far the join has come: everything that has to survive beside the waiting tuples."""
        m = self.metrics
        counts = {name: getattr(m, name) for name in snapshots.CARRIED}
        return Progress(self.store.manifest.snapshot, self._kind, self._access.turned, self._step, counts)

    @property
    def _kind(self) -> str:
        return f"{self.algorithm.name}, {self._asked}"

    @property
    def _asked(self) -> str:
        return f"{self.spec.how} {self.matching}"

    def _check_same_join(self, progress: Progress) -> None:
        if progress.store != self.store.manifest.snapshot:
            raise StateError("restore: the snapshot was taken of a join with another master")
        theirs, _, rest = progress.join.partition(", ")
        if progress.join != self._kind and not (self.auto and theirs in ALGORITHMS and rest == self._asked):
            theirs = progress.join
            raise StateError(f"restore: the snapshot is of another kind of join: {theirs}; this one is {self._kind}")
        if self.auto is not None and theirs != self.algorithm.name:
            if ALGORITHMS[theirs].at_once and self.shedding is not None and self.shedding.spare_hits:
                raise StateError(f"restore: the snapshot is of {theirs}, which cannot tell who has to wait: spare_hits")
            self.auto.why = "the snapshot was taken of it"
            self._become(Decision(theirs, {}, self.auto.why))

    def resume(self, progress: Progress, chunks: Iterable[WaitingChunk]) -> None:
        """Go on from there with these tuples waiting, oldest chunk first."""
        self._check_same_join(progress)
        self._access.resume(progress.turned)
        self._step = progress.step
        if self._access.cycles % 1:
            self._last_cycle = int(self._access.cycles) + 1  # this turn has begun already
        for name, count in progress.counts.items():
            setattr(self._metrics, name, count)
        room = self._room
        for chunk in chunks:
            columns = cut(chunk.rows, 0, len(chunk.rows))
            if not room.fits(columns):
                room.rows.trim()  # slots may have been reserved ahead
            if not room.fits(columns):
                self._broken = "restore failed half-way"
                raise BudgetExceededError(f"restore: the waiting tuples do not fit in {format_size(self.budget.total)}")
            codes = self._codes_of_waiting(columns)
            room.admit(codes, columns, chunk.start, chunk.step)
            self._access.admitted(codes)
            room.rows.marks["tally"][room.chunks[-1].slots] = chunk.tally
        self._access.resumed(self._step - room.chunks[0].step if room.chunks else 0)

    def _codes_of_waiting(self, columns: list[pa.Array]) -> Codes:
        """The key codes of tuples in the waiting room."""
        if self._order is None:
            return self._codes(columns)[0]
        keys = self._order.tuples.take(self._key_columns, self._order.slots(columns[0].to_numpy()))
        return self.store.coder.codes(self.widened(keys))[0]

    def rows_at(self, slots: Slots) -> tuple[pa.RecordBatch, Tally]:
        """Waiting tuples (their numbers, if output is ordered), and what each has met so far."""
        schema, rows = self._stream_schema if self._order is None else WAITING, self._room.rows
        arrays = rows.take(range(len(schema)), slots)
        return pa.RecordBatch.from_arrays(arrays, schema=schema), self.tally_at(slots)

    def tally_at(self, slots: Slots) -> Tally:
        """What waiting tuples have met so far."""
        tally: Tally = self._room.rows.marks["tally"][slots]
        return tally

    def queue(self) -> list[tuple[int, int, Slots]]:
        """Who waits, oldest first: where the wheel stood when they came, the step, and their slots."""
        return self._room.queue()

    def keep_cache(self, path: str | os.PathLike[str] | io.BytesIO) -> bool:
        """Write what the cache has learned to a file, or into memory; False where there is nothing that can be kept."""
        self.bind(self._stream_schema)
        return self._cache.keep(path if isinstance(path, io.BytesIO) else Path(path), self._cached_identity)

    def recall_cache(self, path: str | os.PathLike[str] | io.BytesIO) -> bool:
        """Begin with the cache of an earlier join of the same kind; False if there is none that can be trusted."""
        self.bind(self._stream_schema)
        where = path if isinstance(path, io.BytesIO) else Path(path)
        if self._cache.recall(where, self._cached_identity):
            return True
        chosen = self.algorithm.name
        if self.auto is None or chosen != "r-meshjoin" or self.metrics.tuples_in:
            return False
        self._become(Decision("ssbj", {}, "its cache was kept"))  # an earlier join had reason to have one
        if isinstance(where, io.BytesIO):
            where.seek(0)
        if self._cache.recall(where, self._cached_identity):
            self.auto.why = "its cache was kept"
            return True
        self._become(Decision(chosen, {}, self.auto.why))
        return False

    @property
    def _cached_identity(self) -> str:
        """What a cache is good for: rows of this master, these columns, this reading of a match."""
        m, a = self.store.manifest, self.algorithm.name
        shards = ",".join(shard.data.path for shard in m.shards)
        rows = " numbered" if self.ordered else ""
        return f"{m.snapshot} {shards} {a} {self._single} {self._cached_columns}{rows}"
