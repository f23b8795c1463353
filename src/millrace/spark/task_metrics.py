"""What a join on Spark tells: one row of numbers per task, summed up by ``observe`` for every micro-batch.

The row travels with the output, in a column that is null in all others, and is taken out behind ``observe``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.semistream.join import SemiStreamJoin
from millrace.spark import arrow_types as types

COLUMN = "__millrace"
PREFIX = "millrace"
ARROW_TYPE = pa.string()
FIELD = "join"
"""What the numbers are called in an observed row."""

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

NAMES = (*(number for number, _ in NUMBERS), "hit_rate", "algorithm")
"""What a micro-batch tells: the numbers, and who made them."""


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
    columns = [types.blank(field.type) for field in schema]
    return with_metrics(pa.RecordBatch.from_arrays(columns, schema=schema), numbers)


def with_metrics(batch: pa.RecordBatch, numbers: list[float] | None = None) -> pa.RecordBatch:
    """The batch with the column of numbers, which only a row of metrics has a value in."""
    column = pa.array([line(numbers)], ARROW_TYPE) if numbers is not None else pa.nulls(len(batch), ARROW_TYPE)
    return batch.append_column(pa.field(COLUMN, ARROW_TYPE), column)


def line(numbers: list[float]) -> str:
    """The numbers as the column has them: text, which every way from Python to Spark can carry."""
    return " ".join(map(repr, map(float, numbers)))


def observed(df: DataFrame, name: str, algorithm: str, place: int = 0) -> DataFrame:
    """Have Spark sum the metrics of a join by this algorithm up, named in ``StreamingQueryProgress.observedMetrics``.

    Where several joins put their numbers into one line, ``place`` says whose they are.
    """
    return df.observe(name, _summed(place, algorithm).alias(FIELD))


def has(df: DataFrame, name: str) -> bool:
    """Whether metrics of this name are taken already on the way to a DataFrame."""
    plan = df._jdf.queryExecution().analyzed().toString()
    return f"CollectMetrics {name}, " in plan


def told(row: Any) -> dict[str, Any] | None:
    """The numbers in an observed row, all None where no task was at work; None if they are not of a join of ours."""
    fields = row if isinstance(row, dict) else row.asDict()
    if set(fields) != {FIELD}:
        return None
    numbers = fields[FIELD]
    if numbers is None:
        return dict.fromkeys(NAMES)
    numbers = numbers if isinstance(numbers, dict) else numbers.asDict()
    return numbers if set(NAMES).issubset(numbers) else None


def _summed(place: int, algorithm: str) -> Column:
    """One struct of everything: all rows of the output pass here, and one aggregate is all they can afford.

    Spark plans this anew for every micro-batch, so there is little of it: the numbers of all tasks are added, and the
    greatest of them found, as wholes.
    """
    tasks = F.transform(F.collect_list(COLUMN), lambda line: _read(line, place))
    nothing = F.array_repeat(F.lit(0.0), len(NUMBERS))
    totals = F.aggregate(tasks, nothing, lambda so_far, task: F.zip_with(so_far, task, lambda a, b: a + b))
    most = F.aggregate(tasks, nothing, lambda so_far, task: F.zip_with(so_far, task, lambda a, b: F.greatest(a, b)))
    whole = F.struct(totals.alias("totals"), most.alias("most"), F.size(tasks).alias("tasks"))
    return F.transform(F.array(whole), lambda all_of_it: _over(all_of_it, algorithm))[0]


def _read(line: Column, place: int) -> Column:
    count = len(NUMBERS)
    return F.slice(F.split(line, " ").cast("array<double>"), 1 + place * count, count)


def _over(whole: Column, algorithm: str) -> Column:
    """The numbers of a micro-batch from those of its tasks; null if there were none."""
    columns = [_one(whole, place, number, how).alias(number) for place, (number, how) in enumerate(NUMBERS)]
    totals = whole["totals"]
    hits = F.try_divide(totals[_place("cache_hits")], totals[_place("tuples_in")])
    return F.when(whole["tasks"] > 0, F.struct(*columns, hits.alias("hit_rate"), F.lit(algorithm).alias("algorithm")))


def _one(whole: Column, place: int, number: str, how: str) -> Column:
    if how == "max":
        return whole["most"][place]
    total = whole["totals"][place]
    if how == "avg":
        return total / whole["tasks"]
    return total if number.endswith("_ms") else total.cast("long")


def _place(name: str) -> int:
    return [number for number, _ in NUMBERS].index(name)
