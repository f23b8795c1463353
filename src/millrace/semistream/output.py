"""From index pairs to record batches: columns are gathered once, late, for rows that really come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from millrace.core.lanes import Lanes, Task
from millrace.core.metrics import JoinMetrics
from millrace.core.spec import JoinSpec
from millrace.master.pages import MappedRows
from millrace.rows.arena import Slots
from millrace.rows.builder import BATCH_ROWS, BatchBuilder
from millrace.rows.columns import Indices, OutputColumn
from millrace.rows.keyed import KeyedRows

Part = Callable[[slice, Sequence[OutputColumn]], list[Task]]
"""Tasks that append some rows of one side to that side's output columns."""

Batches = Iterator[pa.RecordBatch]

_WORTH_A_THREAD = 512  # rows below which a second thread costs more than it saves


class Output:
    """Collects the rows of a join's output and yields them in batches of bounded size."""

    def __init__(
        self,
        spec: JoinSpec,
        stream: pa.Schema,
        master: pa.Schema,
        metrics: JoinMetrics,
        lanes: Lanes,
        rows: int = BATCH_ROWS,
    ) -> None:
        self.schema = spec.output_schema(stream, master)
        self.master_columns = spec.master_columns(master)
        self._stream_columns = range(len(stream))
        self._metrics = metrics
        self._lanes = lanes
        self._builder = BatchBuilder(self.schema, rows)

    def emit(self, count: int, stream: Part, master: Part | None) -> Batches:
        """Append ``count`` rows; without ``master`` its columns are null."""
        builder, split = self._builder, len(self._stream_columns)
        done = 0
        while done < count:
            piece = slice(done, done + min(builder.room, count - done))
            rows = piece.stop - piece.start
            tasks = stream(piece, builder.columns[:split])
            if master is not None:
                tasks += master(piece, builder.columns[split:])
            else:
                tasks += [partial(column.nulls, rows) for column in builder.columns[split:]]
            if rows >= _WORTH_A_THREAD:
                self._lanes.run(tasks)
            else:
                for task in tasks:
                    task()
            builder.advance(rows)
            done = piece.stop
            if builder.full:
                yield from self.flush()

    def flush(self) -> Batches:
        """Yield what has been collected, if anything."""
        batch = self._builder.flush()
        if batch is not None:
            self._metrics.rows_out += len(batch)
            self._metrics.batches_out += 1
            yield batch

    # where rows come from

    def pushed(self, batch: pa.RecordBatch, rows: Indices) -> Part:
        """Stream rows that have just been pushed."""

        def append(piece: slice, outputs: Sequence[OutputColumn]) -> list[Task]:
            pairs = zip(batch.columns, outputs, strict=True)
            return [partial(output.arrow, column, rows[piece]) for column, output in pairs]

        return append

    def waiting(self, rows: KeyedRows, slots: Slots) -> Part:
        """Stream rows in the waiting room."""

        def append(piece: slice, outputs: Sequence[OutputColumn]) -> list[Task]:
            return rows.gather(self._stream_columns, slots[piece], outputs)

        return append

    def cached(self, rows: KeyedRows, slots: Slots) -> Part:
        """Master rows in a cache, whose first columns are the output's master columns."""
        columns = range(len(self.master_columns))

        def append(piece: slice, outputs: Sequence[OutputColumn]) -> list[Task]:
            return rows.gather(columns, slots[piece], outputs)

        return append

    def mapped(self, rows: MappedRows, numbers: Indices) -> Part:
        """Master rows on disk."""

        def append(piece: slice, outputs: Sequence[OutputColumn]) -> list[Task]:
            return rows.gather(self.master_columns, numbers[piece], outputs)

        return append


def as_indices(rows: Slots | Indices) -> Indices:
    return rows.astype(np.int64, copy=False)
