"""Output batches from index pairs: columns are gathered late, once, and only for rows of the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from millrace.core.lanes import Lanes, Task
from millrace.core.metrics import JoinMetrics
from millrace.core.spec import JoinSpec
from millrace.master.read.mapped_rows import MappedRows
from millrace.rows.arena import Slots
from millrace.rows.batch_builder import BATCH_ROWS, BatchBuilder
from millrace.rows.columns import Indices, OutputColumn, bytes_pieces, shape_of
from millrace.rows.keyed_rows import KeyedRows


class OutputRows(Protocol):
    """The columns of one side, stream or master, in some output rows, with the methods that copy their values."""

    lasts: bool
    """Whether the values stay valid, whatever the join does next."""

    def longest(self) -> int:
        """Return an upper bound of the bytes that the strings and binary values of a row take."""
        ...

    def bytes_of(self, piece: slice) -> int:
        """Return the bytes that the strings and binary values of the rows in ``piece`` take."""
        ...

    def tasks(self, piece: slice, outputs: Sequence[OutputColumn]) -> list[Task]:
        """Return tasks that append the rows in ``piece`` to the output columns of this side."""
        ...


Batches = Iterator[pa.RecordBatch]

_WORTH_A_THREAD = 8192  # rows below which waking a second thread costs more than it saves


class JoinOutput:
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

    def emit(self, count: int, stream: OutputRows, master: OutputRows | None) -> Batches:
        """Append ``count`` rows and yield full batches; without ``master`` the master's columns are null.

        Stream rows are copied before the call ends. Master rows whose values stay valid may be gathered by a second
        thread after that.
        """
        builder, split = self._builder, len(self._stream_columns)
        later = master is not None and master.lasts
        if not later:
            self._wait_for_columns()
        done = 0
        while done < count:
            if builder.opaque:
                self._wait_for_columns()
            rows, nbytes = self._next_piece(done, min(builder.room, count - done), stream, master)
            piece = slice(done, done + rows)
            stream_columns, master_columns = builder.columns[:split], builder.columns[split:]
            tasks = stream.tasks(piece, stream_columns)
            if master is None:
                tasks += [partial(column.nulls, rows) for column in master_columns]
            elif not later:
                tasks += master.tasks(piece, master_columns)
            if rows >= _WORTH_A_THREAD and not later:
                self._lanes.run(tasks)
            else:
                for task in tasks:
                    task()
            if later and master is not None:
                gathering = partial(_gather, master, piece, master_columns)
                if rows >= _WORTH_A_THREAD:
                    self._lanes.submit(gathering)
                else:
                    self._lanes.wait()  # earlier rows come first
                    gathering()
            builder.advance(rows, nbytes)
            done = piece.stop
            if builder.full:
                yield from self.flush()

    def _wait_for_columns(self) -> None:
        """Wait until the second thread has gathered its rows, so that all columns are complete and have known sizes."""
        self._lanes.wait()
        self._builder.settle()

    def _next_piece(self, done: int, rows: int, stream: OutputRows, master: OutputRows | None) -> tuple[int, int]:
        """Return how many rows to append next, at least one, and an upper bound of the bytes of their strings."""
        longest = stream.longest() + (master.longest() if master else 0)
        if rows * longest <= self._builder.bytes_left:
            return rows, rows * longest
        self._wait_for_columns()
        while True:
            piece = slice(done, done + rows)
            nbytes = stream.bytes_of(piece) + (master.bytes_of(piece) if master else 0)
            if nbytes <= self._builder.bytes_left or rows == 1:
                return rows, nbytes
            rows //= 2

    def flush(self) -> Batches:
        """Yield the collected rows as one batch, if there are any."""
        self._wait_for_columns()
        batch = self._builder.flush()
        if batch is not None:
            self._metrics.rows_out += len(batch)
            self._metrics.batches_out += 1
            yield batch

    # where rows come from

    def pushed(self, batch: pa.RecordBatch, rows: Indices) -> OutputRows:
        """Return stream rows that have just been pushed, as rows of the output."""
        return _PushedRows(batch, rows)

    def waiting(self, rows: KeyedRows, slots: Slots) -> OutputRows:
        """Return stream rows kept in the waiting room or the order buffer, as rows of the output."""
        return _RowsInMemory(rows, self._stream_columns, slots)

    def cached(self, rows: KeyedRows, slots: Slots) -> OutputRows:
        """Return cached master rows, whose first columns are those of the output, as rows of the output."""
        return _RowsInMemory(rows, range(len(self.master_columns)), slots)

    def mapped(self, rows: MappedRows, numbers: Indices) -> OutputRows:
        """Return master rows on disk, as rows of the output."""
        return _RowsOnDisk(rows, self.master_columns, numbers)


def _gather(part: OutputRows, piece: slice, outputs: Sequence[OutputColumn]) -> None:
    for task in part.tasks(piece, outputs):
        task()


class _PushedRows:
    lasts = False

    def __init__(self, batch: pa.RecordBatch, rows: Indices) -> None:
        self._batch, self._rows = batch, rows
        self._lengths = [bytes_pieces(c)[2] for c in batch.columns if shape_of(c.type) == "bytes"]

    def longest(self) -> int:
        return sum(int(lengths.max(initial=0)) for lengths in self._lengths)

    def bytes_of(self, piece: slice) -> int:
        return sum(int(lengths[self._rows[piece]].sum(dtype=np.int64)) for lengths in self._lengths)

    def tasks(self, piece: slice, outputs: Sequence[OutputColumn]) -> list[Task]:
        rows = self._rows[piece]
        pairs = zip(self._batch.columns, outputs, strict=True)
        return [partial(output.arrow, column, rows) for column, output in pairs]


class _RowsInMemory:
    lasts = False

    def __init__(self, rows: KeyedRows, columns: Sequence[int], slots: Slots) -> None:
        self._rows, self._columns, self._slots = rows, columns, slots

    def longest(self) -> int:
        return self._rows.longest(self._columns)

    def bytes_of(self, piece: slice) -> int:
        return self._rows.bytes_of(self._columns, self._slots[piece])

    def tasks(self, piece: slice, outputs: Sequence[OutputColumn]) -> list[Task]:
        return self._rows.gather(self._columns, self._slots[piece], outputs)


class _RowsOnDisk:
    lasts = True

    def __init__(self, rows: MappedRows, columns: Sequence[int], numbers: Indices) -> None:
        self._rows, self._columns, self._numbers = rows, columns, numbers

    def longest(self) -> int:
        return self._rows.longest(self._columns)

    def bytes_of(self, piece: slice) -> int:
        return self._rows.bytes_of(self._columns, self._numbers[piece])

    def tasks(self, piece: slice, outputs: Sequence[OutputColumn]) -> list[Task]:
        return self._rows.gather(self._columns, self._numbers[piece], outputs)


def as_indices(rows: Slots | Indices) -> Indices:
    """Return slots as 64-bit indices."""
    return rows.astype(np.int64, copy=False)
