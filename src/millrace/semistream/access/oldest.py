"""HYBRIDJOIN's access: load the page of the tuple that has waited longest; all tuples that wait for the page leave.

::

    queue   oldest ──► [ t t t … t t t ] ◄── youngest
                         │ index: key ─► page
                         ▼
                       page ──► all tuples that wait for a row on it leave

A few pages are loaded in one step, in the order of the queue: without arrivals in between, the oldest tuple after a
load is the oldest that waits for another page, so loading the first n different pages at once equals n loads in the
paper. Variants choose the next page in another way: :mod:`position <millrace.semistream.access.position>` and
:mod:`page_queue <millrace.semistream.access.page_queue>`.

Tuples of a key that repeats in the master leave only when all pages with its rows are in memory together.

References
----------
M. A. Naeem, G. Dobbie, G. Weber: HYBRIDJOIN for near-real-time data warehousing. IJDWM 7(4), 2011.

Deviations: a tuple without a master row leaves as soon as its key is looked up, where the published loop would wait for
ever; keys that repeat are allowed; several pages are loaded per step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from millrace.core.errors import ConfigError
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.code_filter import FoundCodes
from millrace.rows.keyed_rows import Codes
from millrace.semistream.access.access_policy import Access
from millrace.semistream.access.numbered_pages import Counts, PageLoad, PageNumbers, Pages
from millrace.semistream.context import JoinContext

_PART_OF_ROOM = 40  # a step frees at most about 1/40 of the room, so that its last load meets a nearly full room too


class Oldest(Access):
    """Loads the pages of the tuples that have waited longest.

    Parameters
    ----------
    loads
        Pages per step; by default as many as the load buffer holds, but few enough to keep the waiting room full.
    """

    paged = True
    sweeps = False
    """Whether the pages of a step are read in their order on disk."""

    def __init__(self, context: JoinContext, *, loads: int | None = None) -> None:
        super().__init__(context)
        if loads is not None and (not isinstance(loads, int) or loads < 1):
            raise ConfigError(f"loads: expected a whole number of at least 1; got {loads!r}")
        self.pages = Pages(context.store, context.device, self.b)
        self._loads = loads
        self._most_loads = max(1, context.step_rows // self.b)
        self._steps = 0
        self._cycles = 0.0
        self.arrived = 0
        """Number of tuples that have entered the waiting room so far."""
        self._recent_left, self._recent_loads = 1.0, 1.0
        self._finished: list[Codes] = []
        self._left: Counts = np.zeros(0, np.int64)

    # the loop's calls

    @property
    def place(self) -> int:
        return self._steps

    def quota(self, capacity: int) -> int:
        room = self.context.room
        w = self.w or capacity
        if not len(room):
            return max(1, min(w, capacity))
        return max(0, min(w - room.newest_chunk_size(self.place), capacity - len(room)))

    def on_admit(self, codes: Codes) -> None:
        self.arrived += len(codes)
        if self._steps:  # before the first step the room was never full, and its size is unknown
            self._cycles += len(codes) / self.most_waiting

    def loads(self) -> Iterator[Load]:
        self._steps += 1
        self._finished = []
        self.context.room.sweep()
        pages = self.choose(self._loads_now())
        if self.context.single:
            yield from self._pages(pages)
        else:
            yield from self._groups(pages)

    def finished(self) -> Iterator[Slots]:
        for codes in self._finished:
            slots = self.context.room.rows.slots_of(codes)
            if len(slots):
                yield slots

    def on_match(self, load: Load, met: FoundCodes) -> None:
        if self.context.single and not self.context.store.coder.exact:
            self._finished.append(load.codes[met.positions])  # maybe of another key, but no other row has the code
        if isinstance(load, PageLoad):
            sizes = self.context.room.rows.map.slots["count"][met.newest]
            self._left += np.bincount(load.page_at(met.positions), sizes, len(load.pages)).astype(np.int64)

    # which pages

    def _loads_now(self) -> int:
        if self._loads is not None:
            return self._loads
        enough = len(self.context.room) / _PART_OF_ROOM / max(1.0, self.matches_per_load)
        return int(max(1, min(self._most_loads, enough)))

    def choose(self, most: int) -> PageNumbers:
        """Return the pages to load next, most urgent first: at most ``most``, or more if a single key needs more."""
        return self.pages_of(self.context.room.oldest(most), most)

    def pages_of(self, slots: Slots, most: int) -> PageNumbers:
        """Return the pages that these tuples wait for, and note tuples without a master row as finished.

        Where a tuple may need several pages, at most ``most`` are returned, or all pages of the first tuple's key if
        these are more.
        """
        codes = self.context.room.rows.map.code[slots]
        codes = codes[np.sort(np.unique(codes, return_index=True)[1])]
        if self.context.single:
            pages = self.pages.first_pages(codes)
            self._finished.append(codes[pages < 0])
            pages = pages[pages >= 0]
            return pages[np.sort(np.unique(pages, return_index=True)[1])]
        places, pages = self.pages.all_pages(codes)
        self._finished.append(codes[np.setdiff1d(np.arange(len(codes)), places)])
        order = np.lexsort((pages, places))
        pages = pages[order]
        firsts = np.sort(np.unique(pages, return_index=True)[1])
        whole = int((places[order][firsts] == 0).sum())  # the most urgent key gets all of its pages
        return pages[firsts][: max(most, whole)]

    def _pages(self, pages: PageNumbers) -> Iterator[Load]:
        for load in self.pages.read(pages, self.sweeps):
            self._left = np.zeros(len(load.pages), np.int64)
            yield load
            self.note_loads(load.pages, self._left)

    def _groups(self, pages: PageNumbers) -> Iterator[Load]:
        """Read pages, and yield all rows of waiting keys that have no rows on other pages; used where keys repeat."""
        room = self.context.room
        waiting: list[Codes] = []
        for load in self.pages.read(pages):
            met = [load.codes[met.positions] for met in room.meet(load)]
            waiting += met
        codes = np.unique(np.concatenate(waiting)) if waiting else np.empty(0, np.int64)
        places, needed = self.pages.all_pages(codes)
        incomplete = np.unique(places[~np.isin(needed, pages)])
        left = self._left_with(codes, places, needed, pages, incomplete)
        codes = np.delete(codes, incomplete)
        yield from self.pages.groups(codes, max(1, self.context.step_rows // 2))
        self._finished.append(codes)
        self.note_loads(pages, left)

    def _left_with(
        self, codes: Codes, places: PageNumbers, needed: PageNumbers, pages: PageNumbers, incomplete: PageNumbers
    ) -> Counts:
        """Return how many tuples leave with each page; a tuple that needs several pages counts for the first.

        Code ``codes[places[i]]`` has rows on page ``needed[i]``. ``incomplete`` are the places of codes
        whose tuples do not leave yet.
        """
        tuples = self.context.room.rows.counts(codes)
        tuples[incomplete] = 0
        first = np.unique(places, return_index=True)[1]
        order = np.argsort(pages)
        at = order[np.minimum(np.searchsorted(pages, needed[first], sorter=order), max(0, len(pages) - 1))]
        return np.bincount(at, tuples[places[first]], len(pages)).astype(np.int64)

    def note_loads(self, pages: PageNumbers, left: Counts) -> None:
        """Record the pages that were loaded, and how many tuples left with each."""
        tuples = float(left.sum())
        keep = math.exp(-tuples / self.most_waiting)  # a frequent page is loaded about once in a room full of tuples
        self._recent_left = keep * self._recent_left + tuples
        self._recent_loads = keep * self._recent_loads + len(pages)

    @property
    def matches_per_load(self) -> float:
        """Average number of tuples that leave with a loaded page.

        The average is over recent loads, with about as many tuples as have waited at the same time.
        """
        return self._recent_left / self._recent_loads

    # the rest

    @property
    def most_waiting(self) -> int:
        """Largest number of tuples that have waited at the same time."""
        return max(1, self.context.metrics.most_waiting)

    @property
    def cycles(self) -> float:
        return self._cycles

    @property
    def longest_wait(self) -> int:
        return self.most_waiting

    @property
    def turned(self) -> int:
        return self._steps

    def resume(self, turned: int) -> None:
        self._steps = turned

    def explain(self) -> str:
        b, pages = self.b, len(self.pages)
        return f"{pages:,} pages of b = {b:,} rows, found through the index, up to {self._most_loads:,} in a step"
