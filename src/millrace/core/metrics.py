"""Metrics of an operator: counts, and a histogram of how long tuples waited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt


class WaitHistogram:
    """A histogram of how many steps tuples waited; all waits of ``bins - 1`` steps or more share the last bin.

    >>> waits = WaitHistogram(); waits.record(np.array([1, 2, 2, 9])); waits.quantile(0.5), waits.most
    (2, 9)
    """

    def __init__(self, bins: int = 4096) -> None:
        self._counts = np.zeros(bins, np.int64)
        self.most = 0

    def record(self, steps: npt.NDArray[Any]) -> None:
        if len(steps) == 0:
            return
        self.most = max(self.most, int(steps.max()))
        counts = np.bincount(np.minimum(steps, len(self._counts) - 1))
        self._counts[: len(counts)] += counts

    def include(self, other: WaitHistogram) -> None:
        """Add the waits recorded in another histogram."""
        self.most = max(self.most, other.most)
        self._counts += other._counts

    @property
    def total(self) -> int:
        return int(self._counts.sum())

    def quantile(self, share: float) -> int:
        """Return the wait in steps that a given share of the tuples, from 0 to 1, did not exceed."""
        if self.total == 0:
            return 0
        return int(np.searchsorted(np.cumsum(self._counts), share * self.total))


def _count(*, lasting: bool = False, summed: bool = False) -> Any:
    """Declare a count. If ``lasting``, snapshots keep it; if ``summed``, a star join shows the sum over its joins."""
    return field(default=0, metadata={"lasting": lasting, "summed": summed})


@dataclass
class JoinMetrics:
    """Counts of one join since it was made.

    ``tuples_in = matched + unmatched + waiting + shed`` holds after every call. A stream tuple is *matched* once it has
    left the join and had at least one matching master row, *unmatched* once it is known to have none.
    """

    tuples_in: int = _count(lasting=True)
    """Stream tuples that the join has taken in."""
    rows_out: int = _count(lasting=True)
    """Output rows."""
    batches_out: int = _count(lasting=True)
    """Output batches."""
    matched: int = _count(lasting=True, summed=True)
    """Tuples that have left the join and had at least one matching master row."""
    unmatched: int = _count(lasting=True, summed=True)
    """Tuples that are known to have no matching master row."""
    waiting: int = _count(summed=True)
    """Tuples that wait now, including those held back."""
    held_back: int = _count(summed=True)
    """Waiting tuples whose master rows are found; in ordered output, they wait only for earlier tuples to leave."""
    most_waiting: int = _count(lasting=True, summed=True)
    """Largest number of tuples that waited at the same time."""
    shed: int = _count(lasting=True, summed=True)
    """Tuples dropped without being joined."""
    cache_hits: int = _count(lasting=True, summed=True)
    """Tuples that the cache answered."""
    cached_keys: int = _count(summed=True)
    """Keys in the cache now, including those whose rows are still being collected."""
    cached_rows: int = _count(summed=True)
    """Master rows in the cache now; a cached key without any row counts as one."""
    admitted_keys: int = _count(summed=True)
    """Keys added to the cache because tuples needed them. Keys that were read at the start (whole master in memory) or
    restored from a saved cache are not counted, so ``evicted_keys`` may be larger. A cache of whole pages counts rows
    instead of keys, here and in ``evicted_keys``."""
    evicted_keys: int = _count(summed=True)
    """Keys removed from the cache: to make room for other keys, because their rows are no longer worth the memory (the
    cache inequality), because a tuple did not fit into an empty waiting room, or because ``auto`` switched to another
    algorithm."""
    steps: int = 0
    """Steps of the join so far."""
    cycles: float = 0.0
    """Number of full scans of the master so far, with fractions. Joins that do not scan count how often the waiting
    room was filled, or divide the number of look-ups by the number of master rows."""
    pages_read: int = 0
    """Pages that the device has read."""
    bytes_read: int = 0
    """Bytes that the device has read."""
    seeks: int = 0
    """Seeks of the device: reads that did not continue where the last one ended."""
    removals: int = _count(lasting=True, summed=True)
    """Tuples removed from the waiting room."""
    removal_shifts: int = _count(summed=True)
    """Entries that the removals so far would have had to search if the tuples of each key were in a plain list."""
    probes: int = _count(lasting=True, summed=True)
    """Master rows that were compared with the waiting tuples."""
    budget_bytes: int = _count(summed=True)
    """Bytes of the memory budget."""
    used_bytes: int = _count(summed=True)
    """Bytes of the budget that are reserved now."""
    peak_bytes: int = _count(summed=True)
    """Largest number of bytes that were reserved at the same time."""
    parts: dict[str, int] = field(default_factory=dict)
    """Bytes reserved now by each part of the join, by name."""
    waits: WaitHistogram = field(default_factory=WaitHistogram)
    """Histogram of how many steps tuples waited."""
    steps_per_cycle: int = _count(summed=True)
    """Largest number of steps that a tuple may wait: ``k`` of the join."""

    @property
    def hit_rate(self) -> float:
        """Share of the tuples that the cache answered, from 0 to 1."""
        return self.cache_hits / self.tuples_in if self.tuples_in else 0.0

    @property
    def sampling_rate(self) -> float:
        """Share of the tuples that were not shed, from 0 to 1."""
        return 1 - self.shed / self.tuples_in if self.tuples_in else 1.0

    def lasting(self) -> dict[str, int]:
        """Return the counts that a snapshot keeps, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.metadata.get("lasting")}

    def go_on_from(self, counts: Mapping[str, int]) -> None:
        """Set counts to the values that :meth:`lasting` returned, so that counting continues after a restore."""
        for name in self.lasting():
            if name in counts:
                setattr(self, name, counts[name])

    def add_up(self, joins: Iterable[JoinMetrics]) -> None:
        """Set each ``summed`` count to the sum of this count over several joins."""
        every = list(joins)
        for each in fields(self):
            if each.metadata.get("summed"):
                setattr(self, each.name, sum(getattr(one, each.name) for one in every))

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON: all fields, :attr:`hit_rate` and :attr:`sampling_rate`.

        Of ``waits``, only the median, the 99th percentile and the maximum are included.
        """
        plain = {name: value for name, value in vars(self).items() if name != "waits"}
        plain |= {
            "hit_rate": round(self.hit_rate, 4),
            "sampling_rate": round(self.sampling_rate, 4),
            "wait_steps_p50": self.waits.quantile(0.5),
            "wait_steps_p99": self.waits.quantile(0.99),
            "wait_steps_max": self.waits.most,
        }
        return plain
