"""The loop all algorithms share.

::

    push(batch) ─► cache ──hit──► output
                     │ miss
                     ▼
               waiting room ◄── meet ── loads ◄── access ◄── master store
                     │ nothing more to meet
                     ▼
               unmatched → left/anti output
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.errors import BudgetExceededError
from millrace.core.metrics import JoinMetrics
from millrace.core.sizes import format_size
from millrace.core.spec import JoinSpec
from millrace.kernels import multimap
from millrace.kernels.groups import ABSENT, MISS
from millrace.master.read.wheel import Load
from millrace.master.store import MasterStore
from millrace.rows.arena import Slots
from millrace.rows.columns import Indices, shape_of
from millrace.rows.keyed_rows import Codes, KeyedRows
from millrace.semistream.access.access_policy import Access
from millrace.semistream.access.direct import Direct
from millrace.semistream.cache.cache_policy import Cache
from millrace.semistream.choose.auto import Auto
from millrace.semistream.conditions.residual import Residual
from millrace.semistream.output.output_columns import Batches, Output, as_indices
from millrace.semistream.shedding import Shedding
from millrace.semistream.waiting.condition_room import OpenRoom
from millrace.semistream.waiting.waiting_room import WaitingRoom

PIECE = 65_536  # stream rows handled at a time


class JoinLoop:
    """Cache phase, waiting, disk phase. Who inherits it sets it up: the attributes below."""

    store: MasterStore
    spec: JoinSpec
    budget: MemoryBudget
    _step: int
    _last_cycle: int
    _single: bool
    """Whether the first master row of a key settles all there is to know about the key."""
    _key_columns: list[int]
    _key_types: list[pa.DataType]
    _cached_keys: range
    _arrivals: int
    _residual: Residual | None
    """What has to hold of a pair beside what it was found by."""
    _metrics: JoinMetrics
    _output: Output
    _access: Access
    _room: WaitingRoom
    _cache: Cache
    shedding: Shedding | None = None
    """Which tuples are dropped; None if none are."""
    auto: Auto | None = None
    """Who looks at the stream to choose the algorithm."""

    def _drain(self) -> Batches:
        while len(self._room):
            yield from self._turn()
        self._room.rows.trim()

    # cache phase

    def _take_in(self, batch: pa.RecordBatch) -> Batches:
        """Answer from the cache who can be answered; the others wait."""
        codes, valid = self._codes(batch.columns)
        self._metrics.tuples_in += len(batch)
        if self.auto is not None:
            self.auto.observe(codes, valid)
        found = self._cache.look_up(codes)
        if valid is not None:
            found[~valid] = ABSENT  # a null key matches nothing
        misses = np.flatnonzero(found == MISS)
        if len(misses) < len(found):
            self._metrics.cache_hits += len(found) - len(misses) - (0 if valid is None else int((~valid).sum()))
            yield from self._answer(batch, found)
        if isinstance(self._access, Direct):
            yield from self._look_up(self._access, batch, codes, misses)
        else:
            yield from self._let_wait(batch, codes, self._not_shed(codes, misses))

    def _not_shed(self, codes: Codes, misses: Indices) -> Indices:
        """Tuples that may wait, where only those are shed that would have to."""
        if self.shedding is None or not self.shedding.spare_hits:
            return misses
        arrived = self._metrics.tuples_in - len(codes) + misses
        kept = self.shedding.kept(arrived, codes[misses], np.zeros(len(misses), np.bool_))
        self._metrics.shed += len(misses) - int(kept.sum())
        return misses[kept]

    def _thinned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is left of a batch of arriving tuples."""
        if self.shedding is None or self.shedding.spare_hits:
            return batch
        codes = arrived = self._metrics.tuples_in + np.arange(len(batch))
        nulls = np.zeros(len(batch), np.bool_)
        if self.shedding.by == "key":
            codes, valid = self._codes(batch.columns)
            nulls = nulls if valid is None else ~valid
        kept = self.shedding.kept(arrived, codes, nulls)
        dropped = len(batch) - int(kept.sum())
        self._metrics.tuples_in += dropped
        self._metrics.shed += dropped
        return batch.filter(pa.array(kept)) if dropped else batch

    def _codes(self, columns: Sequence[pa.Array]) -> tuple[Codes, npt.NDArray[np.bool_] | None]:
        """The key code of every row, and which rows have one; without a key rows are numbered."""
        if self._key_columns:
            return self.store.coder.codes(self.widened([columns[i] for i in self._key_columns]))
        first = self._arrivals
        self._arrivals += len(columns[0])
        return np.arange(first, self._arrivals), None

    def _answer(self, batch: pa.RecordBatch, found: Slots) -> Batches:
        """Output for tuples that found their group, or know that there is none."""
        how, output = self.spec.how, self._output
        matched = found >= 0
        one_is_enough = self._residual is None and (self._single or how in ("semi", "anti"))
        if not self.store.coder.exact or not one_is_enough:
            matched = np.zeros(len(found), np.bool_)
            for rows, slots in self._cached_pairs(batch, found):
                matched[rows] = True
                if self.spec.emits_master:
                    stream, master = output.pushed(batch, rows), output.cached(self._cached_rows, slots)
                    yield from output.emit(len(rows), stream, master)
        elif self.spec.emits_master:
            rows = np.flatnonzero(matched)
            if len(rows):
                stream, master = output.pushed(batch, rows), output.cached(self._cached_rows, found[rows])
                yield from output.emit(len(rows), stream, master)
        if how == "semi":
            rows = np.flatnonzero(matched)
            yield from output.emit(len(rows), output.pushed(batch, rows), None)
        unmatched = np.flatnonzero((found != MISS) & ~matched)
        self._metrics.matched += int(matched.sum())
        self._metrics.unmatched += len(unmatched)
        if how in ("left", "anti"):
            yield from output.emit(len(unmatched), output.pushed(batch, unmatched), None)

    @property
    def _cached_rows(self) -> KeyedRows:
        rows = self._cache.rows
        assert rows is not None
        return rows

    def _cached_pairs(self, batch: pa.RecordBatch, found: Slots) -> Iterator[tuple[Indices, Slots]]:
        """Pairs of a pushed row and a cached row with the same key, in pieces of bounded size."""
        if self._cache.rows is None:
            return
        cursor = np.array([0, -1], np.int64)
        rows, slots = np.empty(PIECE, np.int32), np.empty(PIECE, np.int32)
        while cursor[0] < len(found):
            made = multimap.expand(self._cache.rows.map, found, cursor, rows, slots)
            left, right = as_indices(rows[:made]), slots[:made]
            if not self.store.coder.exact:
                theirs = self._cache.rows.take(self._cached_keys, right)
                ours = [batch.column(i).take(pa.array(left)) for i in self._key_columns]
                same = self.store.coder.equal(self.widened(ours), theirs)
                left, right = left[same], right[same]
            if self._residual is not None:
                held = self._residual.of_cached(batch, left, self._cache.rows, right)
                left, right = left[held], right[held]
            if len(left):
                yield left, right

    # look-up

    def _look_up(self, index: Direct, batch: pa.RecordBatch, codes: Codes, misses: Indices) -> Batches:
        """Output for tuples whose rows the index knows."""
        how, output = self.spec.how, self._output
        everyone = len(misses) == len(codes)
        matched = np.zeros(len(misses), np.bool_)
        for shard, places, rows in index.rows_of(codes if everyone else codes[misses], PIECE):
            mapped = self.store.mapped(shard)
            tuples = places if everyone else misses[places]
            if not self.store.coder.exact:
                theirs = mapped.take(self._master_keys, rows)
                ours = [batch.column(i).take(pa.array(tuples)) for i in self._key_columns]
                same = self.store.coder.equal(self.widened(ours), theirs)
                places, tuples, rows = places[same], tuples[same], rows[same]
            if self._residual is not None:
                held = self._residual.of_pushed(batch, tuples, mapped, rows)
                places, tuples, rows = places[held], tuples[held], rows[held]
            matched[places] = True
            if self.spec.emits_master:
                yield from output.emit(len(rows), output.pushed(batch, tuples), output.mapped(mapped, rows))
        self._metrics.matched += int(matched.sum())
        self._metrics.unmatched += int((~matched).sum())
        if how == "semi":
            yield from output.emit(int(matched.sum()), output.pushed(batch, misses[matched]), None)
        elif how in ("left", "anti"):
            yield from output.emit(int((~matched).sum()), output.pushed(batch, misses[~matched]), None)

    @property
    def _master_keys(self) -> list[int]:
        return [self.store.schema.get_field_index(name) for name in self.store.key]

    # waiting

    def _let_wait(self, batch: pa.RecordBatch, codes: Codes, misses: Indices) -> Batches:
        """Let tuples into the waiting room, turning the wheel whenever it has to make room."""
        if not len(misses):
            return
        batch = batch.take(pa.array(misses))
        codes = codes[misses]
        room, at = self._room, 0
        while at < len(codes):
            count = min(self._access.quota(self.capacity), len(codes) - at)
            columns = cut(batch, at, count)
            while count > 1 and not room.fits(columns):
                count //= 2
                columns = cut(batch, at, count)
            if count < 1 or not room.fits(columns):
                if len(room):
                    yield from self._turn()
                elif not self._cleared_room_for(cut(batch, at, 1)):
                    self._metrics.tuples_in -= len(codes) - at
                    raise BudgetExceededError(
                        f"stream: a tuple of {format_size(sum(c.nbytes for c in cut(batch, at, 1)))} does not fit; "
                        f"{format_size(self.budget.available)} of {format_size(self.budget.total)} are free. "
                        "It and all after it in the batch that would have to wait were not taken in"
                    )
                continue
            admitted = codes[at : at + count]
            counts = room.admit(admitted, columns, self._access.place, self._step)
            self._metrics.most_waiting = max(self._metrics.most_waiting, len(room))
            self._access.admitted(admitted)
            self._cache.admitted(admitted, counts)
            at += count

    def _cleared_room_for(self, columns: list[pa.Array]) -> bool:
        """The room is empty and still too small for a tuple: take back what can be taken back."""
        self._room.rows.trim()
        if not self._room.fits(columns):
            self._cache.give_way()
        return self._room.fits(columns)

    @property
    def capacity(self) -> int:
        """Tuples the waiting room may hold, beside what the cache has and wants to grow into."""
        free = self.budget.available + self._room.rows.nbytes - self._cache.reserve
        return max(0, int(free / self._room.tuple_bytes))

    # disk phase

    def _turn(self) -> Batches:
        """One step: master rows pass the waiting room, and who has met all there are for it leaves."""
        cache = self._cache
        self._step += 1
        self._begin_cycle()
        cache.begin_step()
        for load in self._access.loads():
            self._metrics.probes += len(load.codes)
            for slots, positions in self._meetings(load):
                yield from self._matches(load, slots, positions)
            cache.on_load(load)
        cache.end_step()
        for slots in self._access.leaving():
            yield from self._leave(slots)

    def _meetings(self, load: Load) -> Iterator[tuple[Slots, Indices]]:
        """Pairs of a waiting tuple and a row of the load that may match, in pieces of bounded size."""
        room = self._room
        if isinstance(room, OpenRoom):
            yield from room.candidates(load)
            return
        for met in room.meet(load.codes):
            self._access.on_match(load, met)
            self._cache.on_match(load, met)
            yield from room.pairs(met)

    def _begin_cycle(self) -> None:
        cycle = int(self._access.cycles) + 1
        if cycle != self._last_cycle:
            self._last_cycle = cycle
            self._room.rows.trim()
            self._cache.begin_cycle(cycle)

    def _matches(self, load: Load, slots: Slots, positions: Indices) -> Batches:
        """Waiting tuples met master rows with their key code, or that a condition may hold of."""
        room, output = self._room, self._output
        mapped = self.store.mapped(load.shard)
        rows = load.rows_at(positions)
        if self._key_columns and not self.store.coder.exact:
            same = self._same_keys(load, slots, rows)
            slots, rows = slots[same], rows[same]
        in_vain = slots[:0]
        if self._residual is not None:
            held = self._residual.of_waiting(room.rows, slots, mapped, rows)
            in_vain, slots, rows = slots[~held], slots[held], rows[held]
        fresh = room.mark_matched(slots)
        self._metrics.waits.record(room.waited(fresh, self._step))
        if self.spec.emits_master:
            yield from output.emit(len(slots), output.waiting(room.rows, slots), output.mapped(mapped, rows))
        elif self.spec.how == "semi":
            yield from output.emit(len(fresh), output.waiting(room.rows, fresh), None)
        if room.leave_early:
            self._metrics.matched += len(fresh)
            self._metrics.removals += room.dismiss(fresh)
            if self._single and len(in_vain):
                yield from self._leave(in_vain)  # they have met their only row

    def _same_keys(self, load: Load, slots: Slots, rows: Indices) -> npt.NDArray[np.bool_]:
        """Whether pairs with equal codes have equal keys."""
        ours = self._room.rows.take(self._key_columns, slots)
        theirs = self.store.mapped(load.shard).take(self._master_keys, rows)
        return self.store.coder.equal(self.widened(ours), theirs)

    def widened(self, keys: list[pa.Array]) -> list[pa.Array]:
        """Keys of the stream in the types of the master's."""
        return [
            key.cast(type_) if pa.types.is_integer(key.type) and key.type != type_ else key
            for key, type_ in zip(keys, self._key_types, strict=True)
        ]

    def _leave(self, slots: Slots) -> Batches:
        """Tuples that have met every master row of their key go."""
        room, output = self._room, self._output
        matched = room.matched(slots)
        unmatched = slots[~matched]
        self._metrics.waits.record(room.waited(unmatched, self._step))
        if self.spec.how in ("left", "anti"):
            yield from output.emit(len(unmatched), output.waiting(room.rows, unmatched), None)
        self._metrics.matched += len(slots) - len(unmatched)
        self._metrics.unmatched += len(unmatched)
        absent = room.rows.map.code[slots[room.seen_rows(slots) == 0]]
        self._metrics.removals += room.dismiss(slots)
        self._cache.on_absent(absent)


def cut(batch: pa.RecordBatch, start: int, count: int) -> list[pa.Array]:
    """Columns of some rows; opaque ones are copied so that they do not hold on to the whole batch."""
    columns = [column.slice(start, count) for column in batch.columns]
    if any(shape_of(column.type) == "opaque" for column in columns):
        every = pa.array(np.arange(count))
        columns = [c.take(every) if shape_of(c.type) == "opaque" else c for c in columns]
    return columns
