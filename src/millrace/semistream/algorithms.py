"""The table of named join algorithms: each runs the same loop with a cache policy and an access policy of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from millrace.core.errors import ConfigError, one_of
from millrace.core.options import check_known, options_of
from millrace.master.store import MasterStore
from millrace.semistream.access.access_policy import Access
from millrace.semistream.access.batched import Batched
from millrace.semistream.access.cyclic import Cyclic, Repeated
from millrace.semistream.access.direct import Direct, PerTuple
from millrace.semistream.access.fullest import Fullest
from millrace.semistream.access.oldest import Oldest
from millrace.semistream.access.page_queue import PageQueue
from millrace.semistream.access.planned import Planned
from millrace.semistream.access.position import Position
from millrace.semistream.cache.balanced import BalancedCache
from millrace.semistream.cache.cache_policy import ROW_MARK, Cache, NoCache
from millrace.semistream.cache.frequency import FrequencyCache, LeastFrequentCache, OccupancyCache, TurnCache
from millrace.semistream.cache.page_cache import RecentPages, UsefulPages
from millrace.semistream.cache.recent import RecentCache
from millrace.semistream.context import JoinContext


@dataclass(frozen=True)
class Algorithm:
    """A named algorithm: a cache policy and an access policy."""

    name: str
    cache: Callable[..., Cache]
    access: Callable[..., Access]
    summary: str
    needs_index: bool = False
    many: bool = True
    """Whether the algorithm can join a master whose keys repeat."""
    ordered: bool = False
    """Whether rows come out in the order of the stream by default."""

    def __post_init__(self) -> None:
        for part, policy in (("cache", self.cache), ("access", self.access)):
            if not callable(policy):
                raise ConfigError(f"{self.name}: {part}: expected the class of a policy; got {policy!r}")

    @property
    def paged(self) -> bool:
        """Whether tuples wait for chosen pages of the master, found through the index, not for a scan of all rows."""
        return bool(getattr(self.access, "paged", False))

    @property
    def at_once(self) -> bool:
        """Whether tuples are answered as soon as they arrive, without waiting."""
        return bool(getattr(self.access, "at_once", False))

    @property
    def turns(self) -> bool:
        """Whether the algorithm scans the whole master over and over while tuples wait."""
        return not (self.paged or self.at_once)

    @property
    def caches(self) -> bool:
        """Whether the algorithm has a cache, which answers tuples without reading the master."""
        return self.cache is not NoCache

    def cached_marks(self, *, numbered: bool) -> Mapping[str, npt.DTypeLike] | None:
        """Return names and types of the fields (marks) kept beside each cached row; None if no rows are cached.

        ``numbered`` adds the field for the number of the master row.
        """
        marks: Mapping[str, npt.DTypeLike] | None = getattr(self.cache, "marks", None)
        return None if marks is None else {**marks, **(ROW_MARK if numbered else {})}

    @property
    def dead_share(self) -> float:
        """Largest ratio of string and binary bytes of removed rows, not yet freed, to those of cached rows."""
        return float(getattr(self.cache, "dead_share", 0.0))

    @property
    def keyless(self) -> bool:
        """Whether the algorithm can join by a condition alone: every tuple meets every row, and no key is cached."""
        return self.turns and self.cache is NoCache

    @property
    def reserves_at_start(self) -> bool:
        """Whether the access policy reserves memory for every page of the master before the first tuple comes."""
        return hasattr(self.access, "start_bytes")

    @property
    def options(self) -> list[str]:
        """Names of the policies' options, which are keyword arguments of the join."""
        return [*options_of(self.access), *options_of(self.cache)]

    @property
    def sizes(self) -> list[str]:
        """Names of the sizes that can be set: b (rows per load), w (tuples let in per step); none if no tuple waits."""
        return [] if self.at_once else ["b", "w"]

    def start_bytes(self, store: MasterStore, b: int) -> int:
        """Return the bytes that the access policy reserves before the first tuple comes, with pages of ``b`` rows."""
        reserved = getattr(self.access, "start_bytes", None)
        return 0 if reserved is None else int(reserved(store, b))

    def check_options(self, options: Iterable[str]) -> None:
        """Raise an error that lists the options and sizes of the algorithm if one of ``options`` is unknown."""
        check_known(self.name, options, [*self.sizes, *self.options])

    def check_store(self, store: MasterStore) -> None:
        """Check that this algorithm can join the master, or raise an error that lists the algorithms that can."""
        if self.needs_index and not store.indexed:
            able = [other.name for other in ALGORITHMS.values() if not other.needs_index]
            raise ConfigError(
                f"{self.name}: needs an index, but {store.path} has none; MasterStore.add_index or "
                f"`millrace master index` adds one. Without an index you can use {', '.join(able)}"
            )
        if not self.many and not store.unique:
            able = [other.name for other in ALGORITHMS.values() if other.many]
            raise ConfigError(
                f"{self.name}: needs a master whose keys do not repeat, but one key of {store.path} has "
                f"{store.manifest.largest_group:,} rows. For repeated keys you can use {', '.join(able)}"
            )

    def check_keyless(self) -> None:
        """Raise an error that lists the algorithms that can join without a key, if this algorithm cannot."""
        if not self.keyless:
            able = [other.name for other in ALGORITHMS.values() if other.keyless]
            raise ConfigError(
                f"{self.name}: finds master rows by their key, so it needs on=; "
                f"with where= alone you can use {', '.join(able)}"
            )

    def make(self, context: JoinContext, options: Mapping[str, Any]) -> tuple[Access, Cache]:
        """Return the access policy and the cache policy for one join."""
        names = options_of(self.access)
        access = self.access(context, **{name: value for name, value in options.items() if name in names})
        cache = self.cache(context, access, **{name: value for name, value in options.items() if name not in names})
        return access, cache


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "meshjoin",
            NoCache,
            Cyclic,
            "every tuple waits one turn of the wheel; all waiting tuples share each read",
        ),
        Algorithm(
            "ssbj",
            BalancedCache,
            Cyclic,
            "keys whose master rows take less memory than their waiting tuples are cached",
        ),
        Algorithm(
            "r-meshjoin",
            NoCache,
            Repeated,
            "as meshjoin, with several loads per step, so that their size can suit the disk",
        ),
        Algorithm(
            "cmeshjoin",
            TurnCache,
            Cyclic,
            "as meshjoin behind a cache of the keys that most tuples waited for",
            many=False,
        ),
        Algorithm(
            "hybridjoin",
            NoCache,
            Oldest,
            "the page of the tuple that has waited longest is loaded, and all tuples that wait for it leave",
            needs_index=True,
        ),
        Algorithm(
            "hybridjoin-l",
            NoCache,
            Position,
            "as hybridjoin, with pages of younger tuples, which more tuples wait for",
            needs_index=True,
        ),
        Algorithm(
            "hybridjoin-pq",
            NoCache,
            PageQueue,
            "as hybridjoin, with frequent pages loaded when enough tuples should wait for them",
            needs_index=True,
        ),
        Algorithm(
            "cachejoin",
            FrequencyCache,
            Oldest,
            "as hybridjoin behind a cache of frequent keys; random keys are evicted",
            needs_index=True,
        ),
        Algorithm(
            "cachejoin-l",
            FrequencyCache,
            Position,
            "as cachejoin, with pages of younger tuples",
            needs_index=True,
        ),
        Algorithm(
            "cachejoin-pq",
            FrequencyCache,
            PageQueue,
            "as cachejoin, with a queue of frequent pages",
            needs_index=True,
        ),
        Algorithm(
            "sscj",
            LeastFrequentCache,
            Oldest,
            "as cachejoin, but the least used keys are evicted",
            needs_index=True,
        ),
        Algorithm(
            "hybridjoin-pq-balanced",
            OccupancyCache,
            PageQueue,
            "as hybridjoin-pq behind a cache of the keys whose rows take less memory than their tuples",
            needs_index=True,
        ),
        Algorithm(
            "ssij",
            UsefulPages,
            Planned,
            "tuples are collected, then all pages they need are read in one sweep; useful pages stay",
            needs_index=True,
            many=False,
        ),
        Algorithm(
            "partitioned",
            RecentPages,
            Fullest,
            "the pages that most tuples wait for are loaded, and stay until others need the memory",
            needs_index=True,
            many=False,
        ),
        Algorithm(
            "inl",
            NoCache,
            PerTuple,
            "index nested loops: every tuple reads the page of its row through a pool of pages",
            needs_index=True,
        ),
        Algorithm(
            "ordered",
            RecentCache,
            Batched,
            "behind a cache of the keys used last, batches of keys are looked up; rows come out in the stream's order",
            needs_index=True,
            ordered=True,
        ),
        Algorithm(
            "lookup",
            NoCache,
            Direct,
            "every tuple's master rows are found through the index, a batch at a time; no tuple waits",
            needs_index=True,
        ),
    )
}
"""All algorithms by name."""


def find_algorithm(name: str | Algorithm) -> Algorithm:
    """Return the algorithm with this name, or raise an error if it is unknown; return an ``Algorithm`` unchanged."""
    return name if isinstance(name, Algorithm) else ALGORITHMS[one_of("algorithm", name, ALGORITHMS)]
