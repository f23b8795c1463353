"""The inputs of a multiway join, and combinations of their rows, which are extended one input at a time.

::

    rows of the first ──condition──► + rows of the second ──condition──► + rows of the third … ──► out
         a limited number at a time, so that each step has room for its combinations
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.array_types import Batches, Codes, Counts, Mask, Rows
from millrace.adaptive.conditions.join_tree import EdgeEnd, JoinTree, TreeStep
from millrace.adaptive.conditions.key_matching import KeyMatching
from millrace.adaptive.inputs.block_buffers import BlockBuffers
from millrace.adaptive.inputs.coded_rows import CodedRows, LoadedRows, MemoryRows
from millrace.adaptive.inputs.input_side import InputSide, MemoryState
from millrace.adaptive.inputs.join_inputs import JoinInputs
from millrace.adaptive.memory.code_ranges import CodeRanges
from millrace.adaptive.memory.indexed_rows import IndexedRows
from millrace.adaptive.memory.key_ordered_rows import FIRST, LAST
from millrace.adaptive.memory.row_index import Workspace
from millrace.adaptive.output.combination_output import CombinationOutput
from millrace.core.budget import MemoryBudget
from millrace.rows.arena import Slots

Combination = list[Rows]
"""Row numbers by input: item i of each array belongs to combination i. Inputs not joined yet have empty arrays."""

Relation = InputSide[IndexedRows]
"""One input of a multiway join."""

NO_ROWS: Rows = np.empty(0, np.int32)


class MultiwayInputs(JoinInputs[IndexedRows]):
    """The inputs of a multiway join.

    Parameters
    ----------
    tree
        The join conditions.
    matchings
        The key matching of each condition.
    pairs
        Maximum number of pairs of rows that are processed together at each step.
    """

    def __init__(
        self,
        sides: list[Relation],
        tree: JoinTree,
        matchings: list[KeyMatching],
        pairs: int,
        budget: MemoryBudget,
        metrics: AdaptiveMetrics,
        buffers: BlockBuffers,
        partitions: CodeRanges,
        seed: int,
    ) -> None:
        super().__init__(sides, budget, metrics, buffers, partitions, seed)
        self.tree, self.matchings = tree, matchings
        self.output: CombinationOutput | None = None
        """The builder of output batches; None until the output columns are known."""
        self.in_memory = [MemoryRows(side.memory) for side in sides]
        """Rows in memory, per input."""
        self._workspaces = [Workspace(pairs) for _ in tree.edges]  # one per step, because steps are interleaved
        self.local_joins: Counts = np.zeros(len(tree.edges), np.int64)
        """Number of pairs of rows in memory that have matched, per condition; MINER sets it to zero at each flush."""

    def set_side(self, number: int, side: Relation) -> None:
        super().set_side(number, side)
        self.in_memory[number] = MemoryRows(side.memory)

    def set_output(self, output: CombinationOutput) -> None:
        """Set the builder of output batches, once the output columns are known."""
        self.output = output

    # rows of an input

    def codes_of(self, relation: int, batch: pa.RecordBatch) -> tuple[Codes, Mask | None]:
        """Return key codes by attribute and row, and a mask of rows with valid keys only, or None if all are valid."""
        found, valid = [], None
        for attribute in range(len(self.tree.attributes[relation])):
            codes, there = self._codes(relation, attribute, batch)
            found.append(codes)
            if there is not None:
                valid = there if valid is None else valid & there
        return np.stack(found), valid

    def _codes(self, relation: int, attribute: int, batch: pa.RecordBatch) -> tuple[Codes, Mask | None]:
        """Return the key codes of one attribute, and a mask of the valid keys, which is None if all are valid.

        All conditions on the attribute use the same codes.
        """
        edge = next(step.edge for step in self.tree.steps_from(relation) if step.origin.attribute == attribute)
        columns = self.tree.attributes[relation][attribute]
        return self.matchings[edge].codes([batch.column(column) for column in columns])

    def load_rows(self, relation: Relation, partition: int, places: Sequence[int]) -> LoadedRows:
        """Read the blocks at ``places`` in a partition's list; return the rows with the key codes of all attributes."""
        rows = relation.disk.load(partition, places)
        others = range(1, len(self.tree.attributes[relation.number]))
        return LoadedRows.of(rows, [self._codes(relation.number, each, rows.source.batch)[0] for each in others])

    # combinations

    def steps_from(self, relation: int) -> list[TreeStep]:
        """Return the steps from one input to all others, the most selective conditions first."""
        held = [len(side.memory) for side in self.sides]
        costs = []
        for edge in self.tree.edges:
            pairs = held[edge.ends[0].relation] * held[edge.ends[1].relation]
            costs.append(float(self.local_joins[edge.number]) / pairs if pairs else 0.0)
        return self.tree.order(relation, costs)

    def combinations(
        self, parts: Sequence[CodedRows], start: int, rows: Rows, steps: Sequence[TreeStep], counted: bool = False
    ) -> Iterator[Combination]:
        """Yield all combinations of rows that contain the given rows of one input, a limited number at a time.

        Parameters
        ----------
        parts
            The rows to join, per input.
        start
            Number of the input whose ``rows`` are given.
        steps
            Steps from this input to all others.
        counted
            Whether to count matches in ``local_joins``.
        """
        first = [rows if relation == start else NO_ROWS for relation in range(len(parts))]
        return self._extend(parts, first, steps, 0, counted)

    def _extend(
        self, parts: Sequence[CodedRows], rows: Combination, steps: Sequence[TreeStep], at: int, counted: bool
    ) -> Iterator[Combination]:
        if at == len(steps):
            yield rows
            return
        step = steps[at]
        origin, target, matching = step.origin.relation, step.target.relation, self.matchings[step.edge]
        codes = parts[origin].codes(step.origin.attribute)[rows[origin]]
        order = np.lexsort((rows[origin], codes))
        codes, own = codes[order], rows[origin][order]
        fresh = np.ones(len(own), np.bool_)
        fresh[1:] = own[1:] != own[:-1]
        lows, highs = matching.ranges(step.side, codes)
        for found in parts[target].matches(step.target.attribute, lows, highs, self._workspaces[at]):
            behind, theirs = found.rows, found.slots
            real = self._verified(step, parts, own[behind], codes[behind], theirs, found.keys)
            if real is not None:
                behind, theirs = behind[real], theirs[real]
            if not len(behind):
                continue
            if counted:
                self.local_joins[step.edge] += int(fresh[behind].sum())
            before = order[behind]
            more = [each[before] if len(each) else each for each in rows]
            more[target] = theirs
            yield from self._extend(parts, more, steps, at + 1, counted)

    def _verified(
        self, step: TreeStep, parts: Sequence[CodedRows], rows: Rows, codes: Codes, others: Rows, other_codes: Codes
    ) -> Mask | None:
        """Return a mask of the pairs whose keys match, given pairs whose codes match. None means that all do."""
        ends = (step.origin, step.target)
        values = [
            lambda end=end, numbers=numbers: parts[end.relation].source.values(self._columns(end), numbers)
            for end, numbers in zip(ends, (rows, others), strict=True)
        ]
        if step.side == 0:
            return self.matchings[step.edge].verified(codes, other_codes, values[0], values[1])
        return self.matchings[step.edge].verified(other_codes, codes, values[1], values[0])

    def _columns(self, end: EdgeEnd) -> list[int]:
        schema = self.sides[end.relation].schema
        return [schema.get_field_index(name) for name in self.tree.attributes[end.relation][end.attribute]]

    def emit(self, parts: Sequence[CodedRows], rows: Combination) -> Batches:
        """Add combinations to the output, and yield the batches that become full."""
        assert self.output is not None
        yield from self.output.combinations([part.source for part in parts], rows)

    # memory and disk

    def spill_slots(self, relation: Relation, slots: Slots, partition: int = 0) -> None:
        """Write rows to disk; the indexes must not contain them any more."""
        self.spill(relation, relation.memory.codes[0][slots], slots, partition)

    def spill_rest(self) -> None:
        """Write all rows in memory to disk if any rows are on disk; then reserve all free memory for blocks."""
        if any(relation.disk.rows for relation in self.sides):
            for relation in self.sides:
                for partition in range(self.partitions.count):
                    low, high = self.partitions.bounds(partition)
                    while True:
                        _, slots = relation.memory.take_out(low, high, 64 * relation.block_rows)
                        if not len(slots):
                            break
                        self.spill_slots(relation, slots, partition)
                relation.memory.pack()
        self.buffers.take_rest()

    def _insert(self, side: Relation, kept: MemoryState) -> bool:
        memory = side.memory
        order = np.argsort(kept.stamps)  # equal keys must be in order of arrival in every index
        batch = kept.rows.take(pa.array(order))
        codes, _ = self.codes_of(side.number, batch)
        if not memory.make_rooms([np.sort(each) for each in codes], memory.arena.heap_bytes_of(batch.columns)):
            return False
        memory.put(codes, batch.columns, kept.stamps[order], kept.bits[order])
        return True

    @staticmethod
    def together_in_memory(parts: Sequence[LoadedRows], rows: Combination) -> Mask:
        """Return a mask of the combinations whose rows were all in memory at the same time."""
        came, left = np.full(len(rows[0]), FIRST), np.full(len(rows[0]), LAST)
        for part, each in zip(parts, rows, strict=True):
            came = np.maximum(came, part.stamps[0][each])
            left = np.minimum(left, part.stamps[1][each])
        result: Mask = came < left
        return result
