"""HYBRIDJOIN-PQ's access policy: frequent pages are loaded when enough tuples should be waiting for them.

A page is frequent if many tuples leave when it is loaded. It is due again after ``threshold · room / frequency`` more
tuples have arrived. ``room`` is the number of waiting tuples; ``frequency`` is a moving average of the number of tuples
that leave at a load of the page, whatever the time between its loads. In a steady state the time between two loads is
inversely proportional to the square root of the share of tuples that need the page. For a given number of waiting
tuples, this takes the fewest loads.

References
----------
M. A. Naeem, G. Weber, C. Lutteroth: Optimising queue-based semi-stream joins by introducing a queue of frequent pages.
ADC 2016.

Deviations: frequency is a number of tuples, not a share, as the formula needs; every ``guard``-th load is for the
oldest tuple; the threshold, which the paper leaves open, is measured before the queue is used.
"""

from __future__ import annotations

import numpy as np

from millrace.core.errors import ConfigError
from millrace.semistream.access.frequent_pages import FrequentPages, PagePeriod
from millrace.semistream.access.numbered_pages import Counts, PageNumbers
from millrace.semistream.access.oldest import Oldest
from millrace.semistream.context import JoinContext

_WARM_ROOMS = 3  # the threshold is set after as many arrivals as fill the room this many times


class PageQueue(Oldest):
    """Loads frequent pages when they are due, else pages of the oldest tuples.

    Parameters
    ----------
    page_threshold
        Number of tuples that should wait for a page when it is loaded. By default it is measured before the queue is
        used, see ``times_average``.
    times_average
        Default of ``page_threshold``, as a multiple of the average number of tuples that leave with a loaded page.
    decay
        Weight of the past in a page's frequency; 0 keeps only the last load.
    guard
        One load in ``guard`` is for the oldest tuple.
    """

    def __init__(
        self,
        context: JoinContext,
        *,
        loads: int | None = None,
        page_threshold: float | None = None,
        times_average: float = 4.0,
        decay: float = 0.9,
        guard: int = 4,
    ) -> None:
        super().__init__(context, loads=loads)
        if page_threshold is not None and not (isinstance(page_threshold, int | float) and page_threshold > 0):
            raise ConfigError(f"page_threshold: expected a number above 0; got {page_threshold!r}")
        if not isinstance(times_average, int | float) or not times_average > 0:
            raise ConfigError(f"times_average: expected a number above 0; got {times_average!r}")
        if not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise ConfigError(f"decay: expected a number of at least 0 and below 1; got {decay!r}")
        if not isinstance(guard, int) or guard < 1:
            raise ConfigError(f"guard: expected a whole number of at least 1; got {guard!r}")
        self.threshold = 0.0 if page_threshold is None else float(page_threshold)
        self._times_average, self._decay, self._guard = times_average, decay, guard
        self._owed = 0
        self.queue = FrequentPages(context.budget)
        self._due = np.empty(0, np.int64)

    def choose(self, most: int) -> PageNumbers:
        self._owed += most
        for_oldest = min(most, max(1, self._owed // self._guard)) if most > 1 else self._owed // self._guard
        self._due = self.queue.due(self.arrived, most - for_oldest)
        for_oldest = most - len(self._due)
        self._owed = max(0, self._owed - for_oldest * self._guard)
        oldest = self.pages_of(self.context.room.oldest(for_oldest), for_oldest) if for_oldest else self._due[:0]
        return np.concatenate([self._due, oldest[~np.isin(oldest, self._due)]])

    def note_loads(self, pages: PageNumbers, left: Counts) -> None:
        super().note_loads(pages, left)
        if not self.threshold:
            if self.arrived < _WARM_ROOMS * self.most_waiting:
                return
            self.threshold = max(1.0, self._times_average * self.matches_per_load)
        period = PagePeriod(self.threshold, max(1, len(self.context.room)), self.arrived)
        queued = self.queue.note_loads(pages, left, self._decay, period)
        cold = np.isin(pages, self._due) & (self.queue.frequencies(pages) < self.threshold / 2)
        fresh = ~queued & (left >= self.threshold)
        self.queue.drop(pages[queued & cold])
        self.queue.add(pages[fresh], left[fresh].astype(np.float32), period)

    @property
    def longest_wait(self) -> int:
        return self.most_waiting * self._guard

    def check_invariants(self) -> None:
        self.queue.check_invariants()
