"""The stateful operator of ``join_streams``: one shard's rows of all inputs, joined micro-batch by micro-batch.

::

    left  ─► pack ─┐                                            ┌─ new left  × old right, chunk by chunk
                   ├─► groupBy(shard) ─► StreamJoinOperator ────┼─ old left  × new right, chunk by chunk
    right ─► pack ─┘                       │   ▲                └─ new left  × new right
                                           ▼   │
                                    state store: chunks of both sides

Only the state store holds anything between micro-batches, so what Spark guarantees for its state holds for the join.
After a micro-batch, all output so far depends only on the rows that have come, not on their order and batches. The
drawing has two inputs (:class:`millrace.spark.tasks.pair_join.PairJoin`);
:class:`millrace.spark.tasks.hypercube_join.HypercubeJoin` joins any number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.core.errors import StateError
from millrace.spark.metrics.stream_join_metrics import StreamJoinMetrics
from millrace.spark.state.keyed_runs import RunRows
from millrace.spark.state.sorted_runs import SortedRuns
from millrace.spark.tasks.row_layout import RowLayout
from millrace.spark.transport.batch_bytes import from_blob
from millrace.spark.transport.output_files import file_frames, metrics_frame
from millrace.worker.shipping import begin_task


class BlockJoin(Protocol):
    """Joins new rows, as many at a time as the memory allows, with each other and with all earlier rows."""

    @property
    def layout(self) -> RowLayout:
        """The object that routes the rows of the inputs, computes their key codes and sorts them."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the inputs' state variables. They are in checkpoints and must not change."""

    def join(self, new: list[RunRows], kept: list[SortedRuns]) -> Iterator[pa.RecordBatch]:
        """Yield each new match once, then add the new rows to ``kept``. Both lists have one element per input."""


class StreamJoinOperator(StatefulProcessor):
    """The stateful operator that joins the rows of each shard.

    The state consists of ``head`` (one line of JSON: the identity of the join, and a list of its chunks) and the chunks
    of every input.
    """

    def __init__(self, join: BlockJoin) -> None:
        self._join, self._layout, self._plan = join, join.layout, join.layout.plan

    def init(self, handle: Any) -> None:
        """Set up the state of a task."""
        begin_task()
        self._head = handle.getValueState("head", "json string")
        self._chunks = [handle.getMapState(name, "number long", "blob binary") for name in self._join.state_names]

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        """Join a shard's packed rows of a micro-batch; yield the line that names the output file, and the metrics."""
        plan = self._plan
        kept = [
            SortedRuns(self._layout.restore, side, plan.chunk_bytes, chunks, known)
            for side, (chunks, known) in enumerate(zip(self._chunks, self._known(), strict=True))
        ]
        rows_in, rows_out = dict.fromkeys(plan.inputs, 0), 0

        def joined() -> Iterator[pa.RecordBatch]:
            nonlocal rows_out
            for new in self._blocks(rows):
                for batch in self._join.join(new, kept):
                    rows_out += len(batch)
                    yield batch
                for name, more in zip(plan.inputs, new, strict=True):
                    rows_in[name] += len(more.rows)

        yield from file_frames(joined())
        self._head.update((json.dumps({"identity": plan.identity, "runs": [runs.known for runs in kept]}),))
        metrics = StreamJoinMetrics(
            rows_out=rows_out,
            state_rows=sum(runs.rows for runs in kept),
            state_bytes=sum(runs.nbytes for runs in kept),
            chunks_read=sum(runs.chunks_read for runs in kept),
            chunks_skipped=sum(runs.chunks_skipped for runs in kept),
            chunks_written=sum(runs.chunks_written for runs in kept),
        )
        yield metrics_frame(metrics.line(rows_in))

    def close(self) -> None:
        """Do nothing: nothing is held between micro-batches."""

    def _blocks(self, frames: Iterator[pd.DataFrame]) -> Iterator[list[RunRows]]:
        """Yield the new rows of all inputs in blocks, each as large as the memory allows."""
        pending: list[list[pa.RecordBatch]] = [[] for _ in self._chunks]
        size = 0
        for frame in frames:
            for side, blob in zip(frame["side"], frame["blob"], strict=True):
                if not len(blob):
                    continue
                if size and size + len(blob) > self._plan.block_bytes:
                    yield self._block(pending)
                    pending, size = [[] for _ in self._chunks], 0
                pending[side].append(from_blob(blob))
                size += len(blob)
        if size:
            yield self._block(pending)

    def _block(self, pending: list[list[pa.RecordBatch]]) -> list[RunRows]:
        layout = self._layout
        return [
            layout.code(
                pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], layout.packed_schema(side)),
                side,
            )
            for side, batches in enumerate(pending)
        ]

    def _known(self) -> list[Any]:
        """Return what the state's head records about each input's chunks; check that the state belongs to this join."""
        if not self._head.exists():
            return [[] for _ in self._chunks]
        head = json.loads(self._head.get()[0])
        if head["identity"] != self._plan.identity:
            raise StateError(
                "join_streams: the checkpoint belongs to another join: columns, keys, band, number of shards, sizes or "
                "spark.sql.shuffle.partitions have changed. Undo the change, or start with a new checkpoint"
            )
        return list(head["runs"])
