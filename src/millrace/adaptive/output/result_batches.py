"""Output batches, which are built from row numbers, so that values are copied only for rows that are output."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.array_types import Batches, Rows
from millrace.adaptive.memory.row_sources import RowSource
from millrace.rows.batch_builder import BatchBuilder


class ResultBatches:
    """Collects output rows and yields them in batches of bounded size."""

    def __init__(self, schema: pa.Schema, metrics: AdaptiveMetrics, rows: int) -> None:
        self.schema = schema
        self._metrics = metrics
        self._builder = BatchBuilder(schema, rows)

    def _fitting(
        self, parts: Sequence[tuple[RowSource, Rows, Sequence[int]]], at: int, longest: int
    ) -> tuple[int, int]:
        """Return how many rows from ``at`` on fit into the batch (at least one), and a bound on their string bytes."""
        builder = self._builder
        rows = min(builder.room, len(parts[0][1]) - at)
        held = rows * longest
        while held > builder.bytes_left:
            held = sum(source.bytes_of(columns, all_[at : at + rows]) for source, all_, columns in parts)
            if held <= builder.bytes_left or rows == 1:
                break
            rows //= 2
        return rows, held

    def _filled(self, rows: int, held: int) -> Batches:
        """Record that ``rows`` rows with up to ``held`` bytes of strings were added; yield the batch if it is full."""
        builder = self._builder
        builder.advance(rows, held)
        builder.settle()
        if builder.full:
            yield from self.flush()

    def flush(self) -> Batches:
        """Yield the collected rows as a batch, if there are any."""
        batch = self._builder.flush()
        if batch is not None:
            self._metrics.count_output(len(batch))
            yield batch
