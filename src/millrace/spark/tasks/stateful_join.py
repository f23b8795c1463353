"""The stateful part of ``join_streams``: what has come of all inputs meets, micro-batch by micro-batch.

::

    left  ─► pack ─┐                                  ┌─ new left  × old right, chunk by chunk
                   ├─► groupBy(shard) ─► Meeting ─────┼─ old left  × new right, chunk by chunk
    right ─► pack ─┘                       │   ▲      └─ new left  × new right
                                           ▼   │
                                    state store: chunks of both sides

Nothing is held between micro-batches but what is in the state store, so what Spark promises of its state holds for the
join. What a micro-batch gives out follows from what came up to it, in whatever order and pieces. :class:`Meeting` is
for two inputs as drawn; what it is made of, :class:`Operator`, is for any number.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.core.errors import StateError
from millrace.rows.sharding import by_shard
from millrace.spark import arrow_types as types
from millrace.spark import task_metrics as metrics
from millrace.spark.plans.enrich_plan import together
from millrace.spark.plans.pair_plan import LEFT, RIGHT, MeetingPlan
from millrace.spark.plans.stream_join_plan import OperatorPlan, SortedRows
from millrace.spark.state.sorted_runs import Runs
from millrace.spark.tasks.sorted_match import matches
from millrace.spark.transport.batch_bytes import from_blob, to_blob
from millrace.spark.transport.output_files import WayOut
from millrace.spark.transport.routing import SHARD
from millrace.worker.shipping import begin_task

PACKED = f"{SHARD} int, side byte, blob binary"
FIELD = "streams"
"""What the numbers are called in an observed row."""

SIDES = ("left", "right")
WORK = ("rows_out", "state_rows", "state_bytes", "chunks_read", "chunks_skipped", "chunks_written")


def numbers(inputs: Sequence[str]) -> tuple[str, ...]:
    """What the shards that were at work tell, summed up. A row counts in every shard it goes to.

    >>> numbers(SIDES)[:3]
    ('left_in', 'right_in', 'rows_out')
    """
    return (*(f"{name}_in" for name in inputs), *WORK)


_BLOB_ROWS = 262_144


# packing


def pack(plan: OperatorPlan, side: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
        rows, shard, copies = plan.placed(batch, side)
        for number, places in enumerate(by_shard(shard, plan.shards)):
            if not len(places):
                continue
            mine = rows.take(pa.array(places))
            each = max(1, len(mine) * plan.block_bytes // max(1, mine.nbytes))
            for start in range(0, len(mine), each):
                blob = to_blob(mine.slice(start, each))
                for copy in copies:
                    yield _packed(plan.names[number + copy], side, blob)


def _packed(name: int, side: int, blob: bytes) -> pa.RecordBatch:
    columns = [pa.array([name], pa.int32()), pa.array([side], pa.int8()), pa.array([blob], pa.binary())]
    return pa.record_batch(columns, [SHARD, "side", "blob"])


# the stateful part


class Operator(StatefulProcessor):
    """One shard's join.

    State: ``head`` (one line of JSON: of which join it is, and what is known of its chunks) and the chunks of every
    input.
    """

    def __init__(self, plan: OperatorPlan, inputs: Sequence[str], way: WayOut) -> None:
        self._plan, self._inputs, self._way = plan, tuple(inputs), way

    @abstractmethod
    def _met(self, new: list[SortedRows], kept: list[Runs]) -> Iterator[pa.RecordBatch]:
        """Everything that has come about with these new rows, once. They are kept then."""

    def init(self, handle: Any) -> None:
        begin_task()
        self._head = handle.getValueState("head", "json string")
        self._chunks = [handle.getMapState(name, "number long", "blob binary") for name in self._inputs]

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        plan = self._plan
        known = self._known()
        kept = [Runs(plan, side, self._chunks[side], known[side]) for side in range(len(self._inputs))]
        came, out = [0] * len(kept), 0

        def met() -> Iterator[pa.RecordBatch]:
            nonlocal out
            for new in self._blocks(rows):
                for batch in self._met(new, kept):
                    out += len(batch)
                    yield batch
                for side, more in enumerate(new):
                    came[side] += len(more.rows)

        yield from self._way.frames(met())
        self._head.update((json.dumps({"identity": plan.identity, "runs": [runs.known() for runs in kept]}),))
        parts = ("rows", "nbytes", "read", "skipped", "written")
        yield self._way.metrics_frame([*came, out, *(sum(getattr(runs, part) for runs in kept) for part in parts)])

    def close(self) -> None:
        """Nothing is held between micro-batches."""

    def _blocks(self, frames: Iterator[pd.DataFrame]) -> Iterator[list[SortedRows]]:
        """New rows of all inputs, as many at a time as the memory allows."""
        held: list[list[pa.RecordBatch]] = [[] for _ in self._inputs]
        size = 0
        for frame in frames:
            for side, blob in zip(frame["side"], frame["blob"], strict=True):
                if not len(blob):
                    continue
                if size and size + len(blob) > self._plan.block_bytes:
                    yield self._block(held)
                    held, size = [[] for _ in self._inputs], 0
                held[side].append(from_blob(blob))
                size += len(blob)
        if size:
            yield self._block(held)

    def _block(self, held: list[list[pa.RecordBatch]]) -> list[SortedRows]:
        plan = self._plan
        return [
            plan.in_order(
                pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], plan.shipped(side)), side
            )
            for side, batches in enumerate(held)
        ]

    def _known(self) -> list[Any]:
        """What is known of the chunks of all inputs."""
        if not self._head.exists():
            return [[] for _ in self._inputs]
        head = json.loads(self._head.get()[0])
        if head["identity"] != self._plan.identity:
            raise StateError(
                "join_streams: the checkpoint is of another join: columns, keys, band, number of shards, sizes or "
                "spark.sql.shuffle.partitions have changed. Go on with the old ones, or start with a new checkpoint"
            )
        return list(head["runs"])


class Meeting(Operator):
    """Two inputs."""

    _plan: MeetingPlan

    def __init__(self, plan: MeetingPlan, way: WayOut) -> None:
        super().__init__(plan, SIDES, way)

    def _met(self, new: list[SortedRows], kept: list[Runs]) -> Iterator[pa.RecordBatch]:
        ours, theirs = new
        for chunk in kept[RIGHT].facing(ours.codes):
            yield from matches(self._plan, ours, chunk)
        for chunk in kept[LEFT].facing(theirs.codes):
            yield from matches(self._plan, chunk, theirs)
        yield from matches(self._plan, ours, theirs)
        for runs, rows in zip(kept, new, strict=True):
            runs.add(rows)


# metrics


def observed(df: DataFrame, name: str, inputs: Sequence[str]) -> DataFrame:
    """Have Spark sum the numbers up, named in ``StreamingQueryProgress.observedMetrics``."""
    lines = F.transform(F.collect_list(metrics.COLUMN), lambda line: F.split(line, " ").cast("array<double>"))

    def summed(tasks: Column) -> Column:
        def one(place: int) -> Column:
            return F.aggregate(tasks, F.lit(0.0), lambda so_far, task: so_far + task[place]).cast("long")

        return F.struct(*(one(place).alias(number) for place, number in enumerate(numbers(inputs))))

    return df.observe(name, F.transform(F.array(lines), summed)[0].alias(FIELD))
