"""``pending="drain"``: every micro-batch is completed before it ends. No state, any trigger, batch DataFrames too.

One task joins the rows of one shard of the stream with the same shard of the master, or, if the master has only one,
the rows it got with all of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from millrace.semistream.join import SemiStreamJoin
from millrace.spark import arrow_types as types
from millrace.spark.plans.enrich_plan import JoinPlan
from millrace.spark.task_metrics import Meter, metrics_row, with_metrics
from millrace.spark.transport.output_files import WayOut


def drain(plan: JoinPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the rows of one task. Runs in a Python worker."""
    numbers: list[float] = []
    for batch in _completed(plan, batches, numbers):
        yield with_metrics(batch)
    if numbers:
        yield metrics_row(plan.sent_schema, numbers)


def _completed(plan: JoinPlan, batches: Iterator[pa.RecordBatch], numbers: list[float]) -> Iterator[pa.RecordBatch]:
    """The rows that come out; in the end ``numbers`` has the task's metrics, if anything came."""
    arriving = plan.arriving(batches)
    first = next(arriving, None)
    if first is None:
        return
    shard = plan.shard_of(first)
    join = plan.join(shard)
    plan.recall(join, shard)
    meter = Meter(join)
    for batch in _joined(plan, join, shard, chain([first], arriving), meter):
        gone = time.perf_counter()
        yield types.conform(batch, plan.sent_schema)
        meter.away += time.perf_counter() - gone
    plan.keep(join, shard)
    numbers += meter.numbers()


def drain_to_file(plan: JoinPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for a stream: rows go to a file, and what comes out says where they are."""
    numbers: list[float] = []
    yield from WayOut.batches(_completed(plan, batches, numbers), numbers)


def _joined(
    plan: JoinPlan, join: SemiStreamJoin, shard: int | None, arriving: Iterator[pa.RecordBatch], meter: Meter
) -> Iterator[pa.RecordBatch]:
    while True:
        gone = time.perf_counter()
        batch = next(arriving, None)
        meter.away += time.perf_counter() - gone
        if batch is None:
            break
        plan.check_shard(batch, shard)
        yield from join.push(batch)
    yield from join.finish()
