"""From index pairs to record batches: columns are gathered once, late, for rows that really come out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.memory.sorted_rows import MATCHED, Bits, SortedRows
from millrace.adaptive.pair.pair_spec import PairSpec
from millrace.core.errors import SchemaError
from millrace.kernels import bands
from millrace.rows.batch_builder import BATCH_ROWS, BatchBuilder
from millrace.rows.columns import OutputColumn, bytes_pieces, output_column, shape_of

Batches = Iterator[pa.RecordBatch]
Rows = npt.NDArray[np.int32]


class Source(Protocol):
    """Rows of one side, wherever they are, by number."""

    @property
    def bits(self) -> Bits:
        """Per row, whether it has found a partner."""
        ...

    def longest(self, columns: Sequence[int]) -> int:
        """No row holds more bytes than this in strings and binary."""
        ...

    def bytes_of(self, columns: Sequence[int], rows: Rows) -> int:
        """Bytes that strings and binary of some rows hold."""
        ...

    def fill(self, columns: Sequence[int], rows: Rows, outputs: Sequence[OutputColumn]) -> None:
        """Append some rows to output columns."""
        ...

    def values(self, columns: Sequence[int], rows: Rows) -> list[pa.Array]:
        """Columns of some rows."""
        ...


class BatchSource:
    """Rows of a record batch: just pushed, or loaded from disk."""

    def __init__(self, batch: pa.RecordBatch, bits: Bits) -> None:
        self.batch, self.bits = batch, bits

    @cached_property
    def _lengths(self) -> dict[int, npt.NDArray[np.int32]]:
        columns = enumerate(self.batch.columns)
        return {i: bytes_pieces(column)[2] for i, column in columns if shape_of(column.type) == "bytes"}

    def longest(self, columns: Sequence[int]) -> int:
        return sum(int(self._lengths[i].max(initial=0)) for i in columns if i in self._lengths)

    def bytes_of(self, columns: Sequence[int], rows: Rows) -> int:
        return sum(int(self._lengths[i][rows].sum(dtype=np.int64)) for i in columns if i in self._lengths)

    def fill(self, columns: Sequence[int], rows: Rows, outputs: Sequence[OutputColumn]) -> None:
        for i, output in zip(columns, outputs, strict=True):
            output.arrow(self.batch.column(i), rows)  # type: ignore[arg-type]

    def values(self, columns: Sequence[int], rows: Rows) -> list[pa.Array]:
        return [self.batch.column(i).take(pa.array(rows)) for i in columns]


class MemorySource:
    """Rows in memory, by slot."""

    def __init__(self, rows: SortedRows) -> None:
        self._rows = rows

    @property
    def bits(self) -> Bits:
        return self._rows.bits

    def longest(self, columns: Sequence[int]) -> int:
        return self._rows.arena.longest(columns)

    def bytes_of(self, columns: Sequence[int], rows: Rows) -> int:
        return self._rows.arena.bytes_of(columns, rows)

    def fill(self, columns: Sequence[int], rows: Rows, outputs: Sequence[OutputColumn]) -> None:
        for task in self._rows.gather(columns, rows, outputs):
            task()

    def values(self, columns: Sequence[int], rows: Rows) -> list[pa.Array]:
        outputs = [output_column(self._rows.schema.field(i).type, len(rows)) for i in columns]
        self.fill(columns, rows, outputs)
        return [output.finish() for output in outputs]


class Output:
    """Collects rows of a result and yields them in batches of bounded size."""

    def __init__(self, schema: pa.Schema, metrics: AdaptiveMetrics, rows: int) -> None:
        self.schema = schema
        self._metrics = metrics
        self._builder = BatchBuilder(schema, rows)

    def _fitting(self, parts: Sequence[tuple[Source, Rows, Sequence[int]]], at: int, longest: int) -> tuple[int, int]:
        """How many of the next rows the batch has room for, at least one, and the most bytes their strings hold."""
        builder = self._builder
        rows = min(builder.room, len(parts[0][1]) - at)
        held = rows * longest
        while held > builder.bytes_left:
            held = sum(source.bytes_of(columns, all_[at : at + rows]) for source, all_, columns in parts)
            if held <= builder.bytes_left or rows == 1:
                break
            rows //= 2
        return rows, held

    def _put(self, rows: int, held: int) -> Batches:
        """So many rows have been filled in."""
        builder = self._builder
        builder.advance(rows, held)
        builder.settle()
        if builder.full:
            yield from self.flush()

    def flush(self) -> Batches:
        """Yield what has been collected, if anything."""
        batch = self._builder.flush()
        if batch is not None:
            self._metrics.rows_out += len(batch)
            self._metrics.batches_out += 1
            yield batch


class PairOutput(Output):
    """Rows of two inputs, with each other or alone."""

    def __init__(
        self, spec: PairSpec, left: pa.Schema, right: pa.Schema | None, metrics: AdaptiveMetrics, rows: int = BATCH_ROWS
    ) -> None:
        theirs = pa.schema([]) if right is None else right
        super().__init__(spec.output_schema(left, theirs), metrics, rows)
        self._spec = spec
        self._columns = (list(range(len(left))), spec.right_columns(theirs))
        self._keys = {} if spec.ranged else self._right_keys(left, theirs)
        self._left = left

    def _right_keys(self, left: pa.Schema, right: pa.Schema) -> dict[int, int]:
        """Left key columns, and the right ones that have their values where there is no left row."""
        if self._spec.how not in ("right", "full") or not len(right):
            return {}
        pairs = list(zip(*self._spec.keys, strict=True))
        for ours, theirs in pairs:
            if left.field(ours).type != right.field(theirs).type:
                raise SchemaError(
                    f"right: key column {theirs!r} is {right.field(theirs).type}, but the left's {ours!r} is "
                    f"{left.field(ours).type}; a {self._spec.how} join puts both into one column, so cast one of them"
                )
        return {left.get_field_index(ours): right.get_field_index(theirs) for ours, theirs in pairs}

    def pairs(self, left: Source, left_rows: Rows, right: Source, right_rows: Rows) -> Batches:
        """Row i of the one with row i of the other: they have met."""
        how = self._spec.how
        if how in ("semi", "anti"):
            fresh = np.empty(len(left_rows), np.int64)
            found = bands.set_fresh(left.bits, left_rows, MATCHED, fresh)
            if how == "semi":
                yield from self._emit(left, left_rows[fresh[:found]], None, None)
            return
        for side, source, rows in ((0, left, left_rows), (1, right, right_rows)):
            if self._spec.keeps(side):
                bands.set_bits(source.bits, rows, MATCHED)
        yield from self._emit(left, left_rows, right, right_rows)

    def alone(self, side: int, source: Source, rows: Rows) -> Batches:
        """Rows of one side that have no partner."""
        if side == 0:
            yield from self._emit(source, rows, None, None)
        else:
            yield from self._emit(None, None, source, rows)

    def _emit(
        self, left: Source | None, left_rows: Rows | None, right: Source | None, right_rows: Rows | None
    ) -> Batches:
        builder, split = self._builder, len(self._left)
        parts = [
            (source, rows, columns)
            for source, rows, columns in zip((left, right), (left_rows, right_rows), self._columns, strict=True)
            if source is not None and rows is not None
        ]
        count = len(parts[0][1]) if parts else 0
        longest = sum(source.longest(columns) for source, _, columns in parts)
        done = 0
        while done < count:
            rows, held = self._fitting(parts, done, longest)
            ours, theirs = builder.columns[:split], builder.columns[split:]
            if left is not None and left_rows is not None:
                left.fill(self._columns[0], left_rows[done : done + rows], ours)
            else:
                assert right is not None
                assert right_rows is not None
                self._without_left(right, right_rows[done : done + rows], ours)
            if right is not None and right_rows is not None:
                right.fill(self._columns[1], right_rows[done : done + rows], theirs)
            else:
                for column in theirs:
                    column.nulls(rows)
            yield from self._put(rows, held)
            done += rows

    def _without_left(self, right: Source, rows: Rows, outputs: Sequence[OutputColumn]) -> None:
        """Left columns are null, but for the key, which the right row knows."""
        for i, output in enumerate(outputs):
            if i in self._keys:
                values = right.values([self._keys[i]], rows)[0]
                output.arrow(values if values.type == output.type else values.cast(output.type), None)
            else:
                output.nulls(len(rows))
