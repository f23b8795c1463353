"""What joins of several inputs work with: relations, and combinations of rows that grow input by input.

::

    rows of the first ──condition──► + rows of the second ──condition──► + rows of the third … ──► out
         some at a time, so that no step holds more combinations than there is room for
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.disk.blocks import Disk
from millrace.adaptive.memory.code_ranges import Partitions
from millrace.adaptive.memory.indexed_rows import IndexedRows
from millrace.adaptive.memory.pair_codes import Mask, Matching
from millrace.adaptive.memory.pair_output import Batches, Output, Rows, Source
from millrace.adaptive.memory.row_places import InMemory, Loaded, Place
from millrace.adaptive.memory.side import Side
from millrace.adaptive.memory.sorted_rows import FIRST, LAST, Bits, Codes, Stamps, Workspace
from millrace.adaptive.multiway.join_tree import End, JoinTree, Step
from millrace.adaptive.pair.pair_state import LogicalClock, Machinery
from millrace.core.budget import MemoryBudget, Reservation
from millrace.rows.batch_builder import BATCH_ROWS

Combination = list[Rows]
"""By input, the rows of some combinations; inputs that are not joined yet have none."""

NO_ROWS: Rows = np.empty(0, np.int32)


class Relation(Side):
    """Everything the join knows of one of its inputs."""

    memory: IndexedRows

    def __init__(
        self, number: int, name: str, schema: pa.Schema, memory: IndexedRows, disk: Disk, block: int, partitions: int
    ) -> None:
        super().__init__(number, schema, memory, disk, block, partitions, name)
        self.memory = memory
        self.place = InMemory(memory)


class SeveralOutput(Output):
    """Combinations of rows of all inputs."""

    def __init__(
        self,
        tree: JoinTree,
        schemas: Sequence[pa.Schema],
        suffix: str | None,
        metrics: AdaptiveMetrics,
        rows: int = BATCH_ROWS,
    ) -> None:
        super().__init__(tree.output_schema(schemas, suffix), metrics, rows)
        self._columns = [tree.columns_out(relation, schema) for relation, schema in enumerate(schemas)]

    def put(self, sources: Sequence[Source], rows: Combination) -> Batches:
        """Row i of each with row i of all others."""
        parts = list(zip(sources, rows, self._columns, strict=True))
        longest = sum(source.longest(columns) for source, _, columns in parts)
        done = 0
        while done < len(rows[0]):
            some, held = self._fitting(parts, done, longest)
            first = 0
            for source, all_, columns in parts:
                source.fill(columns, all_[done : done + some], self._builder.columns[first : first + len(columns)])
                first += len(columns)
            yield from self._put(some, held)
            done += some


class Several(Machinery):
    """Several relations and what can be done with them."""

    sides: list[Relation]  # type: ignore[assignment]
    output: SeveralOutput | None  # type: ignore[assignment]

    def __init__(
        self,
        tree: JoinTree,
        matchings: list[Matching],
        relations: list[Relation],
        budget: MemoryBudget,
        pairs: int,
        metrics: AdaptiveMetrics,
        transfer: Reservation,
        block: int,
        partitions: Partitions,
        seed: int,
    ) -> None:
        super().__init__(
            relations,  # type: ignore[arg-type]
            matchings[0],
            None,
            budget,
            Workspace(1),
            metrics,
            LogicalClock(),
            transfer,
            block,
            (False, False),
            partitions,
            seed,
        )
        self.tree, self.matchings = tree, matchings
        self.works = [Workspace(pairs) for _ in tree.edges]
        """One for each step: a step goes on while those behind it work."""
        self.local_joins = np.zeros(len(tree.edges), np.int64)
        """By condition, pairs of rows in memory found to meet it since the last flush."""

    # rows of an input

    def codes_of(self, relation: int, batch: pa.RecordBatch) -> tuple[Codes, Mask | None]:
        """Codes by attribute and row, and which rows have all of them (None: all)."""
        found, valid = [], None
        for attribute in range(len(self.tree.attributes[relation])):
            codes, there = self._codes(relation, attribute, batch)
            found.append(codes)
            if there is not None:
                valid = there if valid is None else valid & there
        return np.stack(found), valid

    def _codes(self, relation: int, attribute: int, batch: pa.RecordBatch) -> tuple[Codes, Mask | None]:
        """Codes by one attribute. All conditions that use it make the same of its values."""
        edge = next(step.edge for step in self.tree.ways(relation) if step.origin.attribute == attribute)
        columns = self.tree.attributes[relation][attribute]
        return self.matchings[edge].codes([batch.column(column) for column in columns])

    def loaded(self, relation: Relation, partition: int, places: Sequence[int]) -> Loaded:
        """Rows of blocks."""
        chunk = relation.disk.load(partition, places)
        others = range(1, len(self.tree.attributes[relation.number]))
        return Loaded.of(chunk, [self._codes(relation.number, each, chunk.source.batch)[0] for each in others])

    # combinations

    def steps_from(self, relation: int) -> list[Step]:
        """The order in which rows of an input meet the others: by the conditions that let the least through."""
        held = [len(each.memory) for each in self.sides]
        costs = []
        for edge in self.tree.edges:
            pairs = held[edge.ends[0].relation] * held[edge.ends[1].relation]
            costs.append(float(self.local_joins[edge.number]) / pairs if pairs else 0.0)
        return self.tree.order(relation, costs)

    def combinations(
        self, places: Sequence[Place], start: int, rows: Rows, steps: Sequence[Step], counted: bool = False
    ) -> Iterator[Combination]:
        """All combinations with rows of one input, step by step; a step that finds nobody is the last."""
        first = [rows if relation == start else NO_ROWS for relation in range(len(places))]
        return self._grown(places, first, steps, 0, counted)

    def _grown(
        self, places: Sequence[Place], rows: Combination, steps: Sequence[Step], at: int, counted: bool
    ) -> Iterator[Combination]:
        if at == len(steps):
            yield rows
            return
        step = steps[at]
        origin, target, matching = step.origin.relation, step.target.relation, self.matchings[step.edge]
        codes = places[origin].codes(step.origin.attribute)[rows[origin]]
        order = np.lexsort((rows[origin], codes))
        codes, own = codes[order], rows[origin][order]
        fresh = np.ones(len(own), np.bool_)
        fresh[1:] = own[1:] != own[:-1]
        lows, highs = matching.ranges(step.side, codes)
        for found in places[target].matches(step.target.attribute, lows, highs, self.works[at]):
            behind, theirs = found.rows, found.slots
            real = self._verified(step, places, own[behind], codes[behind], theirs, found.keys)
            if real is not None:
                behind, theirs = behind[real], theirs[real]
            if not len(behind):
                continue
            if counted:
                self.local_joins[step.edge] += int(fresh[behind].sum())
            before = order[behind]
            more = [each[before] if len(each) else each for each in rows]
            more[target] = theirs
            yield from self._grown(places, more, steps, at + 1, counted)

    def _verified(
        self, step: Step, places: Sequence[Place], rows: Rows, codes: Codes, others: Rows, other_codes: Codes
    ) -> Mask | None:
        """Which pairs, found by their codes, are real (None: all)."""
        ends = (step.origin, step.target)
        values = [
            lambda end=end, numbers=numbers: places[end.relation].source.values(self._columns(end), numbers)
            for end, numbers in zip(ends, (rows, others), strict=True)
        ]
        if step.side == 0:
            return self.matchings[step.edge].verified(codes, other_codes, values[0], values[1])
        return self.matchings[step.edge].verified(other_codes, codes, values[1], values[0])

    def _columns(self, end: End) -> list[int]:
        schema = self.sides[end.relation].schema
        return [schema.get_field_index(name) for name in self.tree.attributes[end.relation][end.attribute]]

    def put(self, places: Sequence[Place], rows: Combination) -> Batches:
        """Combinations come out."""
        assert self.output is not None
        yield from self.output.put([place.source for place in places], rows)

    # memory and disk

    def spill_slots(self, relation: Relation, slots: npt.NDArray[np.int32], partition: int = 0) -> None:
        """Write rows that the indexes have given out to disk."""
        self.spill(relation, relation.memory.codes[0][slots], slots, partition)

    def spill_rest(self) -> None:
        """At the end: if anything is on disk, what is in memory goes there too."""
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
        self.transfer.resize(self.transfer.nbytes + self.budget.available)

    def put_back(self, side: Side, codes: Codes, batch: pa.RecordBatch, stamps: Stamps, bits: Bits) -> bool:
        memory = self.sides[side.number].memory
        order = np.argsort(stamps)  # equal keys stand in the order in which they came, in every index
        batch = batch.take(pa.array(order))
        all_codes, _ = self.codes_of(side.number, batch)
        if not memory.make_rooms([np.sort(each) for each in all_codes], memory.arena.heap_bytes_of(batch.columns)):
            return False
        memory.put(all_codes, batch.columns, stamps[order], bits[order])
        return True

    @staticmethod
    def met(places: Sequence[Loaded], rows: Combination) -> Mask:
        """Which combinations were in memory as a whole: all rows had come before any left."""
        came, left = np.full(len(rows[0]), FIRST), np.full(len(rows[0]), LAST)
        for place, each in zip(places, rows, strict=True):
            came = np.maximum(came, place.stamps[0][each])
            left = np.minimum(left, place.stamps[1][each])
        result: Mask = came < left
        return result
