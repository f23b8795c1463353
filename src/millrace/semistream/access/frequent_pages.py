"""Keeps a list of frequent pages, which many tuples need, and computes when to load each of them again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.budget import MemoryBudget
from millrace.semistream.access.numbered_pages import Counts, PageNumbers

Frequencies = npt.NDArray[np.float32]

_ENTRY_BYTES = 20  # page, due, frequency


class PagePeriod(NamedTuple):
    """Computes from a page's frequency when to load the page again.

    The frequency of a page is how many tuples leave when it is loaded, on average over its last loads.
    """

    threshold: float
    """Number of tuples that should wait for a page when it is loaded."""
    room: int
    """Number of tuples that wait at the moment, whatever their page."""
    arrived: int
    """Number of tuples that have come so far."""

    def next_due(self, frequency: Frequencies) -> Counts:
        """Return for each page the number of tuples that must have come in all before the page is loaded again."""
        period = np.maximum(1, self.threshold * self.room / np.maximum(frequency, 1e-3)).astype(np.int64)
        return self.arrived + period


class FrequentPages:
    """A queue of frequent pages.

    For each page, it holds the page's frequency, and how many tuples must have come in all before the page is loaded.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._reservation = budget.reserve("page queue")
        self._page = np.empty(0, np.int64)
        self._due = np.empty(0, np.int64)
        self._frequency: Frequencies = np.empty(0, np.float32)

    def __len__(self) -> int:
        return len(self._page)

    def due(self, arrived: int, most: int) -> PageNumbers:
        """Return at most ``most`` pages that are due once ``arrived`` tuples have come, the longest overdue first."""
        due = np.flatnonzero(self._due <= arrived)
        return self._page[due[np.argsort(self._due[due], kind="stable")][:most]]

    def note_loads(self, pages: PageNumbers, left: Counts, decay: float, period: PagePeriod) -> npt.NDArray[np.bool_]:
        """Update frequency and due time of the loaded pages that are queued; return for each page whether it is queued.

        ``left[i]`` is the number of tuples that left when ``pages[i]`` was loaded. A page's new frequency is the mean
        of its old frequency, with the weight ``decay``, and this number. From it ``period`` computes the due time.
        """
        queued = np.isin(pages, self._page)
        at, counts = np.searchsorted(self._page, pages[queued]), left[queued].astype(np.float32)
        self._frequency[at] = decay * self._frequency[at] + (1 - decay) * counts
        self._due[at] = period.next_due(self._frequency[at])
        return queued

    def frequencies(self, pages: PageNumbers) -> Frequencies:
        """Return the frequency of each page, 0 where it is not queued."""
        at = np.searchsorted(self._page, pages)
        queued = np.append(self._page, -1)[at] == pages
        found = np.zeros(len(pages), np.float32)
        found[queued] = self._frequency[at[queued]]
        return found

    def drop(self, pages: PageNumbers) -> None:
        """Remove pages from the queue."""
        stay = ~np.isin(self._page, pages)
        self._page, self._due, self._frequency = self._page[stay], self._due[stay], self._frequency[stay]
        self._reservation.resize(len(self) * _ENTRY_BYTES)

    def add(self, pages: PageNumbers, frequency: Frequencies, period: PagePeriod) -> None:
        """Queue pages that are not queued yet; if memory is short, queue only the first ones."""
        while len(pages) and not self._reservation.try_resize((len(self) + len(pages)) * _ENTRY_BYTES):
            pages, frequency = pages[: len(pages) // 2], frequency[: len(pages) // 2]
        page = np.concatenate([self._page, pages])
        order = np.argsort(page)
        self._page = page[order]
        self._due = np.concatenate([self._due, period.next_due(frequency)])[order]
        self._frequency = np.concatenate([self._frequency, frequency])[order]

    def check_invariants(self) -> None:
        """Assert that no page is queued twice and that memory is reserved for all of them; for tests."""
        assert len(np.unique(self._page)) == len(self), "a page is queued twice"
        assert self._reservation.nbytes == len(self) * _ENTRY_BYTES
