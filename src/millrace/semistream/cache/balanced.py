"""SSBJ's cache: a key's master rows are kept in memory exactly when that takes less memory than its waiting tuples.

The cache inequality: a key with m master rows of v_R bytes, for which n stream tuples of v_S bytes come in one turn of
the wheel, belongs in the cache iff::

        m · v_R  <  n · v_S

Placing every key where it is cheaper gives the least total memory (Theorem 1 of the paper), or, under a fixed budget,
leaves the most for the waiting room. A key without any master row is cached as an empty group. How a key's rows are
collected without ever caching only some of them is the business of a migration: see ``rolling.py`` (default) and
``three_cycle.py``. Every ``evict_every`` turns the inequality is checked again for what is in the cache.

n has to be counted, and a count is off by about its square root. Taken at its word, keys enter by luck and leave by
bad luck, and the memory of keys on their way in is lost to everybody. So a key changes sides when the inequality holds
by a margin of that error::

        enters:  m · v_R  <  (n - 1.5 √n) · v_S            leaves:  m · v_R  ≥  (n + 1.5 √n) · v_S

A group is complete or it answers nobody::

    (not cached) ──open──► collecting ──publish──► complete ──evict──► (not cached)
                               └──────discard─────────────────────────►

References
----------
M. A. Naeem, G. Weber, C. Lutteroth: A memory-optimal many-to-many semi-stream join. Distributed and Parallel
Databases, 2019.

Deviations: costs are the bytes this engine really takes (slot, index entry, heap) instead of bare tuple sizes; an
empty group costs one slot; frequency is divided by the turns really observed instead of by ten; the margin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError, one_of
from millrace.core.significance import MARGIN, at_most, count_for, surely
from millrace.kernels import groups, multimap
from millrace.kernels.groups import COLLECTING, EMPTY
from millrace.master.read.wheel import Load
from millrace.rows import keyed_rows_file as keepsake
from millrace.rows.arena import Arena, Slots
from millrace.rows.code_filter import LEAST_MATCHES, Met, Sieve
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes, KeyedRows
from millrace.rows.keyed_rows_file import Place
from millrace.semistream.access.access_policy import Access
from millrace.semistream.cache.cache_policy import Cache, note_rows, row_mark
from millrace.semistream.context import JoinContext

if TYPE_CHECKING:
    from millrace.semistream.cache.migration import Migration

MARKS = {"hits": np.int32, "since": np.int32, "state": np.uint8}
Protocol = Literal["rolling", "three-cycle"]

_DIRECTORY = 8.0  # bytes of the directory per row
_COPY_ROWS = 256
_TICKS = 16  # parts of a turn in which the age of a group is counted
_LEAST_RESERVE, _MOST_RESERVE = 0.01, 0.20
_MOST_MARGIN = 1_000_000


class BalancedCache(Cache):
    """Groups of master rows, admitted and evicted by the cache inequality.

    Parameters
    ----------
    switching_factor
        s_f of the paper: above 1 a key must be that much cheaper in the cache to enter. 1 is best.
    evict_every
        Turns of the wheel between two evictions. By default 10 for ``"three-cycle"``, as in the paper, and else 1,
        which follows a stream that moves much sooner.
    margin
        Standard deviations of a count by which the inequality must hold for a key to enter or to leave. 0 takes counts
        at their word, as the paper does.
    migration
        How rows are collected: ``"rolling"`` or ``"three-cycle"``.
    main_memory
        Read the master once and keep it if the budget holds all of it. Not worth it for a join that is made anew for
        every few tuples.
    """

    rows: KeyedRows
    marks = MARKS

    def __init__(
        self,
        context: JoinContext,
        access: Access,
        *,
        switching_factor: float = 1.0,
        evict_every: int | None = None,
        margin: float = MARGIN,
        migration: str = "rolling",
        main_memory: bool = True,
    ) -> None:
        from millrace.semistream.cache.rolling import Rolling
        from millrace.semistream.cache.three_cycle import ThreeCycle

        if not isinstance(switching_factor, int | float) or not switching_factor > 0:
            raise ConfigError(f"switching_factor: expected a number above 0; got {switching_factor!r}")
        if evict_every is not None and (not isinstance(evict_every, int) or evict_every < 1):
            raise ConfigError(f"evict_every: expected a whole number of at least 1; got {evict_every!r}")
        if not isinstance(margin, int | float) or not 0 <= margin <= _MOST_MARGIN:
            raise ConfigError(f"margin: expected a number from 0 to {_MOST_MARGIN:,}; got {str(margin)[:40]}")
        one_of("migration", migration, get_args(Protocol))
        if access.wheel is None:
            raise ConfigError("BalancedCache collects rows from a scan of the whole master; this access makes none")
        self.context, self.wheel = context, access.wheel
        self.factor, self.margin = switching_factor, margin
        self._evict_every = evict_every or (10 if migration == "three-cycle" else 1)
        master = context.store.schema
        schema = pa.schema([master.field(i) for i in context.columns])
        self.rows = KeyedRows("cache", schema, context.budget, context.space, {**MARKS, **row_mark(context)})
        matches = LEAST_MATCHES if context.single else context.matches
        self._sieve = Sieve("switching", self.rows, context.budget, context.lanes, matches)
        self.whole = False
        """Whether every row of the master is here: the join has become a main-memory join."""
        self.complete_keys = 0
        self.collecting_keys = 0
        self.admitted_keys = self.evicted_keys = 0
        self.cycle = 1
        self._absent: list[Codes] = []
        self._noted: dict[int, list[tuple[Indices, Codes]]] = {}
        self._noted_rows = self._noted_at = 0
        self._bytes_at_cycle = 0
        self._reserve_share = _MOST_RESERVE
        self._heap_per_row = self._sample_heap()
        self._migration: Migration = ThreeCycle(self) if migration == "three-cycle" else Rolling(self)
        if main_memory:
            self._become_main_memory_join()

    # the inequality

    def _sample_heap(self) -> float:
        """Bytes that strings and nested values of a master row take, from the first page."""
        store = self.context.store
        for shard in range(store.shards):
            mapped = store.mapped(shard)
            if mapped.rows:
                rows = np.arange(min(1024, mapped.rows), dtype=np.int64)
                return Arena.heap_bytes_of(mapped.take(self.context.columns, rows)) / len(rows)
        return 0.0

    @property
    def row_bytes(self) -> float:
        """v_R: what one master row costs in the cache."""
        return self.rows.slot_bytes + _DIRECTORY + self._heap_per_row

    @property
    def empty_bytes(self) -> float:
        """What a group without rows costs."""
        return self.rows.slot_bytes + _DIRECTORY

    @property
    def tuple_bytes(self) -> float:
        """v_S: what one stream tuple costs while it waits."""
        return self.context.room.tuple_bytes

    def waiting_cost(self, tuples: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Bytes that keys with so many tuples per turn take in the waiting room, on average over a turn."""
        cost: npt.NDArray[np.float64] = tuples * (self.tuple_bytes * self.context.room.stay)
        return cost

    def cache_cost(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Bytes of groups with so many rows each, times the switching factor."""
        cost: npt.NDArray[np.float64] = np.where(rows > 0, rows * self.row_bytes, self.empty_bytes)
        return self.factor * cost

    @property
    def least_tuples_for_one_row(self) -> int:
        """The fewest tuples per turn that justify caching one master row."""
        worth = self.factor * self.row_bytes / (self.tuple_bytes * self.context.room.stay)
        return int(count_for(worth, self.margin)) + 1

    def worthwhile(self, tuples: npt.NDArray[np.int32], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Whether the cache inequality surely holds, for keys with so many tuples in a turn and master rows."""
        worth: npt.NDArray[np.bool_] = self.waiting_cost(surely(tuples, self.margin)) > self.cache_cost(rows)
        return worth

    # the loop's calls

    def look_up(self, codes: Codes) -> Slots:
        found = np.empty(len(codes), np.int32)
        marks = self.rows.marks
        groups.look_up(self.rows.map, marks["state"], marks["hits"], codes, self.whole, found)
        return found

    def admitted(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        self._migration.admitted(codes, counts)

    def begin_cycle(self, cycle: int) -> None:
        self._copy_noted()
        self.cycle = cycle
        if cycle % self._evict_every == 0:
            self._evict()
        self._migration.begin_cycle(cycle)
        grown = max(0, self.nbytes - self._bytes_at_cycle) / self.context.budget.total
        self._bytes_at_cycle = self.nbytes
        if cycle > 1:  # before the first turn nothing could grow, and what the room takes now it hardly gives back
            self._reserve_share = min(_MOST_RESERVE, max(_LEAST_RESERVE, 1.5 * grown))

    def begin_step(self) -> None:
        if self._absent:
            self._remember_absent(np.unique(np.concatenate(self._absent)))
            self._absent = []
        self._migration.begin_step()

    def on_match(self, load: Load, met: Met) -> None:
        self._migration.on_match(load, met)

    def on_load(self, load: Load) -> None:
        self._migration.on_load(load)

    def end_step(self) -> None:
        self._migration.end_step()

    def on_absent(self, codes: Codes) -> None:
        if len(codes):
            self._absent.append(codes)

    def give_way(self) -> None:
        self.discard(self._heads())
        self.rows.clear()

    def keep(self, path: Place, identity: str) -> bool:
        if not self.rows.keepable:
            return False
        self._copy_noted()
        if self._absent:
            self._remember_absent(np.unique(np.concatenate(self._absent)))
            self._absent = []
        self._migration.settle()
        heads = self._heads()
        self.discard(heads[self.rows.marks["state"][heads] & COLLECTING > 0])
        keepsake.write(
            path,
            self.rows,
            f"{identity} {self.factor}",
            {
                "turned": self.wheel.turned,
                "complete_keys": self.complete_keys,
            },
        )
        return True

    def recall(self, path: Place, identity: str) -> bool:
        if not self.rows.keepable or self.whole or len(self.rows):
            return False
        facts = keepsake.read(path, self.rows, f"{identity} {self.factor}")
        if facts is None:
            return False
        wheel = self.wheel
        if not wheel.turned:
            wheel.turn_to(facts["turned"])
        then = _TICKS * facts["turned"] // max(1, wheel.rows)
        self.rows.marks["since"][: int(self.rows.map.state[multimap.HIGH])] += self._now() - then
        self.complete_keys = facts["complete_keys"]
        self._notice_whole()
        self._bytes_at_cycle = self.nbytes
        return True

    @property
    def reserve(self) -> int:
        return int(self._reserve_share * self.context.budget.total)

    # groups

    def open(self, codes: Codes, stamp: int) -> Codes:
        """Start collecting the rows of keys that are not here; return those for which there was memory."""
        codes = codes[self.rows.oldest(codes) < 0]
        while len(codes) and not self.rows.make_room(len(codes)):
            codes = codes[: len(codes) // 2]
        slots, _ = self.rows.insert_codes(codes)
        self.rows.marks["state"][slots] = COLLECTING | EMPTY
        self.rows.marks["since"][slots] = stamp
        self.collecting_keys += len(codes)
        self._sieve.watch(codes)
        return codes

    def collect(self, load: Load) -> Iterator[Slots]:
        """Copy the rows of a load whose groups are collecting; yield the heads of groups that got some."""
        if not self.collecting_keys:
            return
        if self._sieve.stale(self.collecting_keys):
            self._sieve.refresh(self._migration.collecting())
        state = self.rows.marks["state"]
        for met in self._sieve.search(load.codes):
            heads = self.rows.oldest(load.codes[met.positions])  # groups may have gone since they were found
            wanted = (heads >= 0) & (state[heads] & COLLECTING > 0)
            if wanted.any():
                yield self._copy_rows(load, met.positions[wanted], heads[wanted])

    def _copy_rows(self, load: Load, positions: npt.NDArray[np.int32], heads: Slots) -> Slots:
        """Copy rows into their collecting groups; return the heads of the groups."""
        state = self.rows.marks["state"]
        touched, first = np.unique(heads, return_index=True)
        first = first[(state[touched] & EMPTY) > 0]  # these rows go into the head's own slot
        more = np.setdiff1d(np.arange(len(heads)), first)
        into_heads, into_slots = self._columns(load, positions[first]), self._columns(load, positions[more])
        if not self.rows.make_room(len(more), Arena.heap_bytes_of(into_heads) + Arena.heap_bytes_of(into_slots)):
            self.discard(touched)
            return np.empty(0, np.int32)
        self.rows.fill(heads[first], into_heads)
        state[heads[first]] = COLLECTING
        slots, _ = self.rows.insert_codes(load.codes[positions[more]])
        self.rows.fill(slots, into_slots)
        note_rows(self.context, self.rows, heads[first], load.shard, load.rows_at(positions[first]))
        note_rows(self.context, self.rows, slots, load.shard, load.rows_at(positions[more]))
        return touched

    def publish(self, heads: Slots) -> None:
        """Groups are complete: let them answer from now on."""
        state = self.rows.marks["state"]
        self.collecting_keys -= int((state[heads] & COLLECTING > 0).sum())
        state[heads] &= ~COLLECTING
        self.rows.marks["hits"][heads] = 0
        self.rows.marks["since"][heads] = self._now()
        self.complete_keys += int((state[heads] & EMPTY == 0).sum())
        self.admitted_keys += len(heads)
        self._notice_whole()

    def admit_rows(self, shard: int, rows: Indices, codes: Codes) -> None:
        """Cache rows that are known to be the only ones of their keys.

        They are noted now and copied a few hundred at a time, because copying has a price per call.
        """
        self._noted.setdefault(shard, []).append((rows, codes))
        self._noted_rows += len(rows)
        wheel = self.wheel
        if self._noted_rows >= _COPY_ROWS or 8 * (wheel.turned - self._noted_at) >= wheel.rows:
            self._copy_noted()

    def _copy_noted(self) -> None:
        """Copy the noted rows into the cache; those for which there is no memory are forgotten."""
        for shard, noted in self._noted.items():
            codes, first = np.unique(np.concatenate([codes for _, codes in noted]), return_index=True)
            rows = np.concatenate([rows for rows, _ in noted])[first]
            outside = self.rows.oldest(codes) < 0
            rows, codes = rows[outside], codes[outside]
            columns = self.context.store.mapped(shard).take(self.context.columns, rows)
            while len(codes) and not self.rows.make_room(len(codes), Arena.heap_bytes_of(columns)):
                codes = codes[: len(codes) // 2]
                columns = [column.slice(0, len(codes)) for column in columns]
            slots, _ = self.rows.insert(codes, columns)
            self.rows.marks["state"][slots] = 0
            note_rows(self.context, self.rows, slots, shard, rows[: len(codes)])
            self.publish(slots)
        self._noted, self._noted_rows = {}, 0
        self._noted_at = self.wheel.turned

    def _remember_absent(self, codes: Codes) -> None:
        """Cache keys without a master row as empty groups, if the inequality says so."""
        came_since = self.context.room.rows.counts(codes)  # not counting the tuple that left: one is evidence here
        codes = codes[came_since * self.tuple_bytes > self.factor * self.empty_bytes]
        codes = codes[self.rows.oldest(codes) < 0]
        while len(codes) and not self.rows.make_room(len(codes)):
            codes = codes[: len(codes) // 2]
        slots, _ = self.rows.insert_codes(codes)
        self.rows.marks["state"][slots] = EMPTY
        self.publish(slots)

    def discard(self, heads: Slots) -> None:
        """Forget whole groups, complete or not."""
        if not len(heads):
            return
        state = self.rows.marks["state"]
        being_made = state[heads] & COLLECTING > 0
        self.collecting_keys -= int(being_made.sum())
        self.complete_keys -= int((~being_made & (state[heads] & EMPTY == 0)).sum())
        self._notice_whole()
        self.rows.remove(self.rows.slots_of(self.rows.map.code[heads]))

    def group_rows(self, heads: Slots) -> npt.NDArray[np.int32]:
        """Master rows of groups given by their heads."""
        counts = self.rows.counts(self.rows.map.code[heads])
        counts[self.rows.marks["state"][heads] & EMPTY > 0] = 0
        return counts

    def _columns(self, load: Load, positions: npt.NDArray[np.int32]) -> list[pa.Array]:
        mapped = self.context.store.mapped(load.shard)
        return mapped.take(self.context.columns, load.rows_at(positions))

    # eviction and the main-memory join

    def _evict(self) -> None:
        """Drop the groups that have surely become cheaper to wait for."""
        heads, sizes = self.rows.groups()
        marks = self.rows.marks
        turns = (self._now() - marks["since"][heads]) / _TICKS
        judged = (marks["state"][heads] & COLLECTING == 0) & (turns >= 1)
        heads, sizes, turns = heads[judged], sizes[judged], turns[judged]
        sizes[marks["state"][heads] & EMPTY > 0] = 0
        rate = at_most(marks["hits"][heads], self.margin) / turns
        cost = np.where(sizes > 0, sizes * self.row_bytes, self.empty_bytes)
        gone = cost >= self.factor * np.where(sizes > 0, self.waiting_cost(rate), rate * self.tuple_bytes)
        stay = heads[~gone]
        marks["hits"][stay] >>= 1  # an average in which every turn counts half as much as the one after it
        marks["since"][stay] = self._now() - (turns[~gone] * _TICKS / 2).astype(marks["since"].dtype)
        self.evicted_keys += int(gone.sum())
        self.discard(heads[gone])
        if self.collecting_keys == 0 and len(self.rows) < 0.9 * int(self.rows.map.state[multimap.HIGH]):
            self.rows.pack()

    def _now(self) -> int:
        """How far the wheel has turned, in parts of a turn."""
        return _TICKS * self.wheel.turned // max(1, self.wheel.rows)

    def _notice_whole(self) -> None:
        self.whole = self.complete_keys == self.context.store.manifest.keys

    def _become_main_memory_join(self) -> None:
        """If the budget holds all of the master, read it once and let nobody wait."""
        store, wheel = self.context.store, self.wheel
        if self.whole_bytes > self.context.budget.available:
            return
        while wheel.turned < store.rows:
            load = wheel.next_load(16_384)
            columns = self._columns(load, np.arange(len(load.codes), dtype=np.int32))
            if not self.rows.make_room(len(load.codes), Arena.heap_bytes_of(columns)):
                self.rows.clear()  # rows are longer than the sample said
                wheel.turn_to(0)
                return
            slots, _ = self.rows.insert(load.codes, columns)
            self.rows.marks["state"][slots] = 0
            note_rows(self.context, self.rows, slots, load.shard, load.rows_at(np.arange(len(load.codes))))
        self.complete_keys = self.rows.keys
        self.whole = True

    @property
    def whole_bytes(self) -> float:
        return self.context.store.rows * self.row_bytes * 1.02 + 16 * self.tuple_bytes + 65_536

    def _heads(self) -> Slots:
        return self.rows.groups()[0]

    def check_invariants(self) -> None:
        self.rows.check_invariants()
        heads = self._heads()
        state = self.rows.marks["state"][heads]
        being_made = state & COLLECTING > 0
        assert int(being_made.sum()) == self.collecting_keys, "keys being collected are miscounted"
        complete = heads[~being_made & (state & EMPTY == 0)]
        assert len(complete) == self.complete_keys, "complete groups are miscounted"
        assert not self.whole or self.complete_keys == self.context.store.manifest.keys
        if not self.context.single:
            codes = np.concatenate(
                [self.context.store.codes(i) for i in range(self.context.store.shards)] or [np.empty(0, np.int64)]
            )
            ordered = np.sort(codes)
            for group, expected in ((complete, None), (heads[~being_made & (state & EMPTY > 0)], 0)):
                wanted = self.rows.map.code[group]
                there = np.searchsorted(ordered, wanted, "right") - np.searchsorted(ordered, wanted, "left")
                have = self.group_rows(group) if expected is None else np.zeros(len(group), np.int32)
                assert (there == have).all(), "a group answers with only some of its key's rows"
