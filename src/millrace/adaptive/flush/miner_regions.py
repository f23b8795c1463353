"""MINER's flushing: DINER's three regions for every attribute of every input, credited with whole results.

The input with most rows in memory gives up a block: rows of the region, of any of its attributes, that has produced
least per row. They leave all its indexes.

Notes
-----
Of regions that have produced equally little the upper one goes first, as in the paper's listing: before there are
results, that leaves all inputs with rows of the same values, which can meet. Results of an input are not forgotten at
its flush, as in the paper, but age: between two flushes few rows complete a combination of several inputs, and a region
of one block that had none of them would go, however much it had produced before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.adaptive.flush.regions import LOWER, MIDDLE, UPPER, Regions, ThreeRegions
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.memory.row_places import Place
from millrace.adaptive.memory.sorted_rows import Codes, Pairs
from millrace.adaptive.multiway.relations import Combination, Relation, Several
from millrace.rows.arena import Slots

_TIES = (UPPER, LOWER, MIDDLE)
_AGE = 4
"""At a flush, one in so many of the results that regions have been credited with is forgotten."""


class _Attribute:
    """One attribute of one input, where DINER has a side."""

    def __init__(self, number: int, relation: Relation, attribute: int) -> None:
        self.number, self.relation, self.attribute = number, relation, attribute
        self.memory = relation.memory.views[attribute]

    @property
    def block_rows(self) -> int:
        return self.relation.block_rows


class RegionsOfAll(ThreeRegions):
    """MINER."""

    _m: Several

    def __init__(self, machinery: Several) -> None:
        super().__init__(machinery)
        self._m = machinery
        self._offsets = np.cumsum([0, *(len(each) for each in machinery.tree.attributes)]).tolist()
        self.regions = tuple(Regions() for _ in range(self._offsets[-1]))

    def _attributes(self, relation: Relation) -> list[Any]:
        first = self._offsets[relation.number]
        return [_Attribute(first + i, relation, i) for i in range(len(relation.memory.views))]

    def matched(self, side: int, codes: Codes, pairs: Pairs) -> None:
        raise AssertionError("results of several inputs are credited as combinations")

    def credit(self, places: list[Place], rows: Combination) -> None:
        """Results have come out."""
        for relation, (place, each) in enumerate(zip(places, rows, strict=True)):
            for attribute in range(len(self._m.tree.attributes[relation])):
                self.regions[self._offsets[relation] + attribute].credit(place.codes(attribute)[each])

    def flush(self) -> Batches:
        relation = self._victim_of_all()
        attributes, wanted = self._attributes(relation), relation.block_rows
        for each in attributes:
            if not self.regions[each.number].set:
                self._start_hand(each, self.regions[each.number])
        slots: list[Slots] = []
        for each, region in self._by_benefit_of_all(attributes):
            taken = self._take(each, region, wanted)[1]
            slots.append(taken)
            wanted -= len(taken)
            if wanted == 0 or not len(relation.memory):
                break
        self._m.spill_slots(relation, np.concatenate(slots))
        for each in attributes:
            self._set_thresholds(each)
            joins = self.regions[each.number].joins
            joins -= -(-joins // _AGE)
        self._m.local_joins[:] = 0
        return iter(())

    def _victim_of_all(self) -> Relation:
        """The input with most rows in memory; before it those whose rows cannot meet anybody new."""
        held = [relation for relation in self._m.sides if len(relation.memory)]
        coming = [relation for relation in self._m.sides if not relation.ended]
        idle = [relation for relation in held if not [each for each in coming if each is not relation]]
        return max(idle or held, key=lambda relation: len(relation.memory))

    def _by_benefit_of_all(self, attributes: list[Any]) -> list[tuple[Any, int]]:
        """Regions of all attributes, the one with the least benefit per row first."""
        ranked = []
        for each in attributes:
            tups, joins = self.tups(each), self.regions[each.number].joins
            ranked += [(joins[r] / tups[r], tie, each.number, r, each) for tie, r in enumerate(_TIES) if tups[r]]
        return [(each, region) for *_, region, each in sorted(ranked, key=lambda item: item[:4])]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "local_joins": self._m.local_joins.tolist()}

    def accept(self, state: dict[str, Any]) -> None:
        super().accept(state)
        self._m.local_joins[:] = state["local_joins"]

    def check_invariants(self) -> None:
        for relation in self._m.sides:
            for each in self._attributes(relation):
                regions = self.regions[each.number]
                assert sum(self.tups(each)) == len(relation.memory), "regions overlap"
                assert regions.lower < regions.upper, "thresholds are out of order"
                assert (regions.joins >= 0).all()
