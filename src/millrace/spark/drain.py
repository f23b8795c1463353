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
from millrace.spark import types
from millrace.spark.metrics import Meter, metrics_row, with_metrics
from millrace.spark.plan import JoinPlan


def drain(plan: JoinPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the rows of one task. Runs in a Python worker."""
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
        yield with_metrics(types.conform(batch, plan.sent_schema))
        meter.away += time.perf_counter() - gone
    plan.keep(join, shard)
    yield metrics_row(plan.sent_schema, meter.numbers())


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
