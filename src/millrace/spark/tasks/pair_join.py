"""Joins the new rows of two streams, block by block, with each other and with the rows of earlier blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from millrace.spark.plans.pair_plan import LEFT, RIGHT, SIDES, PairPlan
from millrace.spark.state.keyed_runs import RunRows
from millrace.spark.state.sorted_runs import SortedRuns
from millrace.spark.tasks.pair_rows import PairRows
from millrace.spark.tasks.sorted_match import matches


class PairJoin:
    """The join of two streams in one shard."""

    state_names: tuple[str, ...] = SIDES

    def __init__(self, plan: PairPlan) -> None:
        self.layout = PairRows(plan)

    def join(self, new: list[RunRows], kept: list[SortedRuns]) -> Iterator[pa.RecordBatch]:
        """Yield each new match once, then add the new rows to ``kept``."""
        left, right = new
        for chunk in kept[RIGHT].overlapping(left.codes):
            yield from matches(self.layout, left, chunk)
        for chunk in kept[LEFT].overlapping(right.codes):
            yield from matches(self.layout, chunk, right)
        yield from matches(self.layout, left, right)
        for runs, rows in zip(kept, new, strict=True):
            runs.add(rows)
