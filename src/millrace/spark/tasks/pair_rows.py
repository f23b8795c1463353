"""Prepares the rows of a join of two streams: routes them to shards, computes their key codes, and sorts them.

For a band join, it also computes the bucket of each row and the interval of right values that each left row matches.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.spark.plans.pair_plan import BUCKET, LEFT, PairPlan
from millrace.spark.plans.stream_join_plan import CODE
from millrace.spark.state.keyed_runs import RunRows
from millrace.spark.tasks.row_layout import RoutedRows, RowLayout, all_present, cast, read_only


class PairRows(RowLayout):
    """Routes and sorts the rows of two inputs. With a band, copies each left row to every bucket where it may match."""

    def __init__(self, plan: PairPlan) -> None:
        self.plan: PairPlan = plan

    def packed_schema(self, side: int) -> pa.Schema:
        """Return the schema in which a side's rows are packed: its own columns and, with a band, the bucket."""
        schema = self.plan.input_schemas[side]
        return schema if self.plan.band is None else schema.append(pa.field(BUCKET, pa.int64()))

    def route(self, batch: pa.RecordBatch, side: int) -> RoutedRows:
        """Return the rows of a side that may match a row of the other side, and the shards of their keys."""
        rows = self._with_buckets(batch, side)
        return RoutedRows(rows, self.plan.coder.shards(self.key_columns(rows, side), self.plan.shards), (0,))

    def _with_buckets(self, batch: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """Return the rows that may match, with their bucket if there is a band. Rows with null keys are left out."""
        plan = self.plan
        keep = all_present(batch, [*plan.keys[side], *([] if plan.banded is None else [plan.banded[side]])])
        if plan.band is None or plan.banded is None:
            return batch if keep.all() else batch.filter(pa.array(keep))
        values = plan.band.values(batch.column(plan.banded[side]))
        keep &= ~plan.band.without_partner(values, side == LEFT)
        rows = np.flatnonzero(keep)
        if side == LEFT:
            picked, buckets = plan.band.copies(values[rows])
            rows = rows[picked]
        else:
            buckets = plan.band.buckets(values[rows])
        return batch.take(pa.array(rows)).append_column(BUCKET, pa.array(buckets, pa.int64()))

    def key_columns(self, rows: pa.RecordBatch, side: int, ahead: int = 0) -> list[pa.Array]:
        """Return the key columns of the rows, in the types that both sides have in common.

        ``ahead`` is the number of columns in front of the input's own.
        """
        columns = [rows.column(place + ahead) for place in self.plan.keys[side]]
        if self.plan.band is not None:
            columns.append(rows.column(rows.num_columns - 1))
        return cast(columns, self.plan.coder.types)

    def code(self, rows: pa.RecordBatch, side: int) -> RunRows:
        """Return packed rows with their key codes, sorted by code."""
        codes, _ = self.plan.coder.codes(self.key_columns(rows, side))
        return self.restore(rows.add_column(0, CODE, pa.array(codes, pa.int64())), side)

    def restore(self, rows: pa.RecordBatch, side: int, *, sort: bool = True) -> RunRows:
        """Convert rows, with the key code as first column, to :class:`RunRows`; sort them unless ``sort`` is False."""
        plan = self.plan
        codes = read_only(rows.column(0).to_numpy())
        values = None
        if plan.band is not None and plan.banded is not None:
            values = plan.band.values(rows.column(plan.banded[side] + 1))
        if sort and len(rows):
            order = np.argsort(codes, kind="stable") if values is None else np.lexsort((values, codes))
            rows, codes = rows.take(pa.array(order)), read_only(codes[order])
            values = None if values is None else values[order]
        if values is None or plan.band is None:
            return RunRows(rows, codes, None)
        firsts, lasts = plan.band.reach(values) if side == LEFT else (values, values)
        return RunRows(rows, codes, (read_only(firsts), read_only(lasts)))

    def joined(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Return output rows that join row i of ``left`` to row i of ``right``. Both begin with a key-code column."""
        count = len(self.plan.input_schemas[LEFT])
        return self.output(left.columns[1 : 1 + count] + [right.column(1 + place) for place in self.plan.right_columns])
