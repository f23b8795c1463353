"""Partitioned Join's access: the pages with the most waiting tuples are loaded.

A tuple's page is found when the tuple enters, and every page has a count of the tuples that wait for it. Loading the
fullest pages first answers the most tuples per read. A tuple whose page few other tuples need may wait without end,
unless ``max_wait`` is set.

References
----------
A. Chakraborty, A. Singh: A partition-based approach to support streaming updates over persistent data in an active
datawarehouse. IPDPS 2009.

Deviations: pages are found through an index, so the master need not be partitioned by ranges of the key.
"""

from __future__ import annotations

import numpy as np

from millrace.core.errors import BudgetTooSmallError, ConfigError
from millrace.core.sizes import format_size
from millrace.kernels.radix_sort import least_of
from millrace.master.store import MasterStore
from millrace.rows.keyed_rows import Codes
from millrace.semistream.access.numbered_pages import Counts, PageNumbers
from millrace.semistream.access.oldest import Oldest
from millrace.semistream.context import JoinContext

_COUNT_BYTES = 4


class Fullest(Oldest):
    """Loads the pages with the most waiting tuples.

    Parameters
    ----------
    max_wait
        Number of steps after which a tuple's page is loaded, even if few other tuples need it; no limit by default.
    """

    def __init__(self, context: JoinContext, *, loads: int | None = None, max_wait: int | None = None) -> None:
        super().__init__(context, loads=loads)
        if max_wait is not None and (not isinstance(max_wait, int) or max_wait < 1):
            raise ConfigError(f"max_wait: expected a whole number of at least 1; got {max_wait!r}")
        self._max_wait = max_wait
        budget, needed = context.budget, self.start_bytes(context.store, self.b)
        if needed > budget.available:
            least = budget.total + needed - budget.available
            raise BudgetTooSmallError(
                f"memory: {format_size(budget.total)} is too little for a count of waiting tuples for each of "
                f"{len(self.pages):,} pages; the least is {least} bytes ({format_size(least)}), or set a larger b",
                least,
            )
        budget.reserve("page counts", needed)
        self.waiting_for = np.zeros(len(self.pages), np.int32)
        """Number of tuples that wait for each page."""
        self._absent: list[Codes] = []

    @staticmethod
    def start_bytes(store: MasterStore, b: int) -> int:
        """Return the bytes of the counts of waiting tuples, one count for each page of ``b`` rows."""
        return _COUNT_BYTES * sum(-(-shard.rows // b) for shard in store.manifest.shards)

    def on_admit(self, codes: Codes) -> None:
        super().on_admit(codes)
        pages = self.pages.first_pages(codes)
        there = pages >= 0
        np.add.at(self.waiting_for, pages[there], 1)
        if not there.all():
            self._absent.append(np.unique(codes[~there]))

    def choose(self, most: int) -> PageNumbers:
        self._finished += self._absent
        self._absent = []
        overdue = self._overdue(most)
        wanted = np.flatnonzero(self.waiting_for)
        fullest = wanted[least_of(-self.waiting_for[wanted], most)]
        return np.concatenate([overdue, fullest[~np.isin(fullest, overdue)]])[:most]

    def _overdue(self, most: int) -> PageNumbers:
        """Return the pages, at most ``most``, of the oldest tuples that have waited ``max_wait`` steps or more."""
        if self._max_wait is None:
            return np.empty(0, np.int64)
        room = self.context.room
        slots = room.oldest(most)
        slots = slots[room.waited(slots, self._steps) >= self._max_wait]
        return self.pages_of(slots, most)

    def note_loads(self, pages: PageNumbers, left: Counts) -> None:
        super().note_loads(pages, left)
        self.waiting_for[pages] = 0

    @property
    def longest_wait(self) -> int:
        return 2**62 if self._max_wait is None else self._max_wait + self.most_waiting

    def check_invariants(self) -> None:
        room = self.context.room
        pages = self.pages.first_pages(room.rows.map.code[room.rows.live()])
        counted = np.bincount(pages[pages >= 0], minlength=len(self.pages))
        assert (counted == self.waiting_for).all(), "a page has a wrong count of waiting tuples"
