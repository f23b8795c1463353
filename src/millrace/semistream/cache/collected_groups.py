"""Groups of cached master rows, one group per key.

A group answers tuples only when it is complete, which means that all master rows of its key have been collected.

::

    (not cached) ──open──► collecting ──publish──► complete ──discard──► (not cached)
                               └──────discard─────────────────────────►
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.kernels import multimap
from millrace.kernels.groups import COLLECTING, EMPTY
from millrace.master.read.wheel import Load, Wheel
from millrace.rows.arena import Arena, Slots
from millrace.rows.code_filter import LEAST_MATCHES, CodeFilter
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes, KeyedRows
from millrace.semistream.cache.cache_policy import note_rows, row_mark
from millrace.semistream.context import JoinContext

MARKS = {"hits": np.int32, "since": np.int32, "state": np.uint8}
TICKS = 16
"""Ticks in one turn of the wheel (one scan of the master); the age of a group is counted in ticks."""
_COPY_ROWS = 256


class CollectedGroups:
    """Holds the cached master rows of SSBJ, in one group per key.

    Parameters
    ----------
    wheel
        The scan that reads the rows.
    """

    def __init__(self, context: JoinContext, wheel: Wheel) -> None:
        self.context, self.wheel = context, wheel
        schema = pa.schema([context.store.schema.field(i) for i in context.columns])
        self.rows = KeyedRows("cache", schema, context.budget, context.space, {**MARKS, **row_mark(context)})
        matches = LEAST_MATCHES if context.single else context.matches
        self._filter = CodeFilter("switching", self.rows, context.budget, context.lanes, matches)
        self.whole = False
        """Whether every row of the master is cached."""
        self.complete_keys = 0
        self.collecting_keys = 0
        self._noted: dict[int, list[tuple[Indices, Codes]]] = {}
        self._noted_rows = self._noted_at = 0

    def open(self, codes: Codes, stamp: int) -> Codes:
        """Start collecting the rows of keys that are not cached yet; return the keys for which there was memory.

        ``stamp`` is written to the mark ``since`` of the new groups.
        """
        codes = codes[self.rows.oldest(codes) < 0]
        while len(codes) and not self.rows.make_room(len(codes)):
            codes = codes[: len(codes) // 2]
        slots, _ = self.rows.insert_codes(codes)
        self.rows.marks["state"][slots] = COLLECTING | EMPTY
        self.rows.marks["since"][slots] = stamp
        self.collecting_keys += len(codes)
        self._filter.watch(codes)
        return codes

    def collect(self, load: Load, collecting: Callable[[], Codes]) -> Iterator[Slots]:
        """Copy the rows of a load whose keys are being collected; yield the first slots of the groups that grew.

        ``collecting`` returns the keys whose rows are being collected.
        """
        if not self.collecting_keys:
            return
        if self._filter.stale(self.collecting_keys):
            self._filter.refresh(collecting())
        state = self.rows.marks["state"]
        for met in self._filter.search(load.codes):
            heads = self.rows.oldest(load.codes[met.positions])  # groups may have been discarded since they were found
            wanted = (heads >= 0) & (state[heads] & COLLECTING > 0)
            if wanted.any():
                yield self._copy_rows(load, met.positions[wanted], heads[wanted])

    def _copy_rows(self, load: Load, positions: npt.NDArray[np.int32], heads: Slots) -> Slots:
        """Copy rows into groups and return each group's first slot. If memory runs out, discard these groups instead.

        ``heads`` holds for each row the first slot of the group that the row belongs to.
        """
        state = self.rows.marks["state"]
        touched, first = np.unique(heads, return_index=True)
        first = first[(state[touched] & EMPTY) > 0]  # these rows go into the head's own slot
        more = np.setdiff1d(np.arange(len(heads)), first)
        into_heads, into_slots = self.columns_of(load, positions[first]), self.columns_of(load, positions[more])
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
        """Mark groups, given by their first slots, as complete, so that they answer tuples from now on."""
        state = self.rows.marks["state"]
        self.collecting_keys -= int((state[heads] & COLLECTING > 0).sum())
        state[heads] &= ~COLLECTING
        self.rows.marks["hits"][heads] = 0
        self.rows.marks["since"][heads] = self.now
        self.complete_keys += int((state[heads] & EMPTY == 0).sum())
        self.context.metrics.admitted_keys += len(heads)
        self._notice_whole()

    def admit_rows(self, shard: int, rows: Indices, codes: Codes) -> None:
        """Cache rows that are known to be the only ones of their keys.

        The rows are noted now and copied a few hundred at a time, because every copy has a fixed cost.
        """
        self._noted.setdefault(shard, []).append((rows, codes))
        self._noted_rows += len(rows)
        wheel = self.wheel
        if self._noted_rows >= _COPY_ROWS or 8 * (wheel.turned - self._noted_at) >= wheel.rows:
            self.copy_noted()

    def copy_noted(self) -> None:
        """Copy the rows noted by :meth:`admit_rows` into the cache; drop the rows that do not fit into memory."""
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

    def discard(self, heads: Slots) -> None:
        """Remove groups with all of their rows, complete or not; the caller counts evictions."""
        if not len(heads):
            return
        state = self.rows.marks["state"]
        collecting = state[heads] & COLLECTING > 0
        self.collecting_keys -= int(collecting.sum())
        self.complete_keys -= int((~collecting & (state[heads] & EMPTY == 0)).sum())
        self._notice_whole()
        self.rows.remove(self.rows.slots_of(self.rows.map.code[heads]))

    def group_rows(self, heads: Slots) -> npt.NDArray[np.int32]:
        """Return how many master rows each group holds; groups are given by their first slots."""
        counts = self.rows.counts(self.rows.map.code[heads])
        counts[self.rows.marks["state"][heads] & EMPTY > 0] = 0
        return counts

    def columns_of(self, load: Load, positions: npt.NDArray[np.int32]) -> list[pa.Array]:
        """Return the cached columns of the rows at these positions of a load."""
        mapped = self.context.store.mapped(load.shard)
        return mapped.take(self.context.columns, load.rows_at(positions))

    @property
    def heads(self) -> Slots:
        """The first slot of every group."""
        return self.rows.groups()[0]

    @property
    def now(self) -> int:
        """Progress of the wheel in ticks (:data:`TICKS` per turn)."""
        return TICKS * self.wheel.turned // max(1, self.wheel.rows)

    def open_empty(self, codes: Codes) -> None:
        """Cache keys without a master row as empty groups, as many as there is memory for."""
        codes = codes[self.rows.oldest(codes) < 0]
        while len(codes) and not self.rows.make_room(len(codes)):
            codes = codes[: len(codes) // 2]
        slots, _ = self.rows.insert_codes(codes)
        self.rows.marks["state"][slots] = EMPTY
        self.publish(slots)

    def fill_from(self, wheel: Wheel) -> bool:
        """Cache every row of the master in one scan; return False, with nothing cached, if they do not fit."""
        while wheel.turned < self.context.store.rows:
            load = wheel.next_load(16_384)
            columns = self.columns_of(load, np.arange(len(load.codes), dtype=np.int32))
            if not self.rows.make_room(len(load.codes), Arena.heap_bytes_of(columns)):
                self.rows.clear()  # rows are longer than in the sample
                wheel.turn_to(0)
                return False
            slots, _ = self.rows.insert(load.codes, columns)
            self.rows.marks["state"][slots] = 0
            note_rows(self.context, self.rows, slots, load.shard, load.rows_at(np.arange(len(load.codes))))
        self.complete_keys = self.rows.keys
        self.whole = True
        return True

    def continue_from(self, complete_keys: int, turned: int) -> None:
        """Continue with saved groups: set the place of the wheel and the groups' ages.

        When the groups were saved, ``complete_keys`` of them were complete, and ``turned`` rows had been scanned.
        """
        if not self.wheel.turned:
            self.wheel.turn_to(turned)
        then = TICKS * turned // max(1, self.wheel.rows)
        self.rows.marks["since"][: int(self.rows.map.state[multimap.HIGH])] += self.now - then
        self.complete_keys = complete_keys
        self._notice_whole()

    def _notice_whole(self) -> None:
        self.whole = self.complete_keys == self.context.store.manifest.keys

    def check_invariants(self) -> None:
        """Assert that groups are complete and counted correctly; for tests."""
        self.rows.check_invariants()
        heads = self.heads
        state = self.rows.marks["state"][heads]
        collecting = state & COLLECTING > 0
        assert int(collecting.sum()) == self.collecting_keys, "the number of keys being collected is wrong"
        complete = heads[~collecting & (state & EMPTY == 0)]
        assert len(complete) == self.complete_keys, "the number of complete groups is wrong"
        assert not self.whole or self.complete_keys == self.context.store.manifest.keys
        if not self.context.single:
            codes = np.concatenate(
                [self.context.store.codes(i) for i in range(self.context.store.shards)] or [np.empty(0, np.int64)]
            )
            ordered = np.sort(codes)
            for group, expected in ((complete, None), (heads[~collecting & (state & EMPTY > 0)], 0)):
                wanted = self.rows.map.code[group]
                there = np.searchsorted(ordered, wanted, "right") - np.searchsorted(ordered, wanted, "left")
                have = self.group_rows(group) if expected is None else np.zeros(len(group), np.int32)
                assert (there == have).all(), "a group answers with only some of its key's rows"
