"""Rolling migration: each key's rows are collected during one turn of the wheel, which may begin at any step.

Collecting begins as soon as the tuples that wait for the key take more memory than one master row, and is given up when
the collected rows take more memory than the tuples. One turn later the key is published if the inequality still holds::

    n·v_S > v_R ──open──► collecting (one turn) ──inequality holds──► complete
                              │                └─ does not ─► discarded
                              └─ rows·v_R ≥ n·v_S ─► discarded

When only one row of a key matters (a unique master, or a semi join), nothing has to be collected: a row that has just
matched is cached at once if the inequality holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from millrace.kernels.groups import COLLECTING, frequent
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.code_filter import FoundCodes
from millrace.rows.keyed_rows import Codes
from millrace.semistream.cache.collected_groups import CollectedGroups
from millrace.semistream.cache.inequality import CacheInequality
from millrace.semistream.cache.migration import Migration


class Rolling(Migration):
    """Collects each key's rows for one turn of the wheel. Keys whose turns begin together form a cohort."""

    def __init__(self, groups: CollectedGroups, inequality: CacheInequality, growth: Callable[[], int]) -> None:
        super().__init__(groups, inequality, growth)
        self._cohorts: deque[tuple[int, int, Codes]] = deque()
        self._next_cohort = 0

    def on_admit(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        groups, worthwhile, room = self.groups, self.inequality.worthwhile, self.context.room
        if self.context.single:
            return
        candidates = np.unique(codes[worthwhile(counts, np.ones_like(counts))])
        if not len(candidates):
            return
        heads = room.rows.oldest(candidates)
        met_rows = np.maximum(room.rows_met(heads), 1).astype(np.int32)
        candidates = candidates[worthwhile(room.rows.counts(candidates), met_rows)]
        opened = groups.open(candidates, self._next_cohort)
        if len(opened):
            deadline = groups.wheel.turned + groups.wheel.rows
            self._cohorts.append((deadline, self._next_cohort, opened))
            self._next_cohort += 1

    def end_step(self) -> None:
        groups = self.groups
        while self._cohorts and self._cohorts[0][0] <= groups.wheel.turned:
            _, cohort, codes = self._cohorts.popleft()
            heads = groups.rows.oldest(codes)
            heads = heads[heads >= 0]
            marks = groups.rows.marks
            heads = heads[(marks["state"][heads] & COLLECTING > 0) & (marks["since"][heads] == cohort)]
            stays = self._worthwhile(heads)
            groups.publish(heads[stays])
            groups.discard(heads[~stays])

    def on_load(self, load: Load) -> None:
        for heads in self.groups.collect(load, self.collecting):
            self.groups.discard(heads[~self._worthwhile(heads)])

    def _worthwhile(self, heads: Slots) -> npt.NDArray[np.bool_]:
        """Return a mask of the groups that take less memory now than the tuples that wait for their keys.

        ``heads`` holds the first slot of each group.
        """
        groups = self.groups
        tuples = self.context.room.rows.counts(groups.rows.map.code[heads])
        return self.inequality.worthwhile(tuples, groups.group_rows(heads))

    def on_match(self, load: Load, met: FoundCodes) -> None:
        if not self.context.single:
            return
        found = np.empty(len(met.newest), np.int32)
        least = self.inequality.least_tuples_for_one_row
        made = frequent(self.context.room.rows.map, met.newest, self.groups.rows.map, least, found)
        if made:
            positions = met.positions[found[:made]]
            self.groups.admit_rows(load.shard, load.rows_at(positions), load.codes[positions])

    def cancel(self) -> None:
        self._cohorts.clear()

    def collecting(self) -> Codes:
        return np.concatenate([codes for _, _, codes in self._cohorts] or [np.empty(0, np.int64)])
