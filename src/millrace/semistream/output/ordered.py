"""Output in the order of arrival.

::

    begin ─► no earlier tuple waits, and the cache has the answer: ─────────────────────────► output
                     │ else
                     ▼
                order buffer ◄─── rows found ─── waiting room ◄── match ── loads
                     │ every earlier tuple is settled
                     ▼
                   output

Every tuple that does not leave at once gets a sequence number. A cache hit behind a tuple that waits is held back in
the order buffer, with the numbers of its master rows, which are cached. When the tuple is released, the columns of
these rows are gathered from the mapped master. A tuple is settled when all of its matches are known.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa

from millrace.kernels.groups import ABSENT, MISS
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes
from millrace.semistream.intake import ArrivedTuples
from millrace.semistream.output.cache_hits import PIECE, CacheHits
from millrace.semistream.output.in_sequence import emit_in_sequence
from millrace.semistream.output.index_answers import IndexAnswers
from millrace.semistream.output.output_columns import Batches, OutputRows
from millrace.semistream.output.output_order import HeldTuples, cut, too_large
from millrace.semistream.output.parts import JoinParts
from millrace.semistream.stream_keys import Flags
from millrace.semistream.waiting.order_buffer import WAITING, OrderBuffer, Sequences

_LEAST_WINDOW = 64
_NO_TUPLES = ArrivedTuples(pa.RecordBatch.from_pylist([], pa.schema([])), np.empty(0, np.int64), None)


class OrderedOutput:
    """Keeps each tuple in an order buffer until all earlier tuples have left."""

    def __init__(self, parts: JoinParts, buffer: OrderBuffer, at_once: IndexAnswers | None) -> None:
        self.parts, self.buffer = parts, buffer
        self._at_once = at_once
        self._hits = CacheHits(parts)
        self._arrived = _NO_TUPLES
        self._at = 0

    # tuples come

    def begin(self, arrived: ArrivedTuples) -> Batches:
        if self._at_once is None:
            self._arrived, self._at = arrived, 0
            return iter(())
        return self._at_once.answer_in_sequence(arrived)

    @property
    def pending(self) -> int:
        return len(self._arrived.codes) - self._at

    def admit(self, step: int) -> Generator[pa.RecordBatch, None, bool]:
        arrived, quota = self._arrived, self.parts.access.quota(self.capacity)
        window = slice(self._at, self._at + max(_LEAST_WINDOW, quota))
        nulls = arrived.nulls(window)
        found = self._look_into_cache(arrived.codes[window], nulls)
        known = 0 if len(self.buffer) else _leading_true(found != MISS)
        if known:
            yield from self._answer(arrived.batch.slice(self._at, known), found[:known])
            self.parts.metrics.cache_hits += int((~nulls[:known]).sum())
            self._at += known
        rest = found[known:]
        held = self._hold(rest, quota, step) if len(rest) else 0
        self.parts.metrics.cache_hits += int(((rest != MISS) & ~nulls[known:])[:held].sum())
        self._at += held
        if not self.pending:
            self._arrived, self._at = _NO_TUPLES, 0
        return bool(len(rest)) and not held

    def _look_into_cache(self, codes: Codes, nulls: Flags) -> Slots:
        cache = self.parts.cache
        found = self._hits.look_up(codes)
        if cache.rows is None or "row" not in cache.rows.marks:
            found[found >= 0] = MISS  # without the numbers of its rows a hit cannot be held back
        found[nulls] = ABSENT  # a null key matches nothing
        return found

    def _answer(self, batch: pa.RecordBatch, found: Slots) -> Batches:
        """Yield the output of tuples that the cache answers, where no earlier tuple waits."""
        parts = self.parts
        if parts.spec.how != "left":
            yield from self._hits.answer(batch, found)
            return
        pieces = ((tuples, self._hits.rows.marks["row"][slots]) for tuples, slots in self._hits.pairs(batch, found))
        stream = partial(parts.output.pushed, batch)
        yield from emit_in_sequence(parts, np.zeros(len(found), np.bool_), pieces, stream)

    # tuples are held

    def _hold(self, found: Slots, quota: int, step: int, exact: bool = False) -> int:
        """Move pending tuples into the order buffer, cache misses also into the waiting room; return how many moved.

        ``found`` is what the cache found for each tuple, ``quota`` the greatest number of misses to move. With
        ``exact``, no memory is reserved for later tuples.
        """
        parts, buffer, cache = self.parts, self.buffer, self.parts.cache
        at, arrived = self._at, self._arrived
        count = _leading_true(np.cumsum(found == MISS) <= quota)
        if not count:
            return 0
        codes = arrived.codes[at : at + len(found)]
        group_sizes = np.zeros(len(found), np.int64)
        if parts.spec.emits_master and buffer.found is not None and cache.rows is not None:
            group_sizes[found >= 0] = cache.rows.counts(codes[found >= 0])
        while True:
            columns = cut(arrived.batch, at, count)
            misses = int((found[:count] == MISS).sum())
            waiting = [pa.nulls(misses, pa.int64())]
            fits = buffer.fits(columns, int(group_sizes[:count].sum()), exact)
            if fits and (not misses or parts.room.fits(waiting, exact)):
                break
            if count == 1 and found[0] >= 0 and quota:
                found[0], group_sizes[0] = MISS, 0  # too many rows to keep: the tuple waits for them instead
            elif count == 1:
                return 0
            else:
                count //= 2
        sequences = buffer.append(columns)
        self._hold_hits(arrived.batch.slice(at, count), sequences, found[:count])
        waits = np.flatnonzero(found[:count] == MISS)
        if len(waits):
            self._let_wait(codes[waits], sequences[waits], step)
        return count

    def _hold_hits(self, batch: pa.RecordBatch, sequences: Sequences, found: Slots) -> None:
        buffer = self.buffer
        if (found >= 0).any():
            rows = self._hits.rows.marks["row"]
            for places, slots in self._hits.pairs(batch, found):
                if self.parts.spec.emits_master:
                    buffer.add(sequences[places], rows[slots])
                else:
                    buffer.mark_matched(sequences[places])
        buffer.mark_settled(sequences[found != MISS])

    def _let_wait(self, codes: Codes, sequences: Sequences, step: int) -> None:
        parts = self.parts
        counts = parts.room.admit(codes, [pa.array(sequences)], parts.access.place, step)
        parts.metrics.most_waiting = max(parts.metrics.most_waiting, len(parts.room))
        parts.access.on_admit(codes)
        parts.cache.on_admit(codes, counts)

    def make_room_for_one(self, step: int) -> None:
        for last_resort in (False, True):
            if last_resort:
                self.parts.cache.free_memory()
            self.parts.room.rows.trim()
            self.buffer.trim()
            keyless = self._arrived.nulls(slice(self._at, self._at + 1))
            if self._hold(np.where(keyless, ABSENT, MISS).astype(np.int32), 1, step, exact=True):
                self._at += 1
                return
        columns = cut(self._arrived.batch, self._at, 1)
        self.parts.metrics.tuples_in -= self.pending
        self._arrived, self._at = _NO_TUPLES, 0
        raise too_large(columns, self.parts.budget, "all after it in the batch")

    @property
    def capacity(self) -> int:
        parts, buffer = self.parts, self.buffer
        held_bytes = max(0, len(buffer) - len(parts.room)) * buffer.tuple_bytes
        free = parts.budget.available + parts.room.rows.nbytes + buffer.nbytes - held_bytes - parts.cache.reserve
        return max(0, int(free / (parts.room.tuple_bytes + buffer.tuple_bytes)))

    # tuples meet master rows

    def match(self, load: Load, slots: Slots, positions: Indices, step: int) -> Batches:
        parts, buffer, room = self.parts, self.buffer, self.parts.room
        rows = load.rows_at(positions)
        if not parts.binding.keys.exact:
            same = self._same_keys(slots, parts.numbered.of(load.shard, rows))
            slots, rows = slots[same], rows[same]
        rejected = slots[:0]
        if parts.residual is not None:
            held_slots = buffer.slots(self._sequences(slots))
            passed = parts.residual.of_waiting(buffer.tuples, held_slots, parts.store.mapped(load.shard), rows)
            rejected, slots, rows = slots[~passed], slots[passed], rows[passed]
        fresh = room.mark_matched(slots)
        parts.metrics.waits.record(room.waited(fresh, step))
        if parts.spec.emits_master:
            yield from self._keep(self._sequences(slots), parts.numbered.of(load.shard, rows))
        else:
            buffer.mark_matched(self._sequences(fresh))
        if room.leave_early:
            buffer.mark_settled(self._sequences(fresh))
            parts.metrics.removals += room.dismiss(fresh)
            if parts.binding.single and len(rejected):
                yield from self.finish(rejected, step)  # the tuples have met their only row

    def _sequences(self, slots: Slots) -> Sequences:
        """Return the sequence numbers of the waiting tuples at these slots."""
        numbers: Sequences = self.parts.room.rows.take([0], slots)[0].to_numpy()
        return numbers

    def _same_keys(self, slots: Slots, numbers: Indices) -> Flags:
        """Return which pairs of a waiting tuple and a master row with the same key code have the same key."""
        keys = self.parts.binding.keys
        stream_keys = self.buffer.tuples.take(keys.columns, self.buffer.slots(self._sequences(slots)))
        return keys.same(stream_keys, self.parts.numbered.take(keys.master_columns, numbers))

    def _keep(self, sequences: Sequences, numbers: Indices) -> Batches:
        """Keep the numbers of the master rows found for tuples.

        Where tuples may have several matches, the rows of the first tuple in the buffer are emitted at once instead. If
        a tuple has lost rows found earlier, for lack of memory, its rows are dropped: it has to find them all again.
        """
        parts, buffer, output = self.parts, self.buffer, self.parts.output
        head = np.array([buffer.head])
        at_head = sequences == buffer.head
        if buffer.found is not None and at_head.any() and not buffer.is_overrun(head)[0]:
            for rows in chain((rows for _, rows in buffer.pairs(head, PIECE)), [numbers[at_head]]):
                stream = output.waiting(buffer.tuples, np.repeat(buffer.slots(head), len(rows)))
                yield from output.emit(len(rows), stream, parts.numbered.output_rows(output.master_columns, rows))
            buffer.drop_rows(head, int(at_head.sum()))
            buffer.mark_matched(head)
            sequences, numbers = sequences[~at_head], numbers[~at_head]
        buffer.add(sequences, numbers)

    def finish(self, slots: Slots, step: int) -> Batches:
        parts, buffer, room = self.parts, self.buffer, self.parts.room
        sequences, codes = self._sequences(slots), room.rows.map.code[slots]
        parts.metrics.waits.record(room.waited(slots[~room.matched(slots)], step))
        absent = codes[room.rows_met(slots) == 0]
        overrun = buffer.is_overrun(sequences)
        buffer.mark_settled(sequences[~overrun])
        buffer.begin_again(sequences[overrun])
        if parts.access.paged:
            parts.metrics.removals += room.dismiss(slots[~overrun])  # pages of overrun tuples will be chosen again
        else:
            parts.metrics.removals += room.dismiss(slots)
            self._wait_again(codes[overrun], sequences[overrun], step)
        parts.cache.on_absent(absent)
        return iter(())

    def _wait_again(self, codes: Codes, sequences: Sequences, step: int) -> None:
        """Let tuples that have just left the waiting room wait for another scan of the master."""
        if len(codes):
            columns = [pa.array(sequences)]
            assert self.parts.room.fits(columns, exact=True), "no room for a tuple that has just left"
            self.parts.room.admit(codes, columns, self.parts.access.place, step)

    # tuples leave

    def end_step(self) -> Batches:
        buffer = self.buffer
        while len(run := buffer.settled_run(PIECE)):
            slots = buffer.slots(run)
            matched, pairs = buffer.matched(slots), buffer.pairs(run, PIECE)
            yield from emit_in_sequence(self.parts, matched, pairs, partial(self._held_rows, slots))
            buffer.release(run)

    def _held_rows(self, slots: Slots, places: Indices) -> OutputRows:
        """Return the tuples at ``slots[places]`` of the order buffer, as rows of the output."""
        return self.parts.output.waiting(self.buffer.tuples, slots[places])

    @property
    def waiting(self) -> int:
        return len(self.buffer)

    def trim(self) -> None:
        self.buffer.trim()

    # snapshots

    @property
    def waiting_schema(self) -> pa.Schema:
        return WAITING

    def codes_of(self, columns: list[pa.Array]) -> Codes:
        keys = self.parts.binding.keys
        return keys.of_keys(self.buffer.tuples.take(keys.columns, self.buffer.slots(columns[0].to_numpy())))

    def held_tuples(self) -> HeldTuples | None:
        return HeldTuples(self.buffer.to_batch(), self.buffer.head)

    def restore_held(self, held: HeldTuples) -> bool:
        return self.buffer.fill_from(held.rows, cut(held.rows, 0, len(held.rows))[:-2], held.head)

    def check_invariants(self) -> None:
        assert not self.pending, "tuples were neither admitted nor refused"
        self.buffer.check_invariants(self._sequences(self.parts.room.rows.live()))


def _leading_true(flags: Flags) -> int:
    """Return how many flags are true before the first that is false."""
    return len(flags) if flags.all() else int(np.argmin(flags))
