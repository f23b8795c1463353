"""Rolling migration: every key collects its rows during one turn of its own, beginning at any step.

A key begins as soon as enough tuples wait for it that even one master row would be cheaper, gives up when its rows
become dearer than its tuples, and is published one turn later if the inequality still holds then::

    n·v_S > v_R ──open──► collecting (one turn) ──inequality holds──► complete
                              │                └─ does not ─► discarded
                              └─ rows·v_R ≥ n·v_S ─► discarded

When a key can have only one row (a unique master, or a semi join, where one row settles it) nothing has to be
collected: the row that has just matched is admitted on the spot if the inequality holds.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from millrace.kernels import groups
from millrace.kernels.groups import COLLECTING
from millrace.master.read.wheel import Load
from millrace.rows.code_filter import Met
from millrace.rows.keyed_rows import Codes
from millrace.semistream.cache.migration import Migration

if TYPE_CHECKING:
    from millrace.semistream.cache.balanced import BalancedCache


class Rolling(Migration):
    """One turn per key. Keys that begin at the same step form a cohort."""

    def __init__(self, cache: BalancedCache) -> None:
        super().__init__(cache)
        self._cohorts: deque[tuple[int, int, Codes]] = deque()
        self._next_cohort = 0

    def admitted(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        cache = self.cache
        if cache.context.single:
            return
        hopeful = np.unique(codes[cache.worthwhile(counts, np.ones_like(counts))])
        if not len(hopeful):
            return
        room = cache.context.room
        heads = room.rows.oldest(hopeful)
        seen = np.maximum(room.seen_rows(heads), 1).astype(np.int32)
        hopeful = hopeful[cache.worthwhile(room.rows.counts(hopeful), seen)]
        opened = cache.open(hopeful, self._next_cohort)
        if len(opened):
            deadline = cache.wheel.turned + cache.wheel.rows
            self._cohorts.append((deadline, self._next_cohort, opened))
            self._next_cohort += 1

    def end_step(self) -> None:
        cache = self.cache
        while self._cohorts and self._cohorts[0][0] <= cache.wheel.turned:
            _, cohort, codes = self._cohorts.popleft()
            heads = cache.rows.oldest(codes)
            heads = heads[heads >= 0]
            marks = cache.rows.marks
            heads = heads[(marks["state"][heads] & COLLECTING > 0) & (marks["since"][heads] == cohort)]
            tuples = cache.context.room.rows.counts(cache.rows.map.code[heads])
            stays = cache.worthwhile(tuples, cache.group_rows(heads))
            cache.publish(heads[stays])
            cache.discard(heads[~stays])

    def on_load(self, load: Load) -> None:
        cache = self.cache
        for heads in cache.collect(load):
            tuples = cache.context.room.rows.counts(cache.rows.map.code[heads])
            cache.discard(heads[~cache.worthwhile(tuples, cache.group_rows(heads))])

    def on_match(self, load: Load, met: Met) -> None:
        cache = self.cache
        if not cache.context.single:
            return
        found = np.empty(len(met.newest), np.int32)
        least = cache.least_tuples_for_one_row
        made = groups.frequent(cache.context.room.rows.map, met.newest, cache.rows.map, least, found)
        if made:
            positions = met.positions[found[:made]]
            cache.admit_rows(load.shard, load.rows_at(positions), load.codes[positions])

    def settle(self) -> None:
        self._cohorts.clear()

    def collecting(self) -> Codes:
        return np.concatenate([codes for _, _, codes in self._cohorts] or [np.empty(0, np.int64)])
