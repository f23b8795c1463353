"""Output in any order: a tuple leaves as soon as all of its matches are known."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pyarrow as pa

from millrace.kernels.groups import ABSENT, MISS
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes
from millrace.semistream.intake import ArrivedTuples
from millrace.semistream.output.cache_hits import CacheHits
from millrace.semistream.output.index_answers import IndexAnswers
from millrace.semistream.output.output_columns import Batches
from millrace.semistream.output.output_order import HeldTuples, cut, too_large
from millrace.semistream.output.parts import JoinParts
from millrace.semistream.stream_keys import Flags


class UnorderedOutput:
    """Answers tuples from the cache, lets the other tuples wait, and emits pairs as soon as they are found."""

    def __init__(self, parts: JoinParts, at_once: IndexAnswers | None) -> None:
        self.parts, self._at_once = parts, at_once
        self._hits = CacheHits(parts)
        self._next = self._no_rows = pa.RecordBatch.from_pylist([], parts.binding.stream)
        self._codes: Codes = np.empty(0, np.int64)
        self._at = 0

    # tuples come

    def begin(self, arrived: ArrivedTuples) -> Batches:
        misses = yield from self._answer_hits(arrived)
        if self._at_once is not None:
            yield from self._at_once.answer(arrived, misses)
            return
        misses = self.parts.intake.spare(arrived.codes, misses)
        if len(misses):
            self._next, self._codes, self._at = arrived.batch.take(pa.array(misses)), arrived.codes[misses], 0

    def _answer_hits(self, arrived: ArrivedTuples) -> Generator[pa.RecordBatch, None, Indices]:
        """Yield the output of tuples that the cache answers; return the places of the others."""
        found = self._hits.look_up(arrived.codes)
        if arrived.valid is not None:
            found[~arrived.valid] = ABSENT  # a null key matches nothing
        misses = np.flatnonzero(found == MISS)
        if len(misses) < len(found):
            nulls = 0 if arrived.valid is None else int((~arrived.valid).sum())
            self.parts.metrics.cache_hits += len(found) - len(misses) - nulls
            yield from self._hits.answer(arrived.batch, found)
        return misses

    @property
    def pending(self) -> int:
        return len(self._codes) - self._at

    def admit(self, step: int) -> Generator[pa.RecordBatch, None, bool]:
        yield from ()  # letting tuples in emits nothing
        parts, room = self.parts, self.parts.room
        count = min(parts.access.quota(self.capacity), self.pending)
        columns = cut(self._next, self._at, count)
        while count > 1 and not room.fits(columns):
            count //= 2
            columns = cut(self._next, self._at, count)
        if count < 1 or not room.fits(columns):
            return True
        codes = self._codes[self._at : self._at + count]
        counts = room.admit(codes, columns, parts.access.place, step)
        parts.metrics.most_waiting = max(parts.metrics.most_waiting, len(room))
        parts.access.on_admit(codes)
        parts.cache.on_admit(codes, counts)
        self._at += count
        if not self.pending:
            self._clear_pending()
        return False

    def make_room_for_one(self, step: int) -> None:
        room, columns = self.parts.room, cut(self._next, self._at, 1)
        room.rows.trim()
        if not room.fits(columns):
            self.parts.cache.free_memory()
        if not room.fits(columns):
            self.parts.metrics.tuples_in -= self.pending
            self._clear_pending()
            others = "all after it in the batch that would have to wait"
            raise too_large(columns, self.parts.budget, others)

    def _clear_pending(self) -> None:
        self._next, self._codes, self._at = self._no_rows, self._codes[:0], 0

    @property
    def capacity(self) -> int:
        room = self.parts.room
        free = self.parts.budget.available + room.rows.nbytes - self.parts.cache.reserve
        return max(0, int(free / room.tuple_bytes))

    # tuples meet master rows

    def match(self, load: Load, slots: Slots, positions: Indices, step: int) -> Batches:
        parts, room, output = self.parts, self.parts.room, self.parts.output
        mapped = parts.store.mapped(load.shard)
        rows = load.rows_at(positions)
        if not parts.binding.keys.exact:
            same = self._same_keys(load, slots, rows)
            slots, rows = slots[same], rows[same]
        rejected = slots[:0]
        if parts.residual is not None:
            passed = parts.residual.of_waiting(room.rows, slots, mapped, rows)
            rejected, slots, rows = slots[~passed], slots[passed], rows[passed]
        fresh = room.mark_matched(slots)
        parts.metrics.waits.record(room.waited(fresh, step))
        if parts.spec.emits_master:
            yield from output.emit(len(slots), output.waiting(room.rows, slots), output.mapped(mapped, rows))
        elif parts.spec.how == "semi":
            yield from output.emit(len(fresh), output.waiting(room.rows, fresh), None)
        if room.leave_early:
            parts.metrics.matched += len(fresh)
            parts.metrics.removals += room.dismiss(fresh)
            if parts.binding.single and len(rejected):
                yield from self.finish(rejected, step)  # they have met their only row

    def _same_keys(self, load: Load, slots: Slots, rows: Indices) -> Flags:
        """Return which pairs of a waiting tuple and a master row with the same key code have the same key."""
        keys = self.parts.binding.keys
        stream_keys = self.parts.room.rows.take(keys.columns, slots)
        return keys.same(stream_keys, self.parts.store.mapped(load.shard).take(keys.master_columns, rows))

    def finish(self, slots: Slots, step: int) -> Batches:
        parts, room, output = self.parts, self.parts.room, self.parts.output
        matched = room.matched(slots)
        unmatched = slots[~matched]
        parts.metrics.waits.record(room.waited(unmatched, step))
        if parts.spec.how in ("left", "anti"):
            yield from output.emit(len(unmatched), output.waiting(room.rows, unmatched), None)
        parts.metrics.matched += len(slots) - len(unmatched)
        parts.metrics.unmatched += len(unmatched)
        absent = room.rows.map.code[slots[room.rows_met(slots) == 0]]
        parts.metrics.removals += room.dismiss(slots)
        parts.cache.on_absent(absent)

    def end_step(self) -> Batches:
        return iter(())

    @property
    def waiting(self) -> int:
        return len(self.parts.room)

    def trim(self) -> None:
        """Do nothing: only the waiting room holds tuples, and the loop trims it."""

    # snapshots

    @property
    def waiting_schema(self) -> pa.Schema:
        return self.parts.binding.stream

    def codes_of(self, columns: list[pa.Array]) -> Codes:
        return self.parts.binding.keys.codes(columns)[0]

    def held_tuples(self) -> HeldTuples | None:
        return None

    def restore_held(self, held: HeldTuples) -> bool:
        return False

    def check_invariants(self) -> None:
        assert not self.pending, "tuples were neither admitted nor refused"
