"""Metrics of an operator: counts that add up, and how long tuples waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        """Return the wait, in steps, that this share of the tuples (0 to 1) did not exceed."""
        if self.total == 0:
            return 0
        return int(np.searchsorted(np.cumsum(self._counts), share * self.total))


_LASTING = (
    "tuples_in",
    "rows_out",
    "batches_out",
    "matched",
    "unmatched",
    "shed",
    "cache_hits",
    "removals",
    "probes",
    "most_waiting",
)


@dataclass
class JoinMetrics:
    """Counts of one join since it was made.

    ``tuples_in = matched + unmatched + waiting + shed`` holds after every call; a stream tuple is *matched* once it has
    left with at least one master row, *unmatched* once it is known to have none.
    """

    tuples_in: int = 0
    rows_out: int = 0
    batches_out: int = 0
    matched: int = 0
    unmatched: int = 0
    waiting: int = 0
    held_back: int = 0
    """Waiting tuples whose rows are found, held back only to keep the output in order."""
    most_waiting: int = 0
    """Largest number of tuples waiting at a time."""
    shed: int = 0
    """Tuples dropped without being joined."""
    cache_hits: int = 0
    cached_keys: int = 0
    cached_rows: int = 0
    admitted_keys: int = 0
    evicted_keys: int = 0
    steps: int = 0
    cycles: float = 0.0
    pages_read: int = 0
    bytes_read: int = 0
    seeks: int = 0
    removals: int = 0
    removal_shifts: int = 0
    """Entries that removal by value from a list per key would have gone through, in all removals."""
    probes: int = 0
    budget_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    waits: WaitHistogram = field(default_factory=WaitHistogram)
    steps_per_cycle: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the tuples answered by the cache."""
        return self.cache_hits / self.tuples_in if self.tuples_in else 0.0

    @property
    def sampling_rate(self) -> float:
        """Share of the tuples that were not shed."""
        return 1 - self.shed / self.tuples_in if self.tuples_in else 1.0

    def lasting(self) -> dict[str, int]:
        """Return the counts that a snapshot keeps, by name."""
        return {name: getattr(self, name) for name in _LASTING}

    def go_on_from(self, counts: Mapping[str, int]) -> None:
        """Set the counts that :meth:`lasting` returned, to continue them after a restore."""
        for name, count in counts.items():
            if name in _LASTING:
                setattr(self, name, count)

    def as_dict(self) -> dict[str, Any]:
        """Return all metrics as plain values, for JSON."""
        plain = {name: value for name, value in vars(self).items() if name != "waits"}
        plain |= {
            "hit_rate": round(self.hit_rate, 4),
            "sampling_rate": round(self.sampling_rate, 4),
            "wait_steps_p50": self.waits.quantile(0.5),
            "wait_steps_p99": self.waits.quantile(0.99),
            "wait_steps_max": self.waits.most,
        }
        return plain
