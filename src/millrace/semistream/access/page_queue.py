"""HYBRIDJOIN-PQ's access: frequent pages are loaded when enough tuples should be waiting for them.

A page with which many tuples left is due again after ``threshold · room / frequency`` arrivals. Its frequency is a
gliding average of the tuples that leave with it, uncorrected for how long it was away, which settles where the period
grows with the square root of how rare the page is: the least loads for a given room.

References
----------
M. A. Naeem, G. Weber, C. Lutteroth: Optimising queue-based semi-stream joins by introducing a queue of frequent pages.
ADC 2016.

Deviations: frequency is a number of tuples, not a share, as the formula needs; every ``guard``-th load is for the
oldest tuple; the threshold is measured before the queue is used, where the paper does not say how it is found.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.errors import ConfigError
from millrace.semistream.access.numbered_pages import PageNumbers
from millrace.semistream.access.oldest import Oldest
from millrace.semistream.context import JoinContext

_ENTRY_BYTES = 20  # page, due, frequency
_WARM_ROOMS = 3  # rooms full of tuples that leave before the threshold is set


class PageQueue(Oldest):
    """Frequent pages by the moment they are due, else pages of the oldest tuples.

    Parameters
    ----------
    page_threshold
        Tuples that should wait for a page when it is loaded. By default it is measured: ``times_average`` times the
        average of a load before the queue is used.
    decay
        Weight of the past in a page's frequency; 0 keeps only the last load.
    guard
        Every so many loads one is for the oldest tuple.
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
            raise ConfigError(f"decay: expected a number from 0 up to 1; got {decay!r}")
        if not isinstance(guard, int) or guard < 1:
            raise ConfigError(f"guard: expected a whole number of at least 1; got {guard!r}")
        self.threshold = 0.0 if page_threshold is None else float(page_threshold)
        self._times_average, self._decay, self._guard = times_average, decay, guard
        self._owed = 0
        self._reservation = context.budget.reserve("page queue")
        self._page = np.empty(0, np.int64)
        self._due = np.empty(0, np.int64)
        self._frequency = np.empty(0, np.float32)
        self._called = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._page)

    def choose(self, most: int) -> PageNumbers:
        self._owed += most
        for_oldest = min(most, max(1, self._owed // self._guard)) if most > 1 else self._owed // self._guard
        due = np.flatnonzero(self._due <= self.arrived)
        due = due[np.argsort(self._due[due], kind="stable")][: most - for_oldest]
        for_oldest = most - len(due)
        self._owed = max(0, self._owed - for_oldest * self._guard)
        self._called = self._page[due]
        oldest = self.pages_of(self.context.room.oldest(for_oldest), for_oldest) if for_oldest else self._called[:0]
        return np.concatenate([self._called, oldest[~np.isin(oldest, self._called)]])

    def loaded(self, pages: PageNumbers, left: npt.NDArray[np.int64]) -> None:
        super().loaded(pages, left)
        room = max(1, len(self.context.room))
        if not self.threshold:
            if self.arrived < _WARM_ROOMS * self.most_waiting:
                return
            self.threshold = max(1.0, self._times_average * self.matches_per_load)
        numbers = np.searchsorted(self._page, pages)
        known = np.append(self._page, -1)[numbers] == pages
        numbers[~known] = -1
        mine, counts = numbers[known], left[known].astype(np.float32)
        self._frequency[mine] = self._decay * self._frequency[mine] + (1 - self._decay) * counts
        self._due[mine] = self.arrived + self._period(self._frequency[mine], room)
        called = np.isin(pages[known], self._called)
        cold = mine[called & (self._frequency[mine] < self.threshold / 2)]
        fresh = ~known & (left >= self.threshold)
        self._keep(np.setdiff1d(np.arange(len(self)), cold), pages[fresh], left[fresh].astype(np.float32), room)

    def _period(self, frequency: npt.NDArray[np.float32], room: int) -> npt.NDArray[np.int64]:
        """Arrivals until a page of this frequency is due."""
        return np.maximum(1, self.threshold * room / np.maximum(frequency, 1e-3)).astype(np.int64)

    def _keep(self, stay: PageNumbers, pages: PageNumbers, frequency: npt.NDArray[np.float32], room: int) -> None:
        """Forget all pages but some, and take in others as far as there is memory."""
        while len(pages) and not self._reservation.try_resize((len(stay) + len(pages)) * _ENTRY_BYTES):
            pages, frequency = pages[: len(pages) // 2], frequency[: len(pages) // 2]
        page = np.concatenate([self._page[stay], pages])
        order = np.argsort(page)
        self._page = page[order]
        self._due = np.concatenate([self._due[stay], self.arrived + self._period(frequency, room)])[order]
        self._frequency = np.concatenate([self._frequency[stay], frequency])[order]
        self._reservation.resize(len(self) * _ENTRY_BYTES)

    @property
    def longest_wait(self) -> int:
        return self.most_waiting * self._guard

    def check_invariants(self) -> None:
        assert len(np.unique(self._page)) == len(self), "a page is queued twice"
        assert self._reservation.nbytes == len(self) * _ENTRY_BYTES
