"""Metrics as named fields, from the task that counts them to the progress of the query.

A kind of join declares its metrics once, as a dataclass whose fields are :func:`total`, :func:`largest` or
:func:`mean`. From this declaration follow the line of text in which a task sends them, the aggregate that Spark
computes over all tasks of a micro-batch, and the names in ``StreamingQueryProgress.observedMetrics``::

    task: dataclass ── line ──► column "__millrace" ── observe: sum, max, mean ──► observedMetrics[name][struct][field]

The line travels with the output, in a column that is null in all other rows and is dropped after ``observe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from millrace.spark.arrow_types import blank

METRICS_COLUMN = "__millrace"
"""The column of the output that carries the metrics of a task to ``observe``."""
METRICS_TYPE = pa.string()
"""The type of the metrics column: text, which every kind of operator can pass from Python to Spark."""
PREFIX = "millrace"
"""The beginning of the default names of observed metrics."""

Combine = Literal["sum", "max", "mean"]
_WHOLE = {"int": True, "float": False}


class MetricField(NamedTuple):
    """One metric: its name, how Spark combines the values of the tasks, and whether it is a whole number."""

    name: str
    combine: Combine = "sum"
    whole: bool = True


def total() -> Any:
    """Declare a metric that is summed over the tasks."""
    return field(metadata={"combine": "sum"})


def largest() -> Any:
    """Declare a metric whose value for a micro-batch is the largest of all tasks."""
    return field(metadata={"combine": "max"})


def mean() -> Any:
    """Declare a metric whose value for a micro-batch is the mean over the tasks."""
    return field(metadata={"combine": "mean"})


def metric_fields(declaration: type) -> tuple[MetricField, ...]:
    """Return the metrics that a dataclass declares, in order.

    >>> @dataclass
    ... class Example:
    ...     rows: int = total()
    ...     wait_ms: float = largest()
    >>> metric_fields(Example)
    (MetricField(name='rows', combine='sum', whole=True), MetricField(name='wait_ms', combine='max', whole=False))
    """
    return tuple(
        MetricField(each.name, each.metadata["combine"], _WHOLE[getattr(each.type, "__name__", str(each.type))])
        for each in fields(declaration)
    )


@dataclass(frozen=True)
class MetricSet:
    """The metrics of a kind of join. Spark reports them, with ``df.observe``, as one struct named ``struct``."""

    struct: str
    fields: tuple[MetricField, ...]

    def line(self, values: Mapping[str, float]) -> str:
        """Return the metrics of a task as the line of text that it sends.

        >>> MetricSet("join", (MetricField("rows"), MetricField("hits"))).line({"hits": 2, "rows": 5})
        '5.0 2.0'
        """
        return " ".join(repr(float(values[each.name])) for each in self.fields)

    def read(self, line: str) -> dict[str, float]:
        """Return the metrics in a line that a task has sent, by name.

        >>> MetricSet("join", (MetricField("rows"), MetricField("hits"))).read("5.0 2.0")
        {'rows': 5.0, 'hits': 2.0}
        """
        return {each.name: float(text) for each, text in zip(self.fields, line.split(), strict=True)}


def with_metrics(batch: pa.RecordBatch, line: str | None = None) -> pa.RecordBatch:
    """Return the batch with the metrics column added.

    The column contains ``line``, which requires a batch of one row, or nulls if ``line`` is None.
    """
    column = pa.array([line], METRICS_TYPE) if line is not None else pa.nulls(len(batch), METRICS_TYPE)
    return batch.append_column(pa.field(METRICS_COLUMN, METRICS_TYPE), column)


def metrics_row(schema: pa.Schema, line: str) -> pa.RecordBatch:
    """Return a batch of one row with the metrics, and filler values in the columns of ``schema``."""
    columns = [blank(each.type) for each in schema]
    return with_metrics(pa.RecordBatch.from_arrays(columns, schema=schema), line)
