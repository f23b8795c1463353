"""``pending="drain"`` on the driver: every task completes its join before the micro-batch ends."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from millrace.spark.metrics.metric_fields import METRICS_COLUMN
from millrace.spark.metrics.observe import observe_enrich
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.tasks.drain_task import drain, drain_to_file
from millrace.spark.tasks.star_task import drain_star
from millrace.spark.transport.output_files import OUTPUT_LINES, output_rows
from millrace.spark.transport.routing import routed
from millrace.worker.shipping import in_worker


def drain_stream(df: DataFrame, plan: EnrichPlan, output: StructType, label: str) -> DataFrame:
    """Return the joined stream. Its rows leave the tasks through local files, which hold one micro-batch at a time."""
    lines = routed(df, plan).mapInArrow(in_worker(drain_to_file, plan), OUTPUT_LINES)
    return output_rows(observe_enrich(lines, label, plan.algorithm), output)


def drain_batch(df: DataFrame, plan: EnrichPlan, output: StructType, label: str) -> DataFrame:
    """Return the joined batch. Its rows leave the tasks without files, because they may not all fit on a disk."""
    joined = routed(df, plan).mapInArrow(in_worker(drain, plan), _with_metrics_column(output))
    return _without_metrics(observe_enrich(joined, label, plan.algorithm))


def drain_through(df: DataFrame, plans: dict[str, EnrichPlan], output: StructType, labels: list[str]) -> DataFrame:
    """Return the DataFrame joined with several masters; each task joins its rows with one master after the other."""
    out = df.mapInArrow(in_worker(drain_star, plans), _with_metrics_column(output))
    for place, (plan, label) in enumerate(zip(plans.values(), labels, strict=True)):
        out = observe_enrich(out, label, plan.algorithm, place)
    return _without_metrics(out)


def _with_metrics_column(output: StructType) -> StructType:
    return StructType([*output.fields, StructField(METRICS_COLUMN, StringType())])


def _without_metrics(df: DataFrame) -> DataFrame:
    return df.where(F.col(METRICS_COLUMN).isNull()).drop(METRICS_COLUMN)
