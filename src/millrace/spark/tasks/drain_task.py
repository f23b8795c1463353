"""A task of ``pending="drain"``: every micro-batch is completed before it ends.

A task keeps no state, so this works with any trigger and with batch DataFrames. If the master has several shards, a
task joins the rows of one shard of the stream with the same shard of the master. If the master has one shard, a task
joins any rows of the stream with the whole master.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from millrace.semistream.join import SemiStreamJoin
from millrace.spark import arrow_types as types
from millrace.spark.metrics.enrich_metrics import EnrichMetrics, JoinMeter
from millrace.spark.metrics.metric_fields import metrics_row, with_metrics
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.state.soft_cache import keep_cache, recall_cache
from millrace.spark.tasks.task_join import check_shard, shard_of_task, stream_batches, task_join
from millrace.spark.transport.output_files import file_lines, metrics_line


def drain(plan: EnrichPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the rows of one task, and yield the output followed by a row of metrics."""
    task = DrainTask(plan)
    for batch in task.rows(batches):
        yield with_metrics(batch)
    if task.metrics is not None:
        yield metrics_row(plan.sent_schema, task.metrics.line())


def drain_to_file(plan: EnrichPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the rows of one task; yield a line that names the output file, and a line with the metrics."""
    task = DrainTask(plan)
    yield from file_lines(task.rows(batches))
    if task.metrics is not None:
        yield metrics_line(task.metrics.line())


class DrainTask:
    """Runs the join of one task with ``pending="drain"``, and has its metrics once all rows have been yielded."""

    def __init__(self, plan: EnrichPlan) -> None:
        self._plan = plan
        self.metrics: EnrichMetrics | None = None
        """The metrics of the task, set when all rows have been yielded; None before that, or if no rows came."""

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the rows of all batches, and yield the output rows."""
        plan = self._plan
        arriving = stream_batches(plan, batches)
        first = next(arriving, None)
        if first is None:
            return
        shard = shard_of_task(plan, first)
        join = task_join(plan, shard)
        recall_cache(plan, join, shard)
        meter = JoinMeter(join)
        for batch in _joined(plan, join, shard, chain([first], arriving), meter):
            meter.pause()
            yield types.conform(batch, plan.sent_schema)
            meter.resume()
        keep_cache(plan, join, shard)
        self.metrics = meter.metrics()


def _joined(
    plan: EnrichPlan,
    join: SemiStreamJoin,
    shard: int | None,
    arriving: Iterator[pa.RecordBatch],
    meter: JoinMeter,
) -> Iterator[pa.RecordBatch]:
    while True:
        meter.pause()
        batch = next(arriving, None)
        meter.resume()
        if batch is None:
            break
        check_shard(plan, batch, shard)
        yield from join.push(batch)
    yield from join.finish()
