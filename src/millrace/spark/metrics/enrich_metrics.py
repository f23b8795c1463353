"""The metrics of ``enrich``: what a task counts in one micro-batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace.semistream.join import SemiStreamJoin
from millrace.spark.metrics.metric_fields import MetricSet, largest, mean, metric_fields, total


@dataclass(frozen=True)
class EnrichMetrics:
    """The metrics of ``enrich`` in one micro-batch: of one task, or of all tasks together."""

    tuples_in: int = total()
    """Number of stream tuples that came in."""
    rows_out: int = total()
    """Number of output rows."""
    cache_hits: int = total()
    """Number of tuples that the cache answered."""
    unmatched: int = total()
    """Number of tuples without a match."""
    waiting: int = total()
    """Number of tuples that wait at the end of the micro-batch."""
    waiting_bytes: int = total()
    """Memory of the waiting tuples, in bytes."""
    cache_bytes: int = total()
    """Memory of the cache, in bytes."""
    memory_bytes: int = total()
    """Peak of the memory in use, in bytes."""
    budget_bytes: int = total()
    """Memory budget, in bytes."""
    cached_keys: int = total()
    """Number of keys in the cache."""
    scanned_rows: int = total()
    """Number of master rows scanned in this micro-batch."""
    join_ms: float = total()
    """Time spent in the join, in milliseconds."""
    cycle_ms: float = largest()
    """Time that a scan of the whole master takes at this micro-batch's speed, in milliseconds."""
    wait_p50_cycles: float = largest()
    """Median wait of a tuple, in cycles (scans of the whole master)."""
    wait_p99_cycles: float = largest()
    """Wait that 99 % of the tuples do not exceed, in cycles (scans of the whole master)."""
    wait_max_cycles: float = largest()
    """Longest wait of a tuple, in cycles (scans of the whole master)."""
    wheel: float = mean()
    """Position of the scan in the master, from 0 to 1."""

    @staticmethod
    def of(values: Mapping[str, Any]) -> EnrichMetrics:
        """Return the metrics in a mapping from names to values; its other entries are ignored."""
        return EnrichMetrics(**{each.name: values[each.name] for each in ENRICH_METRICS.fields})

    def line(self) -> str:
        """Return the metrics as the text that a task sends."""
        return ENRICH_METRICS.line(vars(self))


ENRICH_METRICS = MetricSet("join", metric_fields(EnrichMetrics))

HIT_RATE, ALGORITHM = "hit_rate", "algorithm"
"""Names of two metrics besides ``ENRICH_METRICS``: the share of tuples that the cache answered, and the algorithm."""

OBSERVED_NAMES = (*(each.name for each in ENRICH_METRICS.fields), HIT_RATE, ALGORITHM)
"""The names of all metrics of a micro-batch."""


def observed_metrics(row: Any) -> dict[str, Any] | None:
    """Return the metrics in an observed row by name; all are None if no task ran.

    If the row does not have the metrics of an ``enrich``, return None.
    """
    structs = row if isinstance(row, dict) else row.asDict()
    if set(structs) != {ENRICH_METRICS.struct}:
        return None
    values = structs[ENRICH_METRICS.struct]
    if values is None:
        return dict.fromkeys(OBSERVED_NAMES)
    values = values if isinstance(values, dict) else values.asDict()
    return values if set(OBSERVED_NAMES).issubset(values) else None


class JoinMeter:
    """Measures a join during one micro-batch, with a clock that can be paused."""

    def __init__(self, join: SemiStreamJoin, *, running: bool = True) -> None:
        self._join = join
        self._seconds = 0.0
        self._running_since = time.perf_counter() if running else None

    def pause(self) -> None:
        """Stop the clock while something other than the join runs, such as the source of batches."""
        if self._running_since is not None:
            self._seconds += time.perf_counter() - self._running_since
            self._running_since = None

    def resume(self) -> None:
        """Start the clock again."""
        self._running_since = time.perf_counter()

    def metrics(self) -> EnrichMetrics:
        """Stop the clock, and return the metrics of the micro-batch."""
        self.pause()
        m = self._join.metrics
        steps = max(1, m.steps_per_cycle)
        derived: dict[str, Any] = {
            "waiting_bytes": m.parts.get("waiting", 0),
            "cache_bytes": m.parts.get("cache", 0),
            "memory_bytes": m.peak_bytes,
            "scanned_rows": m.probes,
            "join_ms": 1000 * self._seconds,
            "cycle_ms": 1000 * self._seconds * self._join.store.rows / m.probes if m.probes else 0.0,
            "wait_p50_cycles": m.waits.quantile(0.5) / steps,
            "wait_p99_cycles": m.waits.quantile(0.99) / steps,
            "wait_max_cycles": m.waits.most / steps,
            "wheel": m.cycles % 1.0,
        }
        names = [each.name for each in ENRICH_METRICS.fields if each.name not in derived]
        return EnrichMetrics(**derived, **{name: getattr(m, name) for name in names})  # the same names in both classes
