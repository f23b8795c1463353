"""The aggregate with which Spark combines the metrics of all tasks in every micro-batch."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.spark.metrics.enrich_metrics import ALGORITHM, ENRICH_METRICS, HIT_RATE
from millrace.spark.metrics.metric_fields import METRICS_COLUMN, MetricField, MetricSet
from millrace.spark.metrics.stream_join_metrics import stream_join_metrics


def observe_enrich(df: DataFrame, name: str, algorithm: str, place: int = 0) -> DataFrame:
    """Return the DataFrame, with its ``enrich`` metrics combined over all tasks in ``observedMetrics[name]``.

    If each task runs several joins, it sends their metrics in one line, and ``place`` is the position of this join. If
    no task ran in a micro-batch, its metrics are null.
    """
    combined = _Combined(ENRICH_METRICS, place)

    def metrics(whole: Column) -> Column:
        hits = F.try_divide(combined.total(whole, "cache_hits"), combined.total(whole, "tuples_in"))
        more = (hits.alias(HIT_RATE), F.lit(algorithm).alias(ALGORITHM))
        return F.when(whole["tasks"] > 0, F.struct(*combined.columns(whole), *more))

    return df.observe(name, F.transform(F.array(combined.whole()), metrics)[0].alias(ENRICH_METRICS.struct))


def observe_stream_join(df: DataFrame, name: str, inputs: list[str]) -> DataFrame:
    """Return the DataFrame, with its ``join_streams`` metrics combined over all tasks in ``observedMetrics[name]``.

    If no task ran in a micro-batch, its metrics are zeros.
    """
    metric_set = stream_join_metrics(inputs)
    combined = _Combined(metric_set)

    def metrics(whole: Column) -> Column:
        return F.struct(*combined.columns(whole))

    return df.observe(name, F.transform(F.array(combined.whole()), metrics)[0].alias(metric_set.struct))


def is_observed(df: DataFrame, name: str) -> bool:
    """Return whether the plan of a DataFrame already has metrics of this name."""
    plan = df._jdf.queryExecution().analyzed().toString()
    return f"CollectMetrics {name}, " in plan


class _Combined:
    """Expressions that combine the metrics of all tasks into one struct of totals and largest values.

    All rows of the output pass through a single aggregate, which collects the lines of metrics. Spark plans the
    expression again for every micro-batch, so it is kept small: lines are added and compared as whole arrays.
    """

    def __init__(self, metric_set: MetricSet, place: int = 0) -> None:
        self._fields, self._place = metric_set.fields, place
        self._numbers = {each.name: number for number, each in enumerate(metric_set.fields)}

    def whole(self) -> Column:
        """Return the expression of a struct with the totals, the number of tasks and, if needed, the largest values."""
        tasks = F.transform(F.collect_list(METRICS_COLUMN), self._values)
        zeros = F.array_repeat(F.lit(0.0), len(self._fields))
        totals = F.aggregate(tasks, zeros, lambda so_far, task: F.zip_with(so_far, task, lambda a, b: a + b))
        largest = F.aggregate(
            tasks, zeros, lambda so_far, task: F.zip_with(so_far, task, lambda a, b: F.greatest(a, b))
        )
        parts = [totals.alias("totals"), F.size(tasks).alias("tasks")]
        if any(each.combine == "max" for each in self._fields):
            parts.append(largest.alias("largest"))
        return F.struct(*parts)

    def columns(self, whole: Column) -> list[Column]:
        """Return the expressions of all metrics, each under its name; ``whole`` is the struct of :meth:`whole`."""
        return [self._combined(whole, each).alias(each.name) for each in self._fields]

    def total(self, whole: Column, name: str) -> Column:
        """Return the expression of a metric's sum over all tasks."""
        return whole["totals"][self._numbers[name]]

    def _combined(self, whole: Column, metric: MetricField) -> Column:
        number = self._numbers[metric.name]
        if metric.combine == "max":
            value = whole["largest"][number]
        elif metric.combine == "mean":
            value = whole["totals"][number] / whole["tasks"]
        else:
            value = whole["totals"][number]
        return value.cast("long") if metric.whole else value

    def _values(self, line: Column) -> Column:
        count = len(self._fields)
        return F.slice(F.split(line, " ").cast("array<double>"), 1 + self._place * count, count)
