"""SSBJ's cache: a key's master rows are kept in memory exactly when that takes less memory than its waiting tuples.

The cache inequality: a key with m master rows of v_R bytes, for which n stream tuples of v_S bytes come in one turn of
the wheel (one scan of the master), belongs in the cache iff::

        m · v_R  <  n · v_S

Placing every key where it is cheaper gives the least total memory (Theorem 1 of the paper), or, under a fixed budget,
leaves the most for the waiting room. A key without any master row is cached as an empty group. A migration
decides how the rows of a key are collected, always all of them: see ``rolling.py`` (default) and ``three_cycle.py``.
Every ``evict_every`` turns the inequality is checked again for all cached keys.

n has to be counted, and a count is off by about its square root. Without a margin for that error, keys would enter and
leave by chance, and memory for keys on their way in would be wasted. So a key enters or leaves only when the inequality
holds by such a margin::

        enters:  m · v_R  <  (n - 1.5 √n) · v_S            leaves:  m · v_R  ≥  (n + 1.5 √n) · v_S

References
----------
M. A. Naeem, G. Weber, C. Lutteroth: A memory-optimal many-to-many semi-stream join. Distributed and Parallel
Databases, 2019.

Deviations: costs are the bytes that this engine takes (slot, index entry, heap) instead of bare tuple sizes; an empty
group costs one slot; frequency is divided by the turns observed instead of by ten; the margin.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from millrace.core.errors import ConfigError, one_of
from millrace.core.significance import MARGIN, at_most
from millrace.kernels import groups as group_kernels
from millrace.kernels import multimap
from millrace.kernels.groups import COLLECTING, EMPTY
from millrace.master.read.wheel import Load
from millrace.rows import keyed_rows_file
from millrace.rows.arena import Slots
from millrace.rows.code_filter import FoundCodes
from millrace.rows.keyed_rows import Codes, KeyedRows
from millrace.rows.keyed_rows_file import PathOrBuffer
from millrace.semistream.access.access_policy import Access
from millrace.semistream.cache.cache_policy import Cache
from millrace.semistream.cache.collected_groups import MARKS, TICKS, CollectedGroups
from millrace.semistream.cache.inequality import CacheInequality
from millrace.semistream.cache.migration import Migration
from millrace.semistream.cache.rolling import Rolling
from millrace.semistream.cache.three_cycle import ThreeCycle
from millrace.semistream.context import JoinContext

Protocol = Literal["rolling", "three-cycle"]

_LEAST_RESERVE, _MOST_RESERVE = 0.01, 0.20
_MOST_MARGIN = 1_000_000


class BalancedCache(Cache):
    """Caches all master rows of a key, as a group, while the cache inequality holds for the key.

    Parameters
    ----------
    switching_factor
        A key is cached only if its waiting tuples would take more than this many times the memory of its rows (s_f of
        the paper). 1 is best.
    evict_every
        Turns of the wheel between two reviews of the cached keys; a review evicts the keys whose rows no longer pay. By
        default 10 for ``"three-cycle"``, as in the paper, else 1, which follows a changing stream much sooner.
    margin
        Margin by which the inequality must hold for a key to enter or to leave, in standard deviations of the count of
        tuples. 0 uses counts as they are, like the paper.
    migration
        How the rows of a key are collected: ``"rolling"`` or ``"three-cycle"``.
    main_memory
        If the whole master fits into the budget, read it at the start and keep it in memory. That does not pay for a
        join that gets only a few tuples.
    """

    rows: KeyedRows
    marks = MARKS

    def __init__(
        self,
        context: JoinContext,
        access: Access,
        *,
        switching_factor: float = 1.0,
        evict_every: int | None = None,
        margin: float = MARGIN,
        migration: str = "rolling",
        main_memory: bool = True,
    ) -> None:
        if not isinstance(switching_factor, int | float) or not switching_factor > 0:
            raise ConfigError(f"switching_factor: expected a number above 0; got {switching_factor!r}")
        if evict_every is not None and (not isinstance(evict_every, int) or evict_every < 1):
            raise ConfigError(f"evict_every: expected a whole number of at least 1; got {evict_every!r}")
        if not isinstance(margin, int | float) or not 0 <= margin <= _MOST_MARGIN:
            raise ConfigError(f"margin: expected a number from 0 to {_MOST_MARGIN:,}; got {str(margin)[:40]}")
        one_of("migration", migration, get_args(Protocol))
        if access.wheel is None:
            raise ConfigError(
                "BalancedCache: needs an access policy that scans the whole master, such as Cyclic; "
                f"got {type(access).__name__}"
            )
        self.context, self.wheel = context, access.wheel
        self.groups = CollectedGroups(context, self.wheel)
        self.rows = self.groups.rows
        self.inequality = CacheInequality(context, self.rows, switching_factor, margin)
        self._evict_every = evict_every or (10 if migration == "three-cycle" else 1)
        self._absent: list[Codes] = []
        self._bytes_at_cycle = 0
        self._reserve_share = _MOST_RESERVE
        self._migration: Migration = (ThreeCycle if migration == "three-cycle" else Rolling)(
            self.groups, self.inequality, self._growth
        )
        if main_memory and self.whole_bytes <= context.budget.available:
            self.groups.fill_from(self.wheel)

    @property
    def whole(self) -> bool:
        """Whether every row of the master is cached, so that the join has become a main-memory join."""
        return self.groups.whole

    @property
    def complete_keys(self) -> int:
        """Number of keys that are cached with all of their rows."""
        return self.groups.complete_keys

    # the loop's calls

    def look_up(self, codes: Codes) -> Slots:
        found = np.empty(len(codes), np.int32)
        marks = self.rows.marks
        group_kernels.look_up(self.rows.map, marks["state"], marks["hits"], codes, self.whole, found)
        return found

    def on_admit(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        self._migration.on_admit(codes, counts)

    def begin_cycle(self, cycle: int) -> None:
        self.groups.copy_noted()
        if cycle % self._evict_every == 0 and not self.whole:
            self._evict()
        self._migration.begin_cycle(cycle)
        grown = max(0, self.nbytes - self._bytes_at_cycle) / self.context.budget.total
        self._bytes_at_cycle = self.nbytes
        if cycle > 1:  # before turn 1 the cache could not grow, and the room would hardly return memory that it takes
            self._reserve_share = min(_MOST_RESERVE, max(_LEAST_RESERVE, 1.5 * grown))

    def begin_step(self) -> None:
        if self._absent:
            self._remember_absent()
        self._migration.begin_step()

    def on_match(self, load: Load, met: FoundCodes) -> None:
        self._migration.on_match(load, met)

    def on_load(self, load: Load) -> None:
        self._migration.on_load(load)

    def end_step(self) -> None:
        self._migration.end_step()

    def on_absent(self, codes: Codes) -> None:
        if len(codes):
            self._absent.append(codes)

    def free_memory(self) -> None:
        self.context.metrics.evicted_keys += self.rows.keys - self.groups.collecting_keys
        self.groups.discard(self.groups.heads)
        self.rows.clear()

    def save_to(self, path: PathOrBuffer, identity: str) -> bool:
        if not self.rows.keepable:
            return False
        self.groups.copy_noted()
        if self._absent:
            self._remember_absent()
        self._migration.cancel()
        heads = self.groups.heads
        self.groups.discard(heads[self.rows.marks["state"][heads] & COLLECTING > 0])
        keyed_rows_file.write_rows(
            path,
            self.rows,
            f"{identity} {self.inequality.factor}",
            {
                "turned": self.wheel.turned,
                "complete_keys": self.complete_keys,
            },
        )
        return True

    def load_from(self, path: PathOrBuffer, identity: str) -> bool:
        if not self.rows.keepable or self.whole or len(self.rows):
            return False
        facts = keyed_rows_file.read_rows(path, self.rows, f"{identity} {self.inequality.factor}")
        if facts is None:
            return False
        self.groups.continue_from(facts["complete_keys"], facts["turned"])
        self._bytes_at_cycle = self.nbytes
        return True

    @property
    def reserve(self) -> int:
        return int(self._reserve_share * self.context.budget.total)

    def _growth(self) -> int:
        """Return the bytes by which the cache may grow in one turn of the wheel."""
        return self.reserve

    @property
    def whole_bytes(self) -> float:
        rows, inequality = self.context.store.rows, self.inequality
        return rows * inequality.row_bytes * 1.02 + 16 * inequality.tuple_bytes + 65_536

    def _remember_absent(self) -> None:
        """Cache keys that have no master row, as empty groups, if the cache inequality holds for them."""
        codes = np.unique(np.concatenate(self._absent))
        self._absent = []
        came_since = self.context.room.rows.counts(codes)  # the tuple that left is not counted
        self.groups.open_empty(codes[came_since * self.inequality.tuple_bytes > self.inequality.empty_cost])

    def _evict(self) -> None:
        """Evict the keys that are surely no longer worth their memory.

        For these keys the cache inequality fails even if the counted hits are too low by the margin of error.
        """
        groups, inequality = self.groups, self.inequality
        heads, sizes = self.rows.groups()
        marks = self.rows.marks
        turns = (groups.now - marks["since"][heads]) / TICKS
        old_enough = (marks["state"][heads] & COLLECTING == 0) & (turns >= 1)
        heads, sizes, turns = heads[old_enough], sizes[old_enough], turns[old_enough]
        sizes[marks["state"][heads] & EMPTY > 0] = 0
        rate = at_most(marks["hits"][heads], inequality.margin) / turns
        cost = np.where(sizes > 0, sizes * inequality.row_bytes, inequality.empty_bytes)
        waiting = np.where(sizes > 0, inequality.waiting_cost(rate), rate * inequality.tuple_bytes)
        evicted = cost >= inequality.factor * waiting
        stay = heads[~evicted]
        marks["hits"][stay] >>= 1  # a moving average: every turn counts half as much as the next one
        marks["since"][stay] = groups.now - (turns[~evicted] * TICKS / 2).astype(marks["since"].dtype)
        self.context.metrics.evicted_keys += int(evicted.sum())
        groups.discard(heads[evicted])
        if groups.collecting_keys == 0 and len(self.rows) < 0.9 * int(self.rows.map.state[multimap.HIGH]):
            self.rows.pack()

    def check_invariants(self) -> None:
        self.groups.check_invariants()
