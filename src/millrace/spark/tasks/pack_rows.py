"""Packs the rows of a task into Arrow blobs, by shard.

Spark shuffles a blob as one value instead of many rows, and the stateful operator that receives it unpacks the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from millrace.rows.sharding import by_shard
from millrace.spark import arrow_types as types
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.plans.hypercube_plan import HypercubePlan
from millrace.spark.plans.pair_plan import PairPlan
from millrace.spark.tasks.hypercube_rows import HypercubeRows
from millrace.spark.tasks.pair_rows import PairRows
from millrace.spark.tasks.row_layout import RowLayout
from millrace.spark.transport.batch_bytes import to_blob
from millrace.spark.transport.combine_batches import combined
from millrace.spark.transport.routing import SHARD

PACKED_STREAM = f"{SHARD} int, blob binary"
"""The columns of a packed stream: the number by which Spark groups a shard's rows, and a blob of the shard's rows."""
PACKED_INPUT = f"{SHARD} int, side byte, blob binary"
"""The columns of a packed input of a join of streams; ``side`` is the number of the input."""

_BLOB_ROWS = 262_144


def pack_stream(plan: EnrichPlan, names: list[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the stream's rows of one task, packed by shard.

    The last column of ``batches`` is the shard's number. ``names`` contains, for every shard, the number by which Spark
    groups its rows.
    """
    for batch in combined(batches, _BLOB_ROWS):
        shard = batch.column(batch.num_columns - 1).to_numpy()
        rows = types.conform(batch.select(range(batch.num_columns - 1)), plan.stream_schema)
        for number, places in enumerate(by_shard(shard, plan.shards)):
            if len(places):
                part = rows if len(places) == len(rows) else rows.take(pa.array(places))
                yield pa.record_batch(
                    [pa.array([names[number]], pa.int32()), pa.array([to_blob(part)], pa.binary())], [SHARD, "blob"]
                )


def pack_pair_input(plan: PairPlan, side: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one side of a join of two streams, packed by shard."""
    return pack_input(PairRows(plan), side, batches)


def pack_hypercube_input(plan: HypercubePlan, side: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one input of a join of several streams, packed by cell."""
    return pack_input(HypercubeRows(plan), side, batches)


def pack_input(layout: RowLayout, side: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, packed by shard.

    Every task that has rows also sends an empty blob to the first shard. So the first shard has state as soon as any
    rows have come, and the use of another join's checkpoint is always detected there.
    """
    plan = layout.plan
    arriving = (types.conform(batch, plan.input_schemas[side]) for batch in batches if len(batch))
    announced = False
    for batch in combined(arriving, _BLOB_ROWS, plan.block_bytes):
        if not announced:
            announced = True
            yield _packed(plan.names[0], side, b"")
        rows, shard, offsets = layout.route(batch, side)
        for number, places in enumerate(by_shard(shard, plan.shards)):
            if not len(places):
                continue
            mine = rows.take(pa.array(places))
            each = max(1, len(mine) * plan.block_bytes // max(1, mine.nbytes))
            for start in range(0, len(mine), each):
                blob = to_blob(mine.slice(start, each))
                for offset in offsets:
                    yield _packed(plan.names[number + offset], side, blob)


def _packed(name: int, side: int, blob: bytes) -> pa.RecordBatch:
    columns = [pa.array([name], pa.int32()), pa.array([side], pa.int8()), pa.array([blob], pa.binary())]
    return pa.record_batch(columns, [SHARD, "side", "blob"])
