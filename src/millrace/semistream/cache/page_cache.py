"""Caches of whole pages: SSIJ's and Partitioned Join's.

A page that was loaded stays in the cache, and tuples with keys on it are answered as they come. Every page has a score,
and when memory is short, the pages with the lowest scores are evicted. The score counts recent uses (SSIJ), or is the
time of the last use (Partitioned Join).
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError
from millrace.kernels import groups
from millrace.master.read.wheel import Load
from millrace.rows.arena import Arena, Slots
from millrace.rows.code_filter import FoundCodes
from millrace.rows.keyed_rows import Codes, KeyedRows
from millrace.semistream.access.access_policy import Access
from millrace.semistream.access.numbered_pages import Counts, PageLoad, PageNumbers
from millrace.semistream.cache.cache_policy import Cache
from millrace.semistream.context import JoinContext

MARKS = {"hits": np.int32, "state": np.uint8, "page": np.int32}
Scores = npt.NDArray[np.float64]


class PageCache(Cache):
    """Caches the pages with the highest scores.

    Parameters
    ----------
    cache_share
        Share of the memory that the cache may take.
    """

    rows: KeyedRows
    marks = MARKS

    def __init__(self, context: JoinContext, access: Access, *, cache_share: float = 0.3) -> None:
        if not isinstance(cache_share, int | float) or not 0 < cache_share < 1:
            raise ConfigError(f"cache_share: expected a number between 0 and 1; got {cache_share!r}")
        self.context = context
        schema = pa.schema([context.store.schema.field(i) for i in context.columns])
        self.rows = KeyedRows("cache", schema, context.budget, context.space, MARKS)
        self._limit = int(cache_share * context.budget.total)
        self.pages: PageNumbers = np.empty(0, np.int64)
        """Numbers of the cached pages, ascending."""
        self.scores: Scores = np.empty(0, np.float64)
        self._matches: Counts = np.empty(0, np.int64)

    @abstractmethod
    def new_scores(self, scores: Scores, uses: Counts) -> Scores:
        """Return new scores of pages, given their old scores (0 if not cached yet) and their latest numbers of uses."""

    # the loop's calls

    def look_up(self, codes: Codes) -> Slots:
        found = np.empty(len(codes), np.int32)
        marks = self.rows.marks
        groups.look_up(self.rows.map, marks["state"], marks["hits"], codes, False, found)
        used, uses = np.unique(marks["page"][found[found >= 0]], return_counts=True)
        places = np.searchsorted(self.pages, used)
        self.scores[places] = self.new_scores(self.scores[places], uses)
        return found

    def on_match(self, load: Load, met: FoundCodes) -> None:
        if isinstance(load, PageLoad):
            tuples = self.context.room.rows.map.slots["count"][met.newest]
            matches = np.bincount(load.page_at(met.positions), tuples, len(load.pages)).astype(np.int64)
            self._matches = matches if not len(self._matches) else self._matches + matches

    def on_load(self, load: Load) -> None:
        if isinstance(load, PageLoad) and len(self._matches):
            fresh = np.flatnonzero((self._matches > 0) & ~np.isin(load.pages, self.pages))
            self._keep_best(load, fresh, self.new_scores(np.zeros(len(fresh)), self._matches[fresh]))
        self._matches = self._matches[:0]

    def _keep_best(self, load: PageLoad, fresh: PageNumbers, scores: Scores) -> None:
        """Keep the pages with the highest scores, out of the cached pages and the pages just loaded.

        ``fresh`` are the places of the new pages in ``load.pages``, ``scores`` are the scores of these pages.
        """
        lengths = np.diff(load.starts)
        most = int(self._limit // max(1.0, self.context.b * self.rows.row_bytes))
        order = np.argsort(-np.concatenate([self.scores, scores]), kind="stable")
        kept = np.zeros(len(order), np.bool_)
        kept[order[:most]] = True
        stays, fresh, scores = kept[: len(self.pages)], fresh[kept[len(self.pages) :]], scores[kept[len(self.pages) :]]
        self._evict(~stays)
        while len(fresh):
            positions = np.concatenate([np.arange(load.starts[i], load.starts[i + 1], dtype=np.int32) for i in fresh])
            columns = self.context.store.mapped(load.shard).take(self.context.columns, load.rows_at(positions))
            if self.rows.make_room(len(positions), Arena.heap_bytes_of(columns)):
                self._insert(load.pages[fresh], scores, lengths[fresh], load.codes[positions], columns)
                return
            fresh, scores = fresh[: len(fresh) // 2], scores[: len(fresh) // 2]

    def _insert(
        self, pages: PageNumbers, scores: Scores, lengths: Counts, codes: Codes, columns: list[pa.Array]
    ) -> None:
        slots, _ = self.rows.insert(codes, columns)
        self.rows.marks["state"][slots] = 0
        self.rows.marks["page"][slots] = np.repeat(pages, lengths)
        together = np.concatenate([self.pages, pages])
        order = np.argsort(together)
        self.pages, self.scores = together[order], np.concatenate([self.scores, scores])[order]
        self.context.metrics.admitted_keys += len(slots)

    def _evict(self, evicted: npt.NDArray[np.bool_]) -> None:
        """Evict the cached pages that ``evicted`` flags."""
        if not evicted.any():
            return
        live = self.rows.live()
        slots = live[np.isin(self.rows.marks["page"][live], self.pages[evicted])]
        self.rows.remove(slots)
        self.pages, self.scores = self.pages[~evicted], self.scores[~evicted]
        self.context.metrics.evicted_keys += len(slots)

    def free_memory(self) -> None:
        self._evict(np.ones(len(self.pages), np.bool_))
        self.rows.clear()

    @property
    def reserve(self) -> int:
        return max(0, self._limit - self.nbytes)

    def check_invariants(self) -> None:
        self.rows.check_invariants()
        assert (np.unique(self.rows.marks["page"][self.rows.live()]) == self.pages).all(), "a page is not listed"


class UsefulPages(PageCache):
    """SSIJ's cache: the score is the number of uses, halved whenever as many tuples have come as the room holds."""

    def new_scores(self, scores: Scores, uses: Counts) -> Scores:
        return scores + uses

    def begin_cycle(self, cycle: int) -> None:
        self.scores /= 2


class RecentPages(PageCache):
    """Partitioned Join's cache: the score is the time of the last use."""

    _now = 0.0

    def new_scores(self, scores: Scores, uses: Counts) -> Scores:
        self._now += 1
        return np.full(len(uses), self._now)
