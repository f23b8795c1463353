"""The stateful operator of ``pending="carry"``.

::

    rows ─► pack ─► groupBy(shard) ─► CarryOperator ─► file ─► rows
             │  one Arrow blob per       │        ▲
             │  shard and batch          ▼        │ timer: the wheel turns when no input comes
             │                      Spark's state: waiting tuples, position of the scan, cache

A tuple that the cache can answer leaves at once; the others wait for at most one turn of the wheel (one scan of the
master).

Spark may run a micro-batch again although its output was used already, if its state was not written. So the output of a
micro-batch must depend only on its input and on the state before it. Therefore the cache, which decides which tuples
leave at once, is part of the state, and blobs are sorted by their contents, not taken in the order of their arrival.

Rows leave the operator through a file (:mod:`millrace.spark.transport.output_files`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.semistream.join import SemiStreamJoin
from millrace.spark import arrow_types as types
from millrace.spark.metrics.enrich_metrics import JoinMeter
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.state.carry_state import CarryState, last_run
from millrace.spark.state.local_copies import LocalCopies
from millrace.spark.state.soft_cache import soft_folder
from millrace.spark.tasks.task_join import task_join
from millrace.spark.transport.batch_bytes import from_blob
from millrace.spark.transport.output_files import file_frames, metrics_frame
from millrace.worker.shipping import begin_task

_TICK_MS = 1


class CarryOperator(StatefulProcessor):
    """The stateful operator that joins the rows of each shard; ``turns`` micro-batches scan the master once."""

    def __init__(self, plan: EnrichPlan, turns: int) -> None:
        self._plan, self._turns = plan, turns

    def init(self, handle: Any) -> None:
        """Set up the state of a task."""
        begin_task()
        self._handle = handle
        self._values = handle.getMapState("kept", "what string", "blob binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        """Join the packed rows that a shard receives in a micro-batch.

        Yield one-row frames: the path of the output file, if there is any output, then the metrics.
        """
        blobs = sorted(
            (blob for frame in rows for blob in frame["blob"]), key=lambda blob: (zlib.crc32(blob), len(blob))
        )
        yield from self._micro_batch(self._shard(key), map(from_blob, blobs), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        """Scan more of the master for a shard without new input; yield the output file's line, and the metrics."""
        if last_run(self._values) == int(timerValues.getCurrentProcessingTimeInMs()):
            return  # input came in the same micro-batch and has turned the wheel already
        yield from self._micro_batch(self._shard(key), iter(()), timerValues)

    def close(self) -> None:
        """Do nothing: nothing is held between micro-batches."""

    def _shard(self, key: Any) -> int:
        return int(key[0]) % self._plan.shards

    def _micro_batch(self, shard: int, batches: Iterator[pa.RecordBatch], timer_values: Any) -> Iterator[pd.DataFrame]:
        plan = self._plan
        join = task_join(plan, shard if plan.shards > 1 else None, self._turns)
        state = CarryState(plan, self._values, LocalCopies(soft_folder(plan), shard))
        state.restore(join)
        meter = JoinMeter(join)
        yield from file_frames(types.conform(batch, plan.sent_schema) for batch in self._joined(join, batches))
        now = int(timer_values.getCurrentProcessingTimeInMs())
        timer = state.timer
        if join.metrics.waiting and timer <= now:
            timer = now + _TICK_MS
            self._handle.registerTimer(timer)
        state.save(join, timer, now)
        yield metrics_frame(meter.metrics().line())

    def _joined(self, join: SemiStreamJoin, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Push the input, then scan the master for the tuples that wait, and yield the output.

        A micro-batch scans about 1 / ``turns`` of the master, and stops earlier once no tuple waits. Rows that a push
        scans to make room count towards this.
        """
        goal = join.progress().turned + -(-join.store.rows // self._turns)
        for batch in batches:
            yield from join.push(batch)
        moved = False  # make at least one step: after it, no more tuples are added to the waiting chunks
        while join.metrics.waiting and (not moved or join.progress().turned < goal):
            yield from join.step()
            moved = True
        if not join.store.rows:
            yield from join.idle()
