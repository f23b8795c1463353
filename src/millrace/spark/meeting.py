"""The stateful part of ``join_streams``: both sides of a shard meet, micro-batch by micro-batch.

::

    left  ─► pack ─┐                                  ┌─ new left  × old right, chunk by chunk
                   ├─► groupBy(shard) ─► Meeting ─────┼─ old left  × new right, chunk by chunk
    right ─► pack ─┘                       │   ▲      └─ new left  × new right
                                           ▼   │
                                    state store: chunks of both sides

Nothing is held between micro-batches but what is in the state store, so what Spark promises of its state holds for the
join. What a micro-batch gives out follows from what came up to it, in whatever order and pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.core.errors import StateError
from millrace.spark import metrics, types
from millrace.spark.blobs import from_blob, to_blob
from millrace.spark.leaving import WayOut
from millrace.spark.matching import matches
from millrace.spark.meeting_plan import LEFT, RIGHT, MeetingPlan, SortedRows
from millrace.spark.plan import together
from millrace.spark.routing import SHARD
from millrace.spark.runs import Runs

PACKED = f"{SHARD} int, side byte, blob binary"
FIELD = "streams"
"""What the numbers are called in an observed row."""

NUMBERS = (
    "left_in",
    "right_in",
    "rows_out",
    "state_rows",
    "state_bytes",
    "chunks_read",
    "chunks_skipped",
    "chunks_written",
)
"""What the shards that were at work tell, summed up; with a band, left rows count once for every bucket."""

_BLOB_ROWS = 262_144


# packing


def pack(plan: MeetingPlan, side: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one task, by shard, as Arrow blobs.

    The first shard hears of every task that has rows, so that it has a state from the first micro-batch on, and a
    checkpoint of another join is always found out.
    """
    arriving = (types.conform(batch, plan.arriving[side]) for batch in batches if len(batch))
    called = False
    for batch in together(arriving, _BLOB_ROWS, plan.block_bytes):
        if not called:
            called = True
            yield _packed(plan.names[0], side, b"")
        rows = plan.with_buckets(batch, side)
        shard = plan.coder.shards(plan.key_columns(rows, side), plan.shards)
        order = np.argsort(shard, kind="stable")
        edges = np.searchsorted(shard[order], np.arange(plan.shards + 1))
        for number in np.flatnonzero(np.diff(edges)):
            mine = rows.take(pa.array(order[edges[number] : edges[number + 1]]))
            each = max(1, len(mine) * plan.block_bytes // max(1, mine.nbytes))
            for start in range(0, len(mine), each):
                yield _packed(plan.names[number], side, to_blob(mine.slice(start, each)))


def _packed(name: int, side: int, blob: bytes) -> pa.RecordBatch:
    columns = [pa.array([name], pa.int32()), pa.array([side], pa.int8()), pa.array([blob], pa.binary())]
    return pa.record_batch(columns, [SHARD, "side", "blob"])


# the stateful part


class Meeting(StatefulProcessor):
    """One shard's join.

    State: ``head`` (one line of JSON: of which join it is, and what is known of its chunks) and both sides' chunks.
    """

    def __init__(self, plan: MeetingPlan, way: WayOut) -> None:
        self._plan, self._way = plan, way

    def init(self, handle: Any) -> None:
        self._head = handle.getValueState("head", "json string")
        self._chunks = [handle.getMapState(name, "number long", "blob binary") for name in ("left", "right")]

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        plan = self._plan
        known = self._known()
        left, right = sides = [Runs(plan, side, self._chunks[side], known[side]) for side in (LEFT, RIGHT)]
        came, out = [0, 0], 0
        for ours, theirs in self._blocks(rows):
            for batch in self._met(ours, theirs, left, right):
                out += len(batch)
                yield self._way.frame(batch)
            left.add(ours)
            right.add(theirs)
            came = [came[LEFT] + len(ours.rows), came[RIGHT] + len(theirs.rows)]
        self._head.update((json.dumps({"identity": plan.identity, "runs": [left.known(), right.known()]}),))
        numbers = [
            *came,
            out,
            *(sum(getattr(runs, what) for runs in sides) for what in ("rows", "nbytes", "read", "skipped", "written")),
        ]
        yield self._way.metrics_frame(numbers)

    def close(self) -> None:
        """Nothing is held between micro-batches."""

    def _met(self, ours: SortedRows, theirs: SortedRows, left: Runs, right: Runs) -> Iterator[pa.RecordBatch]:
        """Every pair that has come about with these new rows, once."""
        for chunk in right.facing(ours.codes):
            yield from matches(self._plan, ours, chunk)
        for chunk in left.facing(theirs.codes):
            yield from matches(self._plan, chunk, theirs)
        yield from matches(self._plan, ours, theirs)

    def _blocks(self, frames: Iterator[pd.DataFrame]) -> Iterator[tuple[SortedRows, SortedRows]]:
        """New rows of both sides, as many at a time as the memory allows."""
        held: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        size = 0
        for frame in frames:
            for side, blob in zip(frame["side"], frame["blob"], strict=True):
                if not len(blob):
                    continue
                if size and size + len(blob) > self._plan.block_bytes:
                    yield self._block(held)
                    held, size = ([], []), 0
                held[side].append(from_blob(blob))
                size += len(blob)
        if size:
            yield self._block(held)

    def _block(self, held: tuple[list[pa.RecordBatch], list[pa.RecordBatch]]) -> tuple[SortedRows, SortedRows]:
        plan = self._plan
        left, right = (
            plan.in_order(
                pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], plan.shipped(side)), side
            )
            for side, batches in enumerate(held)
        )
        return left, right

    def _known(self) -> list[Any]:
        """What is known of the chunks of both sides."""
        if not self._head.exists():
            return [[], []]
        head = json.loads(self._head.get()[0])
        if head["identity"] != self._plan.identity:
            raise StateError(
                "join_streams: the checkpoint is of another join: columns, keys, band, number of shards or "
                "spark.sql.shuffle.partitions have changed. Go on with the old ones, or start with a new checkpoint"
            )
        return list(head["runs"])


# metrics


def observed(df: DataFrame, name: str) -> DataFrame:
    """Have Spark sum the numbers up, named in ``StreamingQueryProgress.observedMetrics``."""
    lines = F.transform(F.collect_list(metrics.COLUMN), lambda line: F.split(line, " ").cast("array<double>"))
    return df.observe(name, F.transform(F.array(lines), _summed)[0].alias(FIELD))


def _summed(tasks: Column) -> Column:
    def one(place: int) -> Column:
        return F.aggregate(tasks, F.lit(0.0), lambda so_far, task: so_far + task[place]).cast("long")

    return F.struct(*(one(place).alias(name) for place, name in enumerate(NUMBERS)))
