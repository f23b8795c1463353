"""Caches that keep keys by how often they are used.

======================  ===============================================================
``FrequencyCache``      CACHEJOIN's; base of the others, and of the cache of ``ordered``
``TurnCache``           CMESHJOIN's
``LeastFrequentCache``  SSCJ's
``OccupancyCache``      ``hybridjoin-pq-balanced``'s: the cache inequality for pages
======================  ===============================================================

A key whose master rows have just met many waiting tuples enters the cache, and later tuples with it are answered at
once. When the cache is full, another key is evicted: a random one (CACHEJOIN) or the least used (SSCJ). The number of
tuples that counts as many is a threshold, which rises while a full cache keeps changing, and falls while there is room
or nothing changes.

References
----------
M. A. Naeem, G. Dobbie, G. Weber: A lightweight stream-based join with limited resource consumption. DaWaK 2012.
M. A. Naeem, G. Weber, G. Dobbie, C. Lutteroth: SSCJ: a semi-stream cache join using a front-stage cache module.
DaWaK 2013.

Deviations: the threshold also falls in a full cache when hardly any key enters, since otherwise keys that were hot
would keep out keys that are hot now; counts of uses are halved whenever as many tuples have come as the waiting room
holds, so that old uses fade; a new key starts with the number of tuples that waited for it; a group of several
rows is cached as a whole, where the papers have one row per key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError
from millrace.kernels import groups, multimap
from millrace.kernels.radix_sort import least_of
from millrace.master.read.wheel import Load
from millrace.rows import keyed_rows_file
from millrace.rows.arena import Arena, Slots
from millrace.rows.code_filter import FoundCodes
from millrace.rows.keyed_rows import Codes, KeyedRows
from millrace.rows.keyed_rows_file import PathOrBuffer
from millrace.semistream.access.access_policy import Access
from millrace.semistream.cache.cache_policy import Cache, note_rows, row_mark
from millrace.semistream.context import JoinContext

MARKS = {"hits": np.int32, "state": np.uint8}
Counts = npt.NDArray[np.int32]

_CONTROL_LOADS = 100
_DEAD = 1 / 16  # share of the bytes that removed rows may take; if it were 0, every new row would move all others
_NEARLY_FULL = 0.95
_UNUSED = 0.4  # share of the cached keys
_BUSY, _QUIET = 0.01, 0.001  # shares of the cached keys that change between two reviews of the threshold


class FrequencyCache(Cache):
    """Caches keys that many tuples wait for; a full cache evicts random keys for new ones.

    Parameters
    ----------
    cache_share
        Share of the memory that the cache may take.
    threshold
        Number of waiting tuples with which a key enters the cache. By default it starts at 2 and adapts.
    """

    rows: KeyedRows
    marks = MARKS
    dead_share = _DEAD

    def __init__(
        self,
        context: JoinContext,
        access: Access,
        *,
        cache_share: float = 0.3,
        threshold: int | None = None,
    ) -> None:
        if not isinstance(cache_share, int | float) or not 0 < cache_share < 1:
            raise ConfigError(f"cache_share: expected a number between 0 and 1; got {cache_share!r}")
        if threshold is not None and (not isinstance(threshold, int) or threshold < 1):
            raise ConfigError(f"threshold: expected a whole number of at least 1; got {threshold!r}")
        self.context = context
        schema = pa.schema([context.store.schema.field(i) for i in context.columns])
        self.rows = KeyedRows("cache", schema, context.budget, context.space, {**MARKS, **row_mark(context)})
        self._limit = int(cache_share * context.budget.total)
        self._moves = threshold is None
        self.threshold = threshold or 2
        self._random = np.random.default_rng(0)
        self._loads = self._admitted_since = 0

    # the loop's calls

    def look_up(self, codes: Codes) -> Slots:
        found = np.empty(len(codes), np.int32)
        marks = self.rows.marks
        groups.look_up(self.rows.map, marks["state"], marks["hits"], codes, False, found)
        return found

    def begin_cycle(self, cycle: int) -> None:
        self.rows.marks["hits"][: int(self.rows.map.state[multimap.HIGH])] >>= 1

    def on_match(self, load: Load, met: FoundCodes) -> None:
        if not load.whole:
            return
        tuples = self.context.room.rows.map.slots["count"][met.newest]
        wanted = tuples >= self.least_tuples()
        positions, tuples = met.positions[wanted], tuples[wanted]
        if not len(positions):
            return
        outside = self.rows.oldest(load.codes[positions]) < 0
        positions, tuples = positions[outside], tuples[outside]
        if not self.context.single:
            complete = self._complete(load.codes[positions])
            positions, tuples = positions[complete], tuples[complete]
        if len(positions):
            self._admit(load, positions, tuples)

    def on_load(self, load: Load) -> None:
        self._loads += load.page_count
        if self._loads >= _CONTROL_LOADS:
            self._move_threshold()
            self._loads = self._admitted_since = 0

    def free_memory(self) -> None:
        self.context.metrics.evicted_keys += self.rows.keys
        self.rows.clear()

    def save_to(self, path: PathOrBuffer, identity: str) -> bool:
        if not self.rows.keepable:
            return False
        keyed_rows_file.write_rows(path, self.rows, identity, self._extra_state())
        return True

    def load_from(self, path: PathOrBuffer, identity: str) -> bool:
        if not self.rows.keepable or len(self.rows):
            return False
        facts = keyed_rows_file.read_rows(path, self.rows, identity)
        if facts is None:
            return False
        self._restore_extra_state(facts)
        return True

    def _extra_state(self) -> dict[str, int]:
        """Return the policy's numbers that are saved with the cached rows, by name."""
        return {"threshold": self.threshold}

    def _restore_extra_state(self, facts: dict[str, int]) -> None:
        """Restore the policy's numbers that were saved with the cached rows."""
        self.threshold = int(facts["threshold"]) if self._moves else self.threshold

    @property
    def reserve(self) -> int:
        return max(0, self._limit - self.nbytes)

    # admission and eviction

    def least_tuples(self) -> int:
        """Return how many tuples must wait for a key before it may enter the cache."""
        return self.threshold

    @property
    def full(self) -> bool:
        """Whether the cache takes nearly all of its share of the memory."""
        return self._taken >= _NEARLY_FULL * self._limit

    def _move_threshold(self) -> None:
        if not self._moves:
            return
        changed = self._admitted_since / max(1, self.rows.keys)
        if self.full and changed > _BUSY:
            self.threshold += 1
        elif not self.full or changed < _QUIET:
            self.threshold = max(1, self.threshold - 1)

    def _complete(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return for each code whether it occurs in ``codes`` as often as in the master, so that no row is missing."""
        uniques, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
        store = self.context.store
        there = sum(store.index(shard).ranges_of(uniques)[1] for shard in range(store.shards))
        complete: npt.NDArray[np.bool_] = (counts == there)[inverse]
        return complete

    def _admit(self, load: Load, positions: npt.NDArray[np.int32], tuples: Counts) -> None:
        """Cache keys with all of their rows, the keys with the most waiting tuples first, until no more fit.

        ``positions`` are the places of the rows in the load; ``tuples`` is how many tuples wait for each row's key.
        """
        codes, first, group, sizes = np.unique(
            load.codes[positions], return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(-tuples[first], kind="stable")
        order = order[self._evict_for(tuples[first[order]], sizes[order])]
        ends = np.cumsum(sizes[order])
        if not len(ends):
            return
        rank = np.full(len(codes), len(codes))
        rank[order] = np.arange(len(order))
        chosen = np.argsort(rank[group], kind="stable")[: ends[-1]]
        positions, tuples = positions[chosen], tuples[chosen]
        columns = self.context.store.mapped(load.shard).take(self.context.columns, load.rows_at(positions))
        while not self.rows.make_room(len(positions), Arena.heap_bytes_of(columns), slack=self._slack):
            ends = ends[: len(ends) // 2]  # too little memory is left: try with half of the keys
            if not len(ends):
                return
            positions, tuples, columns = positions[: ends[-1]], tuples[: ends[-1]], [c[: ends[-1]] for c in columns]
        slots, _ = self.rows.insert(load.codes[positions], columns)
        self.rows.marks["state"][slots] = 0
        self.rows.marks["hits"][slots] = self._first_use(tuples)
        note_rows(self.context, self.rows, slots, load.shard, load.rows_at(positions))
        self.context.metrics.admitted_keys += len(ends)
        self._admitted_since += len(ends)

    def _evict_for(self, wanted: Counts, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Evict cached keys to make room for new ones; return the places in ``wanted`` of keys that may enter.

        ``wanted`` is how many tuples wait for each new key, descending; ``sizes`` is how many master rows each has.
        """
        cost = np.cumsum(sizes) * self.row_bytes
        free = self._limit - self._taken
        fits = int(np.searchsorted(cost, free, side="right"))
        if fits == len(wanted) or not len(self.rows):
            return np.arange(fits)
        victims = self._check_victims(self.victims(wanted[fits:]))
        self._evict(victims)
        return np.arange(fits + len(victims))

    @property
    def _taken(self) -> int:
        """Bytes that the cache takes, plus the part of :attr:`_slack` that removed rows do not take yet."""
        return self.nbytes + max(0, self._slack - self.rows.arena.heap.dead)

    @property
    def _slack(self) -> int:
        """Bytes that removed rows may take before the remaining rows are compacted."""
        return int(self.rows.arena.heap.end * _DEAD)

    def _check_victims(self, victims: Slots) -> Slots:
        """Return each victim once; raise an error if a user's policy returned slots that are not :meth:`heads`."""
        named = np.unique(np.asarray([-1] if victims is None else victims, np.int64))
        used = int(self.rows.map.state[multimap.HIGH])
        there = not len(named) or (named[0] >= 0 and named[-1] < used)
        if not there or (self.rows.oldest(self.rows.map.code[named]) != named).any():
            raise ConfigError(
                f"{type(self).__name__}.victims: expected slots that heads() returns, one per key to evict; "
                f"got {victims!r}"
            )
        return named.astype(np.int32)

    def _first_use(self, tuples: Counts) -> Counts:
        """Return the number of uses with which each new key starts, given the number of tuples that waited for it."""
        return tuples

    def victims(self, wanted: Counts) -> Slots:
        """Return the oldest slots (:meth:`heads`) of the keys to evict, at most one key per new key.

        ``wanted`` is how many tuples wait for each new key, descending.
        """
        heads = self.heads()
        return self._random.choice(heads, min(len(wanted), len(heads)), replace=False)

    def _evict(self, heads: Slots) -> None:
        self.rows.remove(self.rows.slots_of(self.rows.map.code[heads]))
        self.context.metrics.evicted_keys += len(heads)

    def heads(self) -> Slots:
        """Return the oldest slot of every cached key."""
        return self.rows.groups()[0]

    @property
    def row_bytes(self) -> float:
        """Average bytes that a cached master row takes."""
        return self.rows.row_bytes

    def check_invariants(self) -> None:
        self.rows.check_invariants()
        assert (self.rows.marks["state"][self.rows.live()] == 0).all(), "a cached row does not answer tuples"


class TurnCache(FrequencyCache):
    """CMESHJOIN's cache: unused keys are evicted first, and the threshold falls while many cached keys are unused.

    The threshold is reviewed every hundred loads, which are a few scans of the master. In that time keys near the
    threshold keep entering and leaving, so with the other policies' rule the threshold would only ever rise.
    """

    def _unused(self) -> Slots:
        heads = self.heads()
        unused: Slots = heads[self.rows.marks["hits"][heads] == 0]
        return unused

    def victims(self, wanted: Counts) -> Slots:
        unused = self._unused()
        if len(unused) < len(wanted):
            return super().victims(wanted)
        return self._random.choice(unused, len(wanted), replace=False)

    def _move_threshold(self) -> None:
        if self._moves and self.full and len(self._unused()) > _UNUSED * self.rows.keys:
            self.threshold = max(1, self.threshold // 2)
        else:
            super()._move_threshold()


class LeastFrequentCache(FrequencyCache):
    """SSCJ's cache: a new key replaces the least used key if its waiting tuples outnumber the uses of the old key."""

    def victims(self, wanted: Counts) -> Slots:
        heads: Slots = self._random.permutation(self.heads())  # among equals, not always the same ones
        hits = self.rows.marks["hits"][heads]
        most = min(len(wanted), len(heads))
        least = least_of(hits, most)
        return heads[least[hits[least] < wanted[:most]]]


class OccupancyCache(LeastFrequentCache):
    """The cache inequality for index access: a key is cached when its rows take less memory than its tuples would.

    If c tuples wait for a key when its page is loaded, they have waited, on average, half of the time since the page
    was last loaded. So the key is worth caching iff ``rows · v_R < c / 2 · v_S``, with v_R bytes per cached row and v_S
    bytes per waiting tuple. A key enters if this holds for one row.

    Each time as many tuples have come as the waiting room holds, the inequality is checked for all rows of every cached
    key, with the key's hits as c: keys that fail are evicted, and the hits of the others are halved. Where a tuple
    needs all rows of a repeated key, the inequality has c in place of c / 2.
    """

    def __init__(self, context: JoinContext, access: Access, *, cache_share: float = 0.8) -> None:
        super().__init__(context, access, cache_share=cache_share, threshold=None)
        self._moves = False

    def least_tuples(self) -> int:
        room = self.context.room
        return max(2, int(self.row_bytes / (room.tuple_bytes * room.mean_stay)) + 1)

    @property
    def reserve(self) -> int:
        return min(super().reserve, self.context.budget.total // 50)

    def begin_cycle(self, cycle: int) -> None:
        heads = self.heads()
        room = self.context.room
        cost = self.rows.counts(self.rows.map.code[heads]) * self.row_bytes
        evicted = self.rows.marks["hits"][heads] * room.tuple_bytes * room.mean_stay < cost
        if cycle > 1:
            self._evict(heads[evicted])
        super().begin_cycle(cycle)
