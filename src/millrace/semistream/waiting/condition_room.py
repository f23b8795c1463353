"""A waiting room without keys: tuples are found by a condition on their values.

Every master row has to be tested against every waiting tuple. But where the condition compares columns, a master row
sets bounds (*edges*) for a tuple's value. So tuples are kept in the order of the compared column, the edges of a master
row are searched in this order, and only the tuples between them are candidates::

    waiting, in order        2   5   5   7   9   12          band(x, m, below=3, above=1)
    x + above ≥ m  from          ├───────────────►           m = 6:  first x + 1 ≥ 6  is 5
    x - below ≤ m  up to     ◄──────────────┤                        last  x - 3 ≤ 6  is 9
    candidates                   5   5   7   9               four pairs, all of them match

Comparisons of the same column share one search; other parts of the condition are tested on the pairs that it finds. A
condition without edges makes every tuple a candidate of every row. Either way pairs come in pieces of bounded size.

New tuples are merged into the order; tuples that have left are removed before it is next used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.lanes import Lanes
from millrace.core.space import Space
from millrace.kernels import index_ranges as ranges
from millrace.master.read.mapped_rows import MappedRows
from millrace.master.read.wheel import Load
from millrace.master.store import MasterStore
from millrace.rows.arena import Slots
from millrace.rows.code_filter import FoundCodes
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes
from millrace.semistream.conditions.condition import Condition, RangeEdge, may_clip_both
from millrace.semistream.conditions.measures import Flags, Measure, Numbers
from millrace.semistream.waiting.waiting_room import Positions, WaitingRoom

_LEAST_ROWS = 16
_ROW_BYTES = 64  # a master row's edges, their search, and its range
_ROW_SHARE = 1 / 100
_NO_SLOTS = np.empty(0, np.int32)


class ConditionSearch:
    """Splits a condition into comparisons of one stream column, by which tuples are searched, and the rest.

    The rest is tested on the pairs that the search finds.

    >>> from millrace.semistream.conditions.condition import band, compare
    >>> stream, master = pa.schema({"a": pa.int64(), "b": pa.string()}), pa.schema({"x": pa.int64(), "y": pa.string()})
    >>> search = ConditionSearch(compare("b", "!=", "y") & band("a", "x", above=3), stream, master)
    >>> search.column, str(search.rest)
    ('a', 'compare(b != y)')
    """

    def __init__(self, condition: Condition, stream: pa.Schema, master: pa.Schema) -> None:
        groups: dict[tuple[str, Measure], list[Condition]] = {}
        for part in condition.parts:
            measure = part.measure(stream, master)
            if part.edges and measure is not None:
                groups.setdefault((part.stream[0], measure), []).append(part)
        self.column: str | None = None
        """The stream column by which tuples are ordered and searched; None if every pair has to be tested."""
        self.measure: Measure | None = None
        self.edges: list[RangeEdge] = []
        searched: list[Condition] = []
        if groups:
            # prefer a range that is bounded on both sides, then the first one written
            (self.column, self.measure), searched = max(groups.items(), key=lambda group: len(_bounded_sides(group[1])))
            self.edges = [edge for part in searched for edge in part.edges]
        rest = [part for part in condition.parts if part not in searched]
        self.rest: Condition | None = reduce(and_, rest) if rest else None

    @property
    def tuple_bytes(self) -> int:
        """Bytes that the sorted arrays take for a waiting tuple: its slot, its value, and a number per range limit.

        Slot and value count twice, because merging new tuples into the arrays copies them.
        """
        if self.measure is None:
            return 2 * 4
        return 2 * (4 + 8) + 8 * len(self.edges)

    def explain(self) -> str:
        """Return a line that describes how candidates are found."""
        if self.column is None:
            return "every pair is tested"
        return f"waiting tuples in the order of {self.column}: a master row is tested against a range of them"


def _bounded_sides(parts: Sequence[Condition]) -> set[bool]:
    return {edge.lower for part in parts for edge in part.edges}


class ConditionRoom(WaitingRoom):
    """A waiting room that finds tuples by the value of a column instead of by key.

    Parameters
    ----------
    search
        The part of the condition by which tuples are found.
    store
        The master whose rows the tuples meet.
    schema, cycle_rows, matches, pairs, leave_early
        As in :class:`WaitingRoom`.
    """

    def __init__(
        self,
        search: ConditionSearch,
        store: MasterStore,
        schema: pa.Schema,
        budget: MemoryBudget,
        space: Space,
        lanes: Lanes,
        cycle_rows: int,
        matches: int,
        pairs: int,
        leave_early: bool,
    ) -> None:
        beside = search.tuple_bytes
        super().__init__(schema, budget, space, lanes, cycle_rows, matches, pairs, None, leave_early, beside)
        self._search, self._store = search, store
        self._column = [schema.get_field_index(search.column)] if search.column is not None else []
        self._block = max(_LEAST_ROWS, int(budget.total * _ROW_SHARE) // _ROW_BYTES)
        budget.reserve("ranges", self._block * _ROW_BYTES)
        self._ordered = np.empty(0, np.int32)
        self._values: Numbers = np.empty(0, np.float64 if search.measure and search.measure.floating else np.int64)
        self._bounds: list[Numbers] | None = None
        self._known = 0  # number of waiting tuples when the sorted arrays were last updated

    @staticmethod
    def least_bytes_of(search: ConditionSearch, schema: pa.Schema) -> int:
        """Return the bytes of the smallest waiting room, which holds a few tuples."""
        return WaitingRoom.least_bytes(schema, None, search.tuple_bytes) + _LEAST_ROWS * _ROW_BYTES

    # entering and leaving

    def admit(self, codes: Codes, columns: Sequence[pa.Array], turned: int, step: int) -> Positions:
        self._drop_departed()  # before their slots are used again
        counts = super().admit(codes, columns, turned, step)
        self._put_in_order(self.chunks[-1].slots[-len(codes) :])
        self._known += len(codes)
        return counts

    def _put_in_order(self, slots: Slots) -> None:
        """Merge tuples into the sorted arrays, except for tuples whose value is null or NaN."""
        measure = self._search.measure
        if measure is None:
            self._ordered = np.concatenate([self._ordered, slots])
            return
        self._bounds = None
        (array,) = self.rows.take(self._column, slots)
        values = measure.numbers(array, exact=may_clip_both(self._search.edges, measure, self._store.schema))
        there = array.is_valid().to_numpy(zero_copy_only=False) & (values == values)  # false for NaN
        values, slots = values[there], slots[there]
        order = np.argsort(values, kind="stable")
        values, slots = values[order], slots[order]
        places = np.searchsorted(self._values, values, side="right")
        self._values = np.insert(self._values, places, values)
        self._ordered = np.insert(self._ordered, places, slots)

    def _drop_departed(self) -> None:
        if self._known == len(self):
            return
        here = self._are_waiting(self._ordered)
        self._ordered = self._ordered[here]
        if self._search.measure is not None:
            self._values = self._values[here]
            self._bounds = None
        self._known = len(self)

    def _are_waiting(self, slots: Slots) -> Flags:
        here: Flags = self.rows.map.slots["count"][slots] != 0
        return here

    # meeting master rows

    def meet(self, load: Load) -> Iterator[FoundCodes]:
        """Yield all rows of a load, some at a time: any of them may match."""
        for first in range(0, len(load.codes), self._block):
            yield FoundCodes(np.arange(first, min(first + self._block, len(load.codes)), dtype=np.int32), _NO_SLOTS)

    def pairs(self, load: Load, met: FoundCodes) -> Iterator[tuple[Slots, Indices]]:
        """Yield pairs of a waiting tuple and a row of the load that may match, in pieces of bounded size."""
        self._drop_departed()
        starts, stops = self._ranges(self._store.mapped(load.shard), load.rows_at(met.positions))
        cursor = np.array([0, -1], np.int64)
        while cursor[0] < len(starts):
            made = ranges.expand(starts, stops, self._ordered, cursor, self._index, self._slots)
            slots, positions = self._slots[:made], met.positions[self._index[:made]].astype(np.int64)
            if self.leave_early:
                here = self._are_waiting(slots)
                slots, positions = slots[here], positions[here]
            if len(slots):
                yield slots, positions

    def _ranges(self, mapped: MappedRows, rows: Indices) -> tuple[Indices, Indices]:
        """Return for each master row where the tuples that may match start and stop in the sorted arrays."""
        starts, stops = np.zeros(len(rows), np.int64), np.full(len(rows), len(self._ordered), np.int64)
        measure = self._search.measure
        if measure is None or not len(self._ordered):
            return starts, stops
        for edge, bounds in zip(self._search.edges, self._searched(measure), strict=True):
            (array,) = mapped.take([self._store.schema.get_field_index(edge.master)], rows)
            values = measure.numbers(array)
            places = np.searchsorted(bounds, values, side="left" if edge.lower != edge.strict else "right")
            if edge.lower:
                np.maximum(starts, places, out=starts)
            else:
                np.minimum(stops, places, out=stops)
            stops[~(array.is_valid().to_numpy(zero_copy_only=False) & (values == values))] = 0
        return starts, np.maximum(starts, stops)

    def _searched(self, measure: Measure) -> list[Numbers]:
        """Return, for each bound of the condition, the sorted stream values plus or minus the width of the bound.

        Master values are then searched in these arrays.
        """
        if self._bounds is None:
            self._bounds = [edge.moved(self._values, measure) for edge in self._search.edges]
        return self._bounds

    def check_invariants(self) -> None:
        super().check_invariants()
        self._drop_departed()
        assert len(np.unique(self._ordered)) == len(self._ordered) <= len(self), "a tuple is twice in the order"
        assert self._are_waiting(self._ordered).all(), "a tuple that left is in the order"
        if self._search.measure is not None:
            assert (self._values[1:] >= self._values[:-1]).all(), "the values are not in order"
            (array,) = self.rows.take(self._column, self._ordered)
            assert (self._search.measure.numbers(array) == self._values).all(), "a value differs from the tuple's"
        else:
            assert len(self._ordered) == len(self), "a tuple is missing from the order"
