"""A cache of the most recently used keys: with all of their master rows, or marked as having none.

References
----------
R. Derakhshan, A. Sattar, B. Stantic: A new operator for efficient stream-relation join processing in data streaming
engines. CIKM 2013.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.kernels.groups import EMPTY
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.keyed_rows import Codes
from millrace.semistream.access.access_policy import Access
from millrace.semistream.cache.frequency import Counts, FrequencyCache
from millrace.semistream.context import JoinContext

_MOST_NEW = 4  # keys that enter together take at most 1/4 of the cache, those with most tuples first
_AT_ONCE = 16  # a full cache evicts 1/16 of its rows at a time, because finding the oldest takes a sort


class RecentCache(FrequencyCache):
    """Caches every key that is looked up and evicts the least recently used.

    The mark ``hits`` holds the time of a key's last use, counted in calls of :meth:`look_up`.
    """

    def __init__(self, context: JoinContext, access: Access, *, cache_share: float = 0.3) -> None:
        super().__init__(context, access, cache_share=cache_share, threshold=1)
        self._now = 0

    def look_up(self, codes: Codes) -> Slots:
        found = super().look_up(codes)
        self._now += 1
        heads = self.rows.oldest(codes)
        self.rows.marks["hits"][heads[heads >= 0]] = self._now
        return found

    def begin_cycle(self, cycle: int) -> None:
        """Do nothing: times of use do not fade."""

    def on_load(self, load: Load) -> None:
        """Do nothing: there is no threshold to move."""

    def on_absent(self, codes: Codes) -> None:
        codes = np.unique(codes)
        codes = codes[self.rows.oldest(codes) < 0]
        codes = codes[self._evict_for(np.ones(len(codes), np.int32), np.ones(len(codes), np.int64))]
        if len(codes) and self.rows.make_room(len(codes)):
            slots, _ = self.rows.insert_codes(codes)
            self.rows.marks["state"][slots] = EMPTY
            self.rows.marks["hits"][slots] = self._now
            self.context.metrics.admitted_keys += len(codes)

    def _extra_state(self) -> dict[str, int]:
        return {"now": self._now}

    def _restore_extra_state(self, facts: dict[str, int]) -> None:
        self._now = int(facts["now"])

    def _first_use(self, tuples: Counts) -> Counts:
        return np.full(len(tuples), self._now, np.int32)

    def _evict_for(self, wanted: Counts, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        most = int(self._limit / self.row_bytes)
        order = np.lexsort((self._random.random(len(wanted)), -wanted))  # random among equals
        enter = int(np.searchsorted(np.cumsum(sizes[order]), max(1, most // _MOST_NEW), side="right"))
        surplus = len(self.rows) + int(sizes[order[:enter]].sum()) - most
        if surplus > 0:
            surplus = max(surplus, most // _AT_ONCE)
            heads, rows = self.rows.groups()
            oldest = np.argsort(self.rows.marks["hits"][heads], kind="stable")
            evicted = int(np.searchsorted(np.cumsum(rows[oldest]), surplus)) + 1
            self._evict(heads[oldest[:evicted]])
        return order[:enter]

    def check_invariants(self) -> None:
        self.rows.check_invariants()
        state = self.rows.marks["state"][self.rows.live()]
        assert ((state == 0) | (state == EMPTY)).all(), "a cached row does not answer tuples"
