"""What a join on Spark tells: one row of numbers per task, summed up by ``observe`` for every micro-batch.

The row travels with the output, in a column that is null in all others, and is taken out behind ``observe``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.semistream.join import SemiStreamJoin

COLUMN = "__millrace"
TYPE = "array<double>"
PREFIX = "millrace"
ARROW_TYPE = pa.list_(pa.float64())

NUMBERS = (
    ("tuples_in", "sum"),
    ("rows_out", "sum"),
    ("cache_hits", "sum"),
    ("unmatched", "sum"),
    ("waiting", "sum"),
    ("waiting_bytes", "sum"),
    ("cache_bytes", "sum"),
    ("memory_bytes", "sum"),
    ("budget_bytes", "sum"),
    ("cached_keys", "sum"),
    ("scanned_rows", "sum"),
    ("join_ms", "sum"),
    ("cycle_ms", "max"),
    ("wait_p50_cycles", "max"),
    ("wait_p99_cycles", "max"),
    ("wait_max_cycles", "max"),
    ("wheel", "avg"),
)
"""The numbers of a task, and how those of a micro-batch come from them."""

_TELLING = {"tuples_in", "rows_out", "cache_hits", "waiting", "wheel"}


@dataclass
class Meter:
    """Takes the numbers of one join for one micro-batch."""

    join: SemiStreamJoin
    began: float = field(default_factory=time.perf_counter)
    away: float = 0.0
    """Seconds in which somebody else had the turn: the source of batches, or who takes them."""
    scanned_before: int = 0

    def __post_init__(self) -> None:
        self.scanned_before = self.join.metrics.probes

    def numbers(self) -> list[float]:
        m = self.join.metrics
        seconds = time.perf_counter() - self.began - self.away
        rows = self.join.store.rows
        scanned = m.probes - self.scanned_before
        steps = max(1, m.steps_per_cycle)
        return [
            m.tuples_in,
            m.rows_out,
            m.cache_hits,
            m.unmatched,
            m.waiting,
            m.parts.get("waiting", 0),
            m.parts.get("cache", 0),
            m.peak_bytes,
            m.budget_bytes,
            m.cached_keys,
            scanned,
            1000 * seconds,
            1000 * seconds * rows / scanned if scanned else 0.0,
            m.waits.quantile(0.5) / steps,
            m.waits.quantile(0.99) / steps,
            m.waits.most / steps,
            m.cycles % 1.0,
        ]


def metrics_row(schema: pa.Schema, numbers: list[float]) -> pa.RecordBatch:
    """A row of nothing but numbers."""
    columns = [pa.nulls(1, field.type) for field in schema]
    return with_metrics(pa.RecordBatch.from_arrays(columns, schema=schema), numbers)


def with_metrics(batch: pa.RecordBatch, numbers: list[float] | None = None) -> pa.RecordBatch:
    """The batch with the column of numbers, which only a row of metrics has a value in."""
    column = pa.array([numbers], ARROW_TYPE) if numbers is not None else _none(len(batch))
    return batch.append_column(pa.field(COLUMN, ARROW_TYPE), column)


def _none(rows: int) -> pa.Array:
    return pa.nulls(rows, ARROW_TYPE)


def observed(df: DataFrame, name: str) -> DataFrame:
    """Have Spark sum the metrics up, under a name in ``StreamingQueryProgress.observedMetrics``."""
    return df.observe(name, *_summed())


def is_ours(names: Iterable[str]) -> bool:
    """Whether observed numbers are those of a join, whatever it is called: by their own names.

    >>> is_ours(number for number, _ in NUMBERS), is_ours(["rows", "waiting"])
    (True, False)
    """
    return _TELLING.issubset(names)


def _summed() -> list[Column]:
    """One column per number, and the hit rate."""
    total = {"sum": F.sum, "max": F.max, "avg": F.avg}
    columns = []
    for place, (number, how) in enumerate(NUMBERS):
        summed = total[how](F.col(COLUMN)[place])
        if how == "sum" and not number.endswith("_ms"):
            summed = summed.cast("long")
        columns.append(summed.alias(number))
    hits = F.try_divide(F.sum(F.col(COLUMN)[2]), F.sum(F.col(COLUMN)[0]))
    return [*columns, hits.alias("hit_rate")]
