"""Prepares the rows of a join of several streams: routes them to cells, computes their key codes, and sorts them.

Cells, dimensions and attributes are explained in :mod:`millrace.spark.plans.hypercube_plan`.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.spark.plans.hypercube_plan import Attribute, HypercubePlan
from millrace.spark.plans.stream_join_plan import CODE
from millrace.spark.state.keyed_runs import RunRows
from millrace.spark.tasks.row_layout import RoutedRows, RowLayout, all_present, cast, read_only


class HypercubeRows(RowLayout):
    """Routes each row to every cell in which it may match, and computes the key codes of its attributes."""

    def __init__(self, plan: HypercubePlan) -> None:
        self.plan: HypercubePlan = plan

    def packed_schema(self, side: int) -> pa.Schema:
        """Return the schema in which an input's rows are packed, which is the input's own schema."""
        return self.plan.input_schemas[side]

    def route(self, batch: pa.RecordBatch, side: int) -> RoutedRows:
        """Return the rows that have no null in an attribute, and the cells that each of them goes to.

        ``shards`` holds the first cell of each row. The offsets from the first cell to all cells of a row are the same
        for all rows: the cells differ in the dimensions for which the input has no attribute.
        """
        plan = self.plan
        mine = plan.attributes[side]
        keep = all_present(batch, [place for attribute in mine for place in attribute.places])
        rows = batch if keep.all() else batch.filter(pa.array(keep))
        steps = [prod(plan.parts[dimension + 1 :]) for dimension in range(len(plan.parts))]
        cell = np.zeros(len(rows), np.int64)
        for attribute in mine:
            cell += steps[attribute.dimension] * self._part(rows, attribute)
        present = {attribute.dimension for attribute in mine}
        lacking = [
            range(0, steps[dimension] * size, steps[dimension])
            for dimension, size in enumerate(plan.parts)
            if dimension not in present
        ]
        return RoutedRows(rows, cell, tuple(map(sum, product(*lacking))))

    def _part(self, rows: pa.RecordBatch, attribute: Attribute) -> npt.NDArray[np.int64]:
        """Return the number of each row's part in the dimension of an attribute.

        Each dimension uses different bits of the hash. Otherwise, rows with equal values in two dimensions would all be
        in cells on the diagonal.
        """
        hashes = self.plan.coders[attribute.dimension].hashes(self.key(rows, attribute, 0))
        return (hashes >> (7 * attribute.dimension % 49)) % self.plan.parts[attribute.dimension]

    def key(self, rows: pa.RecordBatch, attribute: Attribute, ahead: int = 1) -> list[pa.Array]:
        """Return the columns of an attribute, in the types of its dimension.

        ``ahead`` is the number of columns in front of the input's own.
        """
        columns = [rows.column(place + ahead) for place in attribute.places]
        return cast(columns, self.plan.coders[attribute.dimension].types)

    def codes(self, rows: pa.RecordBatch, attribute: Attribute, ahead: int = 1) -> npt.NDArray[np.int64]:
        """Return the key code of an attribute for every row; ``ahead`` columns precede the input's own."""
        return self.plan.coders[attribute.dimension].codes(self.key(rows, attribute, ahead))[0]

    def code(self, rows: pa.RecordBatch, side: int) -> RunRows:
        """Return packed rows with the key codes of the input's first attribute, sorted by code."""
        codes = self.codes(rows, self.plan.attributes[side][0], 0)
        return self.restore(rows.add_column(0, CODE, pa.array(codes, pa.int64())), side)

    def restore(self, rows: pa.RecordBatch, side: int, *, sort: bool = True) -> RunRows:
        """Convert rows, with the key code as first column, to :class:`RunRows`; sort them unless ``sort`` is False."""
        codes = read_only(rows.column(0).to_numpy())
        if sort and len(rows):
            order = np.argsort(codes, kind="stable")
            rows, codes = rows.take(pa.array(order)), read_only(codes[order])
        return RunRows(rows, codes, None)
