"""Caches of whole pages: SSIJ's and Partitioned Join's.

A page that was loaded stays, and tuples for its rows are answered as they come. When there is no memory for another
page, one goes: the one with the least uses lately (SSIJ), or the one whose last use is longest ago (Partitioned Join).
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import pyarrow as pa

from millrace.core.errors import ConfigError, one_of
from millrace.kernels import groups
from millrace.master.wheel import Load
from millrace.rows.arena import Arena, Slots
from millrace.rows.keyed import Codes, KeyedRows
from millrace.rows.sieve import Met
from millrace.semistream.access import Access, Surroundings
from millrace.semistream.cache import Cache
from millrace.semistream.pages import PageLoad

MARKS = {"hits": np.int32, "state": np.uint8, "frame": np.int32}


class PageCache(Cache):
    """Pages in frames of equal size.

    Parameters
    ----------
    cache_share
        Share of the memory the cache may take.
    """

    rows: KeyedRows

    def __init__(self, around: Surroundings, access: Access, *, cache_share: float = 0.3) -> None:
        if not isinstance(cache_share, int | float) or not 0 < cache_share < 1:
            raise ConfigError(f"cache_share: expected a number between 0 and 1; got {cache_share!r}")
        self.around = around
        schema = pa.schema([around.store.schema.field(i) for i in around.columns])
        self.rows = KeyedRows("cache", schema, around.budget, around.space, MARKS)
        self._limit = int(cache_share * around.budget.total)
        self._slots: dict[int, Slots] = {}
        self._served: dict[int, int] = {}
        self.uses: dict[int, float] = {}
        """How useful each page in memory is; the least useful goes first."""
        self.admitted_keys = self.evicted_keys = 0

    def look_up(self, codes: Codes) -> Slots:
        found = np.empty(len(codes), np.int32)
        marks = self.rows.marks
        groups.look_up(self.rows.map, marks["state"], marks["hits"], codes, False, found)
        used, counts = np.unique(marks["frame"][found[found >= 0]], return_counts=True)
        for page, count in zip(used.tolist(), counts.tolist(), strict=True):
            self.note_use(page, count)
        return found

    def on_match(self, load: Load, met: Met) -> None:
        if isinstance(load, PageLoad):
            tuples = self.around.room.rows.map.slots["count"][met.newest]
            served = np.bincount(load.page_at(met.positions), tuples, len(load.pages))
            for i in np.flatnonzero(served).tolist():
                self._served[i] = self._served.get(i, 0) + int(served[i])

    def on_load(self, load: Load) -> None:
        if isinstance(load, PageLoad):
            for i, tuples in self._served.items():
                self._take_in(load, i, tuples)
        self._served = {}

    def _take_in(self, load: PageLoad, i: int, tuples: int) -> None:
        """Keep a page that has just served so many tuples."""
        page = int(load.pages[i])
        if page in self._slots:
            return self.note_use(page, tuples)
        positions = np.arange(load.starts[i], load.starts[i + 1], dtype=np.int32)
        columns = self.around.store.mapped(load.shard).take(self.around.columns, load.rows_at(positions))
        heap = Arena.heap_bytes_of(columns)
        if not self._make_room(len(positions), heap, tuples):
            return None
        slots, _ = self.rows.insert(load.codes[positions], columns)
        self.rows.marks["state"][slots] = 0
        self.rows.marks["frame"][slots] = page
        self._slots[page] = slots
        self.note_use(page, tuples)
        self.admitted_keys += len(slots)
        return None

    def _make_room(self, rows: int, heap: int, tuples: int) -> bool:
        """Let pages go until another fits; False if it may not, or cannot."""
        needed = rows * self.rows.slot_bytes + heap
        if needed > self._limit:
            return False
        while self._slots and len(self.rows) * self.rows.row_bytes + needed > self._limit:
            victim = min(self.uses, key=self.uses.__getitem__)
            if not self.may_replace(victim, tuples):
                return False
            self._forget(victim)
        return self.rows.make_room(rows, heap)

    def may_replace(self, victim: int, tuples: int) -> bool:
        """Whether a page that has just served so many tuples may push another one out."""
        return True

    def _forget(self, page: int) -> None:
        slots = self._slots.pop(page)
        del self.uses[page]
        self.rows.remove(slots)
        self.evicted_keys += len(slots)

    def give_way(self) -> None:
        for page in list(self._slots):
            self._forget(page)
        self.rows.clear()

    @property
    def reserve(self) -> int:
        return max(0, self._limit - self.nbytes)

    @abstractmethod
    def note_use(self, page: int, count: int) -> None:
        """So many tuples were answered from a page."""


class UsefulPages(PageCache):
    """SSIJ's: uses count, and fade by half whenever a room full of tuples has come.

    Parameters
    ----------
    replace
        ``"always"``: a page that was loaded pushes the least useful one out whatever its own use, as SSIJ does it;
        ``"useful"``: only if it has just served more tuples than that one lately.
    """

    def __init__(
        self, around: Surroundings, access: Access, *, cache_share: float = 0.3, replace: str = "always"
    ) -> None:
        super().__init__(around, access, cache_share=cache_share)
        self._always = one_of("replace", replace, ("always", "useful")) == "always"

    def may_replace(self, victim: int, tuples: int) -> bool:
        return self._always or tuples > self.uses[victim]

    def note_use(self, page: int, count: int) -> None:
        self.uses[page] = self.uses.get(page, 0.0) + count

    def begin_cycle(self, cycle: int) -> None:
        self.uses = {page: uses / 2 for page, uses in self.uses.items()}


class RecentPages(PageCache):
    """Partitioned Join's: the last use counts."""

    def __init__(self, around: Surroundings, access: Access, *, cache_share: float = 0.3) -> None:
        super().__init__(around, access, cache_share=cache_share)
        self._clock = 0.0

    def note_use(self, page: int, count: int) -> None:
        self._clock += 1
        self.uses[page] = self._clock
