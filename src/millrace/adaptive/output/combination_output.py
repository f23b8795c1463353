"""Output of a join of several inputs: combinations of one row of each input."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.array_types import Batches, Rows
from millrace.adaptive.conditions.join_tree import JoinTree
from millrace.adaptive.memory.row_sources import RowSource
from millrace.adaptive.output.result_batches import ResultBatches
from millrace.rows.batch_builder import BATCH_ROWS


class CombinationOutput(ResultBatches):
    """Builds output batches from combinations of rows of all inputs."""

    def __init__(
        self,
        tree: JoinTree,
        schemas: Sequence[pa.Schema],
        columns: pa.Schema,
        metrics: AdaptiveMetrics,
        rows: int = BATCH_ROWS,
    ) -> None:
        super().__init__(columns, metrics, rows)
        self._columns = [tree.columns_out(relation, schema) for relation, schema in enumerate(schemas)]

    def combinations(self, sources: Sequence[RowSource], rows: Sequence[Rows]) -> Batches:
        """Add combinations to the output; yield full batches. Combination i is row ``rows[n][i]`` of each input n."""
        parts = list(zip(sources, rows, self._columns, strict=True))
        longest = sum(source.longest(columns) for source, _, columns in parts)
        done = 0
        while done < len(rows[0]):
            some, held = self._fitting(parts, done, longest)
            first = 0
            for source, all_, columns in parts:
                source.fill(columns, all_[done : done + some], self._builder.columns[first : first + len(columns)])
                first += len(columns)
            yield from self._filled(some, held)
            done += some
