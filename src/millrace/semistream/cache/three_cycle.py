"""The three-cycle migration of the SSBJ paper, with corrections.

Turns of the wheel take three roles in rotation::

    incrementing           switching                       phase-out
    ────────────           ─────────                       ─────────
    count the rows of      keys whose rows are cheaper     the copied rows become part of the
    every watched key      than their tuples are marked,   cache; tuples that waited already
                           their rows copied               finish their own turn

As published, the inequality is evaluated again for every row while the number of waiting tuples goes up and down, so
only some rows of a key may be copied, and rows of a key that came in the middle of the counting turn are missed. Here a
key is watched only if tuples waited for it when the turn began, its count is kept while the turn lasts, and keys are
marked only once, when the switching turn begins. As many rows must then be copied as were counted. A key's tuples are
those that entered during the counting turn, which are those waiting at its end if all stay a whole turn as in the
paper. (Where tuples leave early, a key for which no tuple waits when a counting turn begins is not watched then.)

The watch list is part of the budget: it takes the keys with the most waiting tuples until its share is used up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.kernels.groups import COLLECTING, add_one
from millrace.master.read.wheel import Load
from millrace.rows.code_filter import CodeFilter
from millrace.rows.keyed_rows import Codes, KeyedRows
from millrace.semistream.cache.collected_groups import CollectedGroups
from millrace.semistream.cache.inequality import CacheInequality
from millrace.semistream.cache.migration import Migration

_MARKS = {"rows": np.int32, "tuples": np.int32}
_WATCH_SHARE = 0.10


class ThreeCycle(Migration):
    """Collects the rows of keys in three turns of the wheel.

    The rows are counted in the first turn (incrementing) and copied in the second (switching). When the third begins
    (phase-out), the copied rows become part of the cache.
    """

    def __init__(self, groups: CollectedGroups, inequality: CacheInequality, growth: Callable[[], int]) -> None:
        super().__init__(groups, inequality, growth)
        context = self.context
        no_columns = pa.schema([])
        self._watch = KeyedRows("switching", no_columns, context.budget, context.space, _MARKS)
        self._filter = CodeFilter("switching", self._watch, context.budget, context.lanes, context.matches)
        self._marked: Codes = np.empty(0, np.int64)
        self._counted: dict[int, int] = {}
        self._role = ""

    def on_admit(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        if self._role == "incrementing":
            watched = self._watch.newest(codes)
            add_one(self._watch.marks["tuples"], watched[watched >= 0])

    def begin_cycle(self, cycle: int) -> None:
        self._role = ("phase-out", "incrementing", "switching")[cycle % 3]
        if self._role == "incrementing":
            self._begin_counting()
        elif self._role == "switching":
            self._mark()
        else:
            self._publish()

    def _begin_counting(self) -> None:
        room, watch = self.context.room, self._watch
        codes, counts = room.groups()
        outside = self.groups.rows.oldest(codes) < 0
        codes, counts = codes[outside], counts[outside]
        most = int(_WATCH_SHARE * self.context.budget.total / watch.row_bytes)
        codes = codes[np.argsort(-counts, kind="stable")[:most]]
        while len(codes) and not watch.make_room(len(codes)):
            codes = codes[: len(codes) // 2]
        slots, _ = watch.insert_codes(codes)
        watch.marks["rows"][slots] = 0
        watch.marks["tuples"][slots] = 0
        self._filter.refresh(codes)

    def _mark(self) -> None:
        watch = self._watch
        slots = watch.live()
        codes, rows, tuples = watch.map.code[slots], watch.marks["rows"][slots], watch.marks["tuples"][slots]
        good = self.inequality.worthwhile(tuples, rows)
        codes, rows, tuples = codes[good], rows[good], tuples[good]
        gain = tuples * self.inequality.tuple_bytes - self.inequality.cache_cost(rows)
        order = np.argsort(-gain, kind="stable")
        cost = np.cumsum(self.inequality.cache_cost(rows)[order] / self.inequality.factor)
        order = order[cost <= self.growth()]
        self._marked = self.groups.open(codes[order], 0)
        self._counted = dict(zip(codes.tolist(), rows.tolist(), strict=True))
        watch.remove(slots)
        watch.trim()

    def _publish(self) -> None:
        groups, rows = self.groups, self.groups.rows
        heads = rows.oldest(self._marked)
        heads = heads[heads >= 0]  # the groups of other keys were discarded because memory ran out
        heads = heads[rows.marks["state"][heads] & COLLECTING > 0]
        copied = groups.group_rows(heads)
        counted = [self._counted[code] for code in rows.map.code[heads].tolist()]
        assert copied.tolist() == counted, "a key was switched with only some of its rows"
        groups.publish(heads)
        self._marked = np.empty(0, np.int64)
        self._counted = {}

    def on_load(self, load: Load) -> None:
        if self._role == "incrementing":
            for met in self._filter.search(load.codes):
                add_one(self._watch.marks["rows"], met.newest)
        elif self._role == "switching":
            for _ in self.groups.collect(load, self.collecting):
                continue

    def cancel(self) -> None:
        self._watch.clear()
        self._marked = np.empty(0, np.int64)
        self._counted = {}
        self._role = ""

    def collecting(self) -> Codes:
        return self._marked
