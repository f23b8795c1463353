"""MINER's flush policy: as in DINER, each attribute's values are divided into three regions, whose results are counted.

The input with the most rows in memory writes a block to disk. The rows are taken from the region with the fewest
results per row, among the regions of all attributes of the input, and are removed from all indexes of the input.

Notes
-----
If several regions have equally few results per row, the upper one is flushed first, as in the paper's listing. So
before there are results, all inputs keep rows with the same range of values, which can match. Unlike in the paper, the
counts of results are not set to zero at a flush, but reduced by a quarter. With several inputs, few combinations become
complete between two flushes. A region without any new results would be flushed, even if it had many before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from millrace.adaptive.array_types import Batches, Rows
from millrace.adaptive.flush.flush_policy import FlushPolicy
from millrace.adaptive.flush.regions import LOWER, MIDDLE, UPPER, Regions
from millrace.adaptive.inputs.coded_rows import CodedRows
from millrace.adaptive.inputs.multiway_inputs import MultiwayInputs, Relation
from millrace.adaptive.memory.indexed_rows import AttributeIndex
from millrace.rows.arena import Slots

_TIES = (UPPER, LOWER, MIDDLE)
_AGE = 4
"""Divisor by which result counts age: each flush of an input reduces the counts of its regions by a quarter."""


class _AttributeRegions(NamedTuple):
    """One attribute of an input: its number, its regions, and the index of the rows that are divided into regions."""

    number: int
    regions: Regions
    rows: AttributeIndex


class MinerRegions(FlushPolicy):
    """MINER's flush policy: a block of the region with the fewest results per row goes to disk.

    Only regions of one input are considered: the one with the most rows in memory among the inputs whose rows can get
    no new matches, or among all inputs if there are no such inputs.
    """

    def __init__(self, inputs: MultiwayInputs) -> None:
        self._inputs = inputs
        self._offsets = np.cumsum([0, *(len(each) for each in inputs.tree.attributes)]).tolist()
        self.regions = tuple(Regions() for _ in range(self._offsets[-1]))
        """Regions of all attributes of all inputs, in the order of inputs and attributes."""

    def _attributes(self, relation: Relation) -> list[_AttributeRegions]:
        first = self._offsets[relation.number]
        return [
            _AttributeRegions(first + i, self.regions[first + i], rows) for i, rows in enumerate(relation.memory.views)
        ]

    def combined(self, parts: Sequence[CodedRows], rows: Sequence[Rows]) -> None:
        for relation, (part, each) in enumerate(zip(parts, rows, strict=True)):
            for attribute in range(len(self._inputs.tree.attributes[relation])):
                self.regions[self._offsets[relation] + attribute].credit(part.codes(attribute)[each])

    def flush(self) -> Batches:
        relation = self._victim()
        attributes, wanted = self._attributes(relation), relation.block_rows
        for each in attributes:
            each.regions.start_clock(each.rows, self._inputs.random)
        slots: list[Slots] = []
        for each, region in self._by_benefit(attributes):
            taken = each.regions.take(each.rows, region, wanted)[1]
            slots.append(taken)
            wanted -= len(taken)
            if wanted == 0 or not len(relation.memory):
                break
        self._inputs.spill_slots(relation, np.concatenate(slots))
        for each in attributes:
            each.regions.divide(each.rows, relation.block_rows)
            each.regions.age_joins(_AGE)
        self._inputs.local_joins[:] = 0
        return iter(())

    def _victim(self) -> Relation:
        """Return the input with the most rows in memory, preferring inputs whose rows can get no new matches."""
        held = [relation for relation in self._inputs.sides if len(relation.memory)]
        coming = [relation for relation in self._inputs.sides if not relation.ended]
        idle = [relation for relation in held if not [each for each in coming if each is not relation]]
        return max(idle or held, key=lambda relation: len(relation.memory))

    def _by_benefit(self, attributes: Sequence[_AttributeRegions]) -> list[tuple[_AttributeRegions, int]]:
        """Return the non-empty regions of all attributes, in ascending order of results per row."""
        ranked = []
        for each in attributes:
            rows, joins = each.regions.rows_in(each.rows), each.regions.joins
            ranked += [(joins[r] / rows[r], tie, each.number, r, each) for tie, r in enumerate(_TIES) if rows[r]]
        return [(each, region) for *_, region, each in sorted(ranked, key=lambda item: item[:4])]

    def state(self) -> dict[str, Any]:
        return {
            "regions": [regions.state() for regions in self.regions],
            "local_joins": self._inputs.local_joins.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        for regions, kept in zip(self.regions, state["regions"], strict=True):
            regions.restore(kept)
        self._inputs.local_joins[:] = state["local_joins"]

    def check_invariants(self) -> None:
        for relation in self._inputs.sides:
            for each in self._attributes(relation):
                each.regions.check_invariants(each.rows)
