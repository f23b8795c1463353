"""Joins the new rows of several streams in one cell of the grid, block by block, with each other and earlier rows.

::

    new orders ─► × customers, chunk by chunk ─► a block of pairs ─► × nations, chunk by chunk ─► out; orders are stored
    new customers ─► × orders, also the new ones ─► …                                    ─► out; customers are stored
    new nations ─► × customers ─► a block of pairs ─► × orders                           ─► out; nations are stored

The inputs are processed one after the other: the new rows of an input are joined with the stored rows of all others,
then stored themselves. So a combination is output once, when the last of its rows is processed. Only rows of inputs are
stored, not their combinations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from millrace.spark.plans.hypercube_plan import HypercubePlan, JoinStep
from millrace.spark.state.keyed_runs import RunRows
from millrace.spark.state.sorted_runs import SortedRuns
from millrace.spark.tasks.hypercube_rows import HypercubeRows
from millrace.spark.tasks.sorted_match import code_ranges, pairs, pairs_in

Combinations = dict[int, pa.RecordBatch]
"""Combinations of rows: a mapping from input numbers to batches. Combination i consists of row i of every batch. The
first column of a batch is the key code."""


class HypercubeJoin:
    """The join of several streams in one cell of the grid."""

    def __init__(self, plan: HypercubePlan) -> None:
        self.layout = HypercubeRows(plan)
        self._plan = plan

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the inputs' state variables."""
        return tuple(f"input{number}" for number in range(len(self._plan.schemas)))

    def join(self, new: list[RunRows], kept: list[SortedRuns]) -> Iterator[pa.RecordBatch]:
        """Yield each new combination of rows once; add each input's new rows to ``kept`` after joining them."""
        for number, (rows, runs) in enumerate(zip(new, kept, strict=True)):
            others = [each for each in kept if each is not runs]
            if len(rows.rows) and all(each.rows for each in others):
                yield from self._with_all({number: rows.rows}, self._plan.steps[number], kept)
            runs.add(rows)

    def _with_all(
        self, found: Combinations, steps: Sequence[JoinStep], kept: list[SortedRuns]
    ) -> Iterator[pa.RecordBatch]:
        """Extend the combinations ``found`` by matching rows of one more input per step; yield the output rows."""
        if not steps:
            yield self._output(found)
            return
        pending: list[Combinations] = []
        size = 0
        for more in self._with_next(found, steps[0], kept[steps[0].target]):
            pending.append(more)
            size += _nbytes(more)
            if size >= self._plan.block_bytes:
                yield from self._with_all(_concatenated(pending), steps[1:], kept)
                pending, size = [], 0
        if pending:
            yield from self._with_all(_concatenated(pending), steps[1:], kept)

    def _with_next(self, found: Combinations, step: JoinStep, runs: SortedRuns) -> Iterator[Combinations]:
        """Yield the combinations ``found``, each extended by every matching row of one more input, piece by piece."""
        codes = self.layout.codes(found[step.origin], step.origin_attribute)
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        in_order = step.target_attribute == self._plan.attributes[step.target][0]
        for chunk in runs.overlapping(codes) if in_order else runs.all():
            if in_order:
                theirs, places = chunk.codes, np.arange(len(chunk.codes), dtype=np.int32)
            else:
                theirs = self.layout.codes(chunk.rows, step.target_attribute)
                places = np.argsort(theirs, kind="stable").astype(np.int32)
                theirs = theirs[places]
            first, last = np.searchsorted(codes, theirs[0], "left"), np.searchsorted(codes, theirs[-1], "right")
            most = pairs_in(self._plan.block_bytes // 4, chunk.rows, *found.values())
            for ours, partners in pairs(*code_ranges(codes[first:last], theirs), places, most):
                picked = pa.array(order[first:last][ours])
                more = {number: rows.take(picked) for number, rows in found.items()}
                more[step.target] = chunk.rows.take(pa.array(partners))
                more = self._verified(more, step)
                if len(more[step.target]):
                    yield more

    def _verified(self, found: Combinations, step: JoinStep) -> Combinations:
        """Return the combinations in which the keys are equal, not only the key codes."""
        coder = self._plan.coders[step.origin_attribute.dimension]
        if coder.exact:
            return found
        ours = self.layout.key(found[step.origin], step.origin_attribute)
        theirs = self.layout.key(found[step.target], step.target_attribute)
        same = coder.equal(ours, theirs)
        return found if same.all() else {number: rows.filter(pa.array(same)) for number, rows in found.items()}

    def _output(self, found: Combinations) -> pa.RecordBatch:
        """Return combinations as output rows, with the output columns of all inputs in order."""
        by_input = enumerate(self._plan.output_places)
        return self.layout.output([found[number].column(1 + place) for number, places in by_input for place in places])


def _nbytes(found: Combinations) -> int:
    return sum(rows.nbytes for rows in found.values())


def _concatenated(pending: list[Combinations]) -> Combinations:
    if len(pending) == 1:
        return pending[0]
    return {number: pa.concat_batches([each[number] for each in pending]) for number in pending[0]}
