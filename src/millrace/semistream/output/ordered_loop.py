"""The loop with its output in the order of arrival.

::

    push(batch) ─► nobody before it waits, and the cache knows: ──────────────────────────► output
                     │ else
                     ▼
                order buffer ◄─── rows found ─── waiting room ◄── meet ── loads
                     │ everyone before it is settled
                     ▼
                   output

Every tuple that does not leave at once gets a sequence number. A cache hit behind somebody who waits is held with the
numbers of its master rows, which the cache knows; columns are gathered from the mapped master when it is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import BudgetExceededError
from millrace.core.sizes import format_size
from millrace.kernels.groups import ABSENT, MISS
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes
from millrace.semistream.access.direct import Direct
from millrace.semistream.loop import PIECE, JoinLoop, cut
from millrace.semistream.output.order_buffer import Flags, OrderBuffer, Sequences
from millrace.semistream.output.output_columns import Batches, Part
from millrace.semistream.output.row_numbers import NO_ROW, NumberedRows

Pieces = Iterator[tuple[Indices, Indices]]
"""Tuples by place, ascending, and numbers of the master rows they found."""

_LEAST_WINDOW = 64


class OrderedLoop(JoinLoop):
    """The loop all algorithms share, and with an order buffer the same in order of arrival."""

    _order: OrderBuffer | None = None
    _numbered: NumberedRows

    # cache phase

    def _take_in(self, batch: pa.RecordBatch) -> Batches:
        if self._order is None:
            yield from super()._take_in(batch)
            return
        codes, valid = self._codes(batch.columns)
        self._metrics.tuples_in += len(batch)
        if self.auto is not None:
            self.auto.observe(codes, valid)
        if isinstance(self._access, Direct):
            yield from self._pass_looked_up(self._access, batch, codes, valid)
            return
        at = 0
        while at < len(batch):
            quota = self._access.quota(self.capacity)
            window = slice(at, at + max(_LEAST_WINDOW, quota))
            nulls = np.zeros(len(codes[window]), np.bool_) if valid is None else ~valid[window]
            found = self._look_into_cache(codes[window], nulls)
            taken = 0 if len(self._order) else _leading(found != MISS)
            if taken:
                yield from self._pass(batch.slice(at, taken), found[:taken])
            rest = found[taken:]
            if len(rest):
                held = self._hold(batch, at + taken, codes, rest, quota)
                if not held and len(self._room):
                    yield from self._turn()
                elif not held:
                    held = self._hold_in_cleared_room(batch, at + taken, codes, rest)
                taken += held
            self._metrics.cache_hits += int(((found != MISS) & ~nulls)[:taken].sum())
            at += taken

    def _look_into_cache(self, codes: Codes, nulls: Flags) -> Slots:
        found = self._cache.look_up(codes)
        if self._cache.rows is None or "row" not in self._cache.rows.marks:
            found[found >= 0] = MISS  # it does not know which rows they are: they wait
        found[nulls] = ABSENT  # a null key matches nothing
        return found

    def _pass(self, batch: pa.RecordBatch, found: Slots) -> Batches:
        """Nobody waits before these tuples, and they are known: they leave."""
        if self.spec.how != "left":
            yield from self._answer(batch, found)
            return
        pieces = ((tuples, self._cached_rows.marks["row"][slots]) for tuples, slots in self._cached_pairs(batch, found))
        yield from self._put_out(np.zeros(len(found), np.bool_), pieces, partial(self._output.pushed, batch))

    def _pass_looked_up(
        self, index: Direct, batch: pa.RecordBatch, codes: Codes, valid: npt.NDArray[np.bool_] | None
    ) -> Batches:
        """All rows are found through the index, and nobody waits."""
        known = np.arange(len(codes)) if valid is None else np.flatnonzero(valid)
        pieces = self._looked_up(index, batch, codes[known], known)
        yield from self._put_out(np.zeros(len(codes), np.bool_), pieces, partial(self._output.pushed, batch))

    def _looked_up(self, index: Direct, batch: pa.RecordBatch, codes: Codes, known: Indices) -> Pieces:
        store = self.store
        counts = np.ones(len(codes), np.int64)
        if not store.unique:
            counts = np.sum([store.index(shard).ranges_of(codes)[1] for shard in range(store.shards)], axis=0)
        ends, at = np.cumsum(counts), 0
        while at < len(codes):
            before = int(ends[at - 1]) if at else 0
            stop = max(at + 1, int(np.searchsorted(ends, before + PIECE, side="right")))
            pieces = self._pieces_of_index(index, batch, codes[at:stop], known[at:stop])
            for tuples, numbers in pieces if stop == at + 1 else _merged(pieces):
                if not store.coder.exact:
                    ours = [batch.column(i).take(pa.array(tuples)) for i in self._key_columns]
                    same = self._same_as_master(ours, numbers)
                    tuples, numbers = tuples[same], numbers[same]
                yield tuples, numbers
            at = stop

    def _pieces_of_index(self, index: Direct, batch: pa.RecordBatch, codes: Codes, known: Indices) -> Pieces:
        for shard, places, rows in index.rows_of(codes, PIECE):
            if self._residual is not None:
                held = self._residual.of_pushed(batch, known[places], self.store.mapped(shard), rows)
                places, rows = places[held], rows[held]
            yield known[places], self._numbered.of(shard, rows)

    # holding

    def _hold(self, batch: pa.RecordBatch, at: int, codes: Codes, found: Slots, quota: int, exact: bool = False) -> int:
        """Take tuples into the order buffer, and those that have to wait into the room too; how many there were."""
        order = self._order
        assert order is not None
        count = _leading(np.cumsum(found == MISS) <= quota)
        if not count:
            return 0
        group_sizes = np.zeros(len(found), np.int64)
        if self.spec.emits_master and order.found is not None and self._cache.rows is not None:
            group_sizes[found >= 0] = self._cache.rows.counts(codes[at : at + len(found)][found >= 0])
        while True:
            columns = cut(batch, at, count)
            misses = int((found[:count] == MISS).sum())
            waiting = [pa.nulls(misses, pa.int64())]
            fits = order.fits(columns, int(group_sizes[:count].sum()), exact)
            if fits and (not misses or self._room.fits(waiting, exact)):
                break
            if count == 1 and found[0] >= 0 and quota:
                found[0], group_sizes[0] = MISS, 0  # it has too many rows to be held: it waits for them
            elif count == 1:
                return 0
            else:
                count //= 2
        sequences = order.append(columns)
        found, codes = found[:count], codes[at : at + count]
        self._hold_hits(batch.slice(at, count), sequences, found)
        waits = np.flatnonzero(found == MISS)
        if len(waits):
            waiting = [pa.array(sequences[waits])]
            counts = self._room.admit(codes[waits], waiting, self._access.place, self._step)
            self._metrics.most_waiting = max(self._metrics.most_waiting, len(self._room))
            self._access.admitted(codes[waits])
            self._cache.admitted(codes[waits], counts)
        return count

    def _hold_hits(self, batch: pa.RecordBatch, sequences: Sequences, found: Slots) -> None:
        order = self._order
        assert order is not None
        if (found >= 0).any():
            rows = self._cached_rows.marks["row"]
            for places, slots in self._cached_pairs(batch, found):
                if self.spec.emits_master:
                    order.add(sequences[places], rows[slots])
                else:
                    order.match(sequences[places])
        order.settle(sequences[found != MISS])

    def _hold_in_cleared_room(self, batch: pa.RecordBatch, at: int, codes: Codes, found: Slots) -> int:
        """Nobody is here and still a tuple does not fit: take back what can be taken back, and let it in."""
        assert self._order is not None
        for last_resort in (False, True):
            if last_resort:
                self._cache.give_way()
            self._room.rows.trim()
            self._order.trim()
            found[0] = MISS  # if it was in the cache, it may be gone
            if self._hold(batch, at, codes, found[:1], 1, exact=True):
                return 1
        self._metrics.tuples_in -= len(batch) - at
        raise BudgetExceededError(
            f"stream: a tuple of {format_size(sum(c.nbytes for c in cut(batch, at, 1)))} does not fit; "
            f"{format_size(self.budget.available)} of {format_size(self.budget.total)} are free. "
            "It and all that come after it in the batch were not taken in"
        )

    @property
    def capacity(self) -> int:
        order = self._order
        if order is None:
            return super().capacity
        held = max(0, len(order) - len(self._room)) * order.tuple_bytes
        free = self.budget.available + self._room.rows.nbytes + order.nbytes - held - self._cache.reserve
        return max(0, int(free / (self._room.tuple_bytes + order.tuple_bytes)))

    # disk phase

    def _turn(self) -> Batches:
        yield from super()._turn()
        if self._order is not None:
            yield from self._release(self._order)

    def _begin_cycle(self) -> None:
        before = self._last_cycle
        super()._begin_cycle()
        if self._order is not None and self._last_cycle != before:
            self._order.trim()

    def _drain(self) -> Batches:
        yield from super()._drain()
        if self._order is not None:
            self._order.trim()

    def _sequences(self, slots: Slots) -> Sequences:
        """The sequence numbers of tuples in the waiting room."""
        numbers: Sequences = self._room.rows.take([0], slots)[0].to_numpy()
        return numbers

    def _same_keys(self, load: Load, slots: Slots, rows: Indices) -> npt.NDArray[np.bool_]:
        if self._order is None:
            return super()._same_keys(load, slots, rows)
        held = self._order.slots(self._sequences(slots))
        ours = self._order.tuples.take(self._key_columns, held)
        return self._same_as_master(ours, self._numbered.of(load.shard, rows))

    def _same_as_master(self, keys: list[pa.Array], numbers: Indices) -> npt.NDArray[np.bool_]:
        """Whether keys of the stream are those of master rows."""
        return self.store.coder.equal(self.widened(keys), self._numbered.take(self._master_keys, numbers))

    def _matches(self, load: Load, slots: Slots, positions: Indices) -> Batches:
        order, room = self._order, self._room
        if order is None:
            yield from super()._matches(load, slots, positions)
            return
        rows = load.rows_at(positions)
        if not self.store.coder.exact:
            same = self._same_keys(load, slots, rows)
            slots, rows = slots[same], rows[same]
        in_vain = slots[:0]
        if self._residual is not None:
            held = order.slots(self._sequences(slots))
            holds = self._residual.of_waiting(order.tuples, held, self.store.mapped(load.shard), rows)
            in_vain, slots, rows = slots[~holds], slots[holds], rows[holds]
        fresh = room.mark_matched(slots)
        self._metrics.waits.record(room.waited(fresh, self._step))
        if self.spec.emits_master:
            yield from self._keep(order, self._sequences(slots), self._numbered.of(load.shard, rows))
        else:
            order.match(self._sequences(fresh))
        if room.leave_early:
            order.settle(self._sequences(fresh))
            self._metrics.removals += room.dismiss(fresh)
            if self._single and len(in_vain):
                yield from self._leave(in_vain)  # they have met their only row

    def _keep(self, order: OrderBuffer, sequences: Sequences, numbers: Indices) -> Batches:
        """Tuples have found rows; those of the head come out if all of its rows so far are known."""
        head = np.array([order.head])
        mine = sequences == order.head
        if order.found is not None and mine.any() and not order.overrun(head)[0]:
            for rows in chain((rows for _, rows in order.pairs(head, PIECE)), [numbers[mine]]):
                stream = self._output.waiting(order.tuples, np.repeat(order.slots(head), len(rows)))
                yield from self._output.emit(len(rows), stream, self._numbered.part(self._output.master_columns, rows))
            order.forget_rows(head, int(mine.sum()))
            order.match(head)
            sequences, numbers = sequences[~mine], numbers[~mine]
        order.add(sequences, numbers)

    def _leave(self, slots: Slots) -> Batches:
        order, room = self._order, self._room
        if order is None:
            yield from super()._leave(slots)
            return
        sequences, codes = self._sequences(slots), room.rows.map.code[slots]
        self._metrics.waits.record(room.waited(slots[~room.matched(slots)], self._step))
        absent = codes[room.seen_rows(slots) == 0]
        again = order.overrun(sequences)
        order.settle(sequences[~again])
        order.begin_again(sequences[again])
        if self._access.paged:
            self._metrics.removals += room.dismiss(slots[~again])  # the others' pages will be chosen again
        else:
            self._metrics.removals += room.dismiss(slots)
            self._let_in_again(codes[again], sequences[again])
        self._cache.on_absent(absent)

    def _let_in_again(self, codes: Codes, sequences: Sequences) -> None:
        """Tuples that have just left the waiting room begin another turn."""
        if len(codes):
            columns = [pa.array(sequences)]
            assert self._room.fits(columns, exact=True), "the place of a tuple that left is taken"
            self._room.admit(codes, columns, self._access.place, self._step)

    # leaving

    def _release(self, order: OrderBuffer) -> Batches:
        """Put out the tuples at the head of the order buffer that are settled."""
        while len(run := order.settled_run(PIECE)):
            slots = order.slots(run)
            yield from self._put_out(order.matched(slots), order.pairs(run, PIECE), partial(self._held, order, slots))
            order.release(run)

    def _held(self, order: OrderBuffer, slots: Slots, places: Indices) -> Part:
        """Some of the tuples of the order buffer."""
        return self._output.waiting(order.tuples, slots[places])

    def _put_out(self, matched: Flags, pieces: Pieces, stream: Callable[[Indices], Part]) -> Batches:
        """Output for tuples that leave, in their order. ``matched`` are those that are known to have a match."""
        output, how = self._output, self.spec.how
        done = 0
        for tuples, numbers in pieces:
            if not len(tuples):
                continue
            matched[tuples] = True
            if how == "left":
                stop = int(tuples[-1]) + 1
                alone = done + np.flatnonzero(~matched[done:stop])
                tuples, numbers = _among(tuples, numbers, alone)
                done = stop
            if self.spec.emits_master:
                part = self._numbered.part(output.master_columns, numbers)
                yield from output.emit(len(tuples), stream(tuples), part)
        if how in ("left", "anti"):
            alone = done + np.flatnonzero(~matched[done:])
            yield from output.emit(len(alone), stream(alone), None)
        elif how == "semi":
            tuples = np.flatnonzero(matched)
            yield from output.emit(len(tuples), stream(tuples), None)
        self._metrics.matched += int(matched.sum())
        self._metrics.unmatched += int((~matched).sum())


def _leading(flags: npt.NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    return len(flags) if flags.all() else int(np.argmin(flags))


def _merged(pieces: Pieces) -> Pieces:
    """Pieces from several shards as one, in the order of the tuples."""
    all_of_them = list(pieces)
    if not all_of_them:
        return
    tuples = np.concatenate([tuples for tuples, _ in all_of_them])
    numbers = np.concatenate([numbers for _, numbers in all_of_them])
    order = np.argsort(tuples, kind="stable")
    yield tuples[order], numbers[order]


def _among(tuples: Indices, numbers: Indices, alone: Indices) -> tuple[Indices, Indices]:
    """Tuples without a row put in at their places."""
    if not len(alone):
        return tuples, numbers
    tuples = np.concatenate([tuples, alone])
    order = np.argsort(tuples, kind="stable")
    return tuples[order], np.concatenate([numbers, np.full(len(alone), NO_ROW)])[order]
