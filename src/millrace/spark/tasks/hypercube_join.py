"""The stateful part of a join of several streams: in each cell of a grid, rows find those of all other inputs.

::

    new orders ─► × customers, chunk by chunk ─► a block of pairs ─► × nations, chunk by chunk ─► out; orders are kept
    new customers ─► × orders, also the new ones ─► …                                    ─► out; customers are kept
    new nations ─► × customers ─► a block of pairs ─► × orders                           ─► out; nations are kept

The inputs take turns: the new rows of each are joined with what is kept of all others, then kept themselves. So a
combination comes out once, in the turn of the last of its rows. Only rows of inputs are kept, no pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from millrace.spark.plans.hypercube_plan import Along, HypercubePlan
from millrace.spark.plans.stream_join_plan import SortedRows
from millrace.spark.state.sorted_runs import Runs
from millrace.spark.tasks.sorted_match import at_once, pairs, ranges
from millrace.spark.tasks.stateful_join import Operator
from millrace.spark.transport.output_files import WayOut

Found = dict[int, pa.RecordBatch]
"""Combinations of rows: by input, row i of each belongs to row i of the others. Codes are in front."""


class Cell(Operator):
    """Several inputs in one cell."""

    _plan: HypercubePlan

    def __init__(self, plan: HypercubePlan, way: WayOut) -> None:
        super().__init__(plan, [f"input{number}" for number in range(len(plan.schemas))], way)

    def _met(self, new: list[SortedRows], kept: list[Runs]) -> Iterator[pa.RecordBatch]:
        for number, (rows, runs) in enumerate(zip(new, kept, strict=True)):
            others = [each for each in kept if each is not runs]
            if len(rows.rows) and all(each.rows for each in others):
                yield from self._with_all({number: rows.rows}, self._plan.ways[number], kept)
            runs.add(rows)

    def _with_all(self, found: Found, ways: Sequence[Along], kept: list[Runs]) -> Iterator[pa.RecordBatch]:
        """What is found, with partners from all inputs that are still ahead: a block at a time goes on to the next."""
        if not ways:
            yield self._joined(found)
            return
        held: list[Found] = []
        size = 0
        for more in self._with_next(found, ways[0], kept[ways[0].target]):
            held.append(more)
            size += _nbytes(more)
            if size >= self._plan.block_bytes:
                yield from self._with_all(_in_one(held), ways[1:], kept)
                held, size = [], 0
        if held:
            yield from self._with_all(_in_one(held), ways[1:], kept)

    def _with_next(self, found: Found, way: Along, runs: Runs) -> Iterator[Found]:
        """What is found, with its partners from one more input."""
        codes = self._plan.codes(found[way.origin], way.ours)
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        in_order = way.theirs == self._plan.attributes[way.target][0]
        for chunk in runs.facing(codes) if in_order else runs.all():
            if in_order:
                theirs, places = chunk.codes, np.arange(len(chunk.codes), dtype=np.int32)
            else:
                theirs = self._plan.codes(chunk.rows, way.theirs)
                places = np.argsort(theirs, kind="stable").astype(np.int32)
                theirs = theirs[places]
            first, last = np.searchsorted(codes, theirs[0], "left"), np.searchsorted(codes, theirs[-1], "right")
            most = at_once(self._plan.block_bytes // 4, chunk.rows, *found.values())
            for ours, partners in pairs(*ranges(codes[first:last], theirs), places, most):
                picked = pa.array(order[first:last][ours])
                more = {number: rows.take(picked) for number, rows in found.items()}
                more[way.target] = chunk.rows.take(pa.array(partners))
                more = self._verified(more, way)
                if len(more[way.target]):
                    yield more

    def _verified(self, found: Found, way: Along) -> Found:
        """Those whose keys are equal and not only their codes."""
        coder = self._plan.coders[way.ours.dimension]
        if coder.exact:
            return found
        ours, theirs = self._plan.key(found[way.origin], way.ours), self._plan.key(found[way.target], way.theirs)
        same = coder.equal(ours, theirs)
        return found if same.all() else {number: rows.filter(pa.array(same)) for number, rows in found.items()}

    def _joined(self, found: Found) -> pa.RecordBatch:
        """Output rows: the columns of all inputs that come out, in order."""
        wanted = enumerate(self._plan.wanted)
        return self._plan.output([found[number].column(1 + place) for number, places in wanted for place in places])


def _nbytes(found: Found) -> int:
    return sum(rows.nbytes for rows in found.values())


def _in_one(held: list[Found]) -> Found:
    if len(held) == 1:
        return held[0]
    return {number: pa.concat_batches([each[number] for each in held]) for number in held[0]}
