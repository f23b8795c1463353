"""Output of a join of two inputs: pairs of rows, and unmatched rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.array_types import Batches, Rows
from millrace.adaptive.conditions.pair_spec import PairSpec
from millrace.adaptive.memory.key_ordered_rows import MATCHED
from millrace.adaptive.memory.row_sources import RowSource
from millrace.adaptive.output.result_batches import ResultBatches
from millrace.core.errors import SchemaError
from millrace.kernels import bands
from millrace.rows.batch_builder import BATCH_ROWS
from millrace.rows.columns import OutputColumn


class PairOutput(ResultBatches):
    """Builds output batches from pairs of rows of two inputs, and from unmatched rows."""

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
        """Map left key columns to the right key columns that supply their values for unmatched right rows."""
        if self._spec.how not in ("right", "full") or not len(right):
            return {}
        pairs = list(zip(*self._spec.keys, strict=True))
        for ours, theirs in pairs:
            if left.field(ours).type != right.field(theirs).type:
                raise SchemaError(
                    f"right: key column {theirs!r} is {right.field(theirs).type}, but {ours!r} of the left input is "
                    f"{left.field(ours).type}; a {self._spec.how} join outputs both in one column, so cast one of them"
                )
        return {left.get_field_index(ours): right.get_field_index(theirs) for ours, theirs in pairs}

    def pairs(self, left: RowSource, left_rows: Rows, right: RowSource, right_rows: Rows) -> Batches:
        """Emit the pairs of ``left_rows[i]`` and ``right_rows[i]``, and mark rows as matched if the join needs that.

        A semi join emits only the left rows, each once. An anti join emits nothing here.
        """
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

    def unmatched(self, side: int, source: RowSource, rows: Rows) -> Batches:
        """Emit unmatched rows of one side."""
        if side == 0:
            yield from self._emit(source, rows, None, None)
        else:
            yield from self._emit(None, None, source, rows)

    def _emit(
        self, left: RowSource | None, left_rows: Rows | None, right: RowSource | None, right_rows: Rows | None
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
            yield from self._filled(rows, held)
            done += rows

    def _without_left(self, right: RowSource, rows: Rows, outputs: Sequence[OutputColumn]) -> None:
        """Fill left columns with nulls, except for key columns, which get the values of the right rows."""
        for i, output in enumerate(outputs):
            if i in self._keys:
                values = right.values([self._keys[i]], rows)[0]
                output.arrow(values if values.type == output.type else values.cast(output.type), None)
            else:
                output.nulls(len(rows))
