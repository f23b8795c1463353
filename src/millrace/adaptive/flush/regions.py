"""DINER's flushing policy: three regions of the key, the one that has produced least per row goes first.

::

        lower            middle                 upper
    ───────────┤ Lw ├──────────────────┤ Up ├───────────►  key
    lowest go        the clock chooses       highest go

After a flush both thresholds are set anew, so that the outer regions hold about one block each.

Notes
-----
The paper continues, where a region holds less than a block, with the region of the "second highest" benefit; the next
*lowest* is meant. For range joins the matched row's own key says whose region gets the credit, not the probing row's.
Rows in regions are counted when they are needed, by rank, not kept in counters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.adaptive.flush.flush_policy import Flushing
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.memory.side import Side
from millrace.adaptive.memory.sorted_rows import FIRST, LAST, Codes, Pairs
from millrace.adaptive.pair.pair_state import Machinery
from millrace.kernels import bands
from millrace.rows.arena import Slots

LOWER, MIDDLE, UPPER = 0, 1, 2


class Regions:
    """Thresholds, benefits and the clock's hand of one side."""

    def __init__(self) -> None:
        self.lower, self.upper = int(FIRST), int(LAST)
        self.set = False
        """Whether there has been a flush; before, all rows are in the middle."""
        self.joins = np.zeros(3, np.int64)
        self.hand: npt.NDArray[np.int64] = np.zeros(2, np.int64)

    def credit(self, codes: Codes) -> None:
        """Matches by the key of the row they are credited to."""
        if self.set:
            bands.count_regions(codes, np.int64(self.lower), np.int64(self.upper), self.joins)
        else:
            self.joins[MIDDLE] += len(codes)


class ThreeRegions(Flushing):
    """DINER."""

    def __init__(self, machinery: Machinery) -> None:
        super().__init__(machinery)
        self.regions: tuple[Regions, ...] = (Regions(), Regions())

    def matched(self, side: int, codes: Codes, pairs: Pairs) -> None:
        self.regions[side].credit(codes)
        self.regions[1 - side].credit(pairs.keys)

    def flush(self) -> Batches:
        side = self._victim()
        regions, wanted = self.regions[side.number], self._wanted(side)
        if not regions.set:
            self._start_hand(side, regions)
        for region in self._by_benefit(side):
            codes, slots = self._take(side, region, wanted)
            if len(codes):
                self._m.spill(side, codes, slots)
            wanted -= len(codes)
            if wanted == 0:
                break
        self._set_thresholds(side)
        regions.joins[:] = 0
        return iter(())

    def _wanted(self, side: Side) -> int:
        """Rows to flush: a block, or blocks for half of what is lacking, so that both sides take their turn."""
        left, right = (each.memory for each in self._m.sides)
        lacking = max(left.lacking - right.idle_bytes, right.lacking - left.idle_bytes)
        rows = side.block_rows
        return max(1, int(lacking / 2 / side.memory.row_bytes) // rows) * rows

    def _victim(self) -> Side:
        """The side with more rows in memory. Once an input has ended, rows of the other cannot meet anybody new."""
        left, right = self._m.sides
        if left.ended != right.ended:
            idle = right if left.ended else left
            if len(idle.memory):
                return idle
        return left if len(left.memory) >= len(right.memory) else right

    def tups(self, side: Side) -> list[int]:
        """Rows in the three regions."""
        regions, memory = self.regions[side.number], side.memory
        if not regions.set:
            return [0, len(memory), 0]
        lower = memory.below(regions.lower, equal=True)
        upper = len(memory) - memory.below(regions.upper)
        return [lower, len(memory) - lower - upper, upper]

    def _by_benefit(self, side: Side) -> list[int]:
        """Regions with rows in them, the one with the least benefit per row first."""
        tups, joins = self.tups(side), self.regions[side.number].joins
        return sorted((r for r in range(3) if tups[r]), key=lambda r: (joins[r] / tups[r], r != MIDDLE, r))

    def _take(self, side: Side, region: int, wanted: int) -> tuple[Codes, Slots]:
        regions, memory = self.regions[side.number], side.memory
        if region == LOWER:
            return memory.take_out(int(FIRST), regions.lower, wanted)
        if region == UPPER:
            rank = max(len(memory) - wanted, memory.below(regions.upper))
            low = memory.key_at(rank)
            return memory.take_out(low, int(LAST), wanted, skip=rank - memory.below(low))
        low, high = (regions.lower + 1, regions.upper - 1) if regions.set else (int(FIRST), int(LAST))
        codes: list[Codes] = []
        slots: list[Slots] = []
        for _ in range(2):  # the first turn may only clear bits
            taken = memory.sweep(low, high, regions.hand, wanted)
            codes.append(taken[0])
            slots.append(taken[1])
            wanted -= len(taken[0])
            if wanted == 0:
                break
        return np.concatenate(codes), np.concatenate(slots)

    def _start_hand(self, side: Side, regions: Regions) -> None:
        regions.hand[:] = side.memory.key_at(int(self._m.random.integers(len(side.memory)))), 0

    def _set_thresholds(self, side: Side) -> None:
        """The outer regions hold about a block each."""
        regions, memory, rows = self.regions[side.number], side.memory, side.block_rows
        count = len(memory)
        if count == 0:
            regions.set, regions.lower, regions.upper = False, int(FIRST), int(LAST)
            return
        regions.set = True
        regions.lower = memory.key_at(min(rows, count) - 1)
        regions.upper = memory.key_at(max(0, count - rows))
        if regions.upper <= regions.lower:  # equal keys: the upper region begins behind them
            rank = memory.below(regions.lower, equal=True)
            regions.upper = memory.key_at(rank) if rank < count else int(LAST)
            if regions.upper <= regions.lower:
                regions.lower = regions.upper - 1

    def state(self) -> dict[str, Any]:
        return {
            "regions": [
                [r.lower, r.upper, r.set, [int(j) for j in r.joins], [int(h) for h in r.hand]] for r in self.regions
            ]
        }

    def accept(self, state: dict[str, Any]) -> None:
        for regions, (lower, upper, was_set, joins, hand) in zip(self.regions, state["regions"], strict=True):
            regions.lower, regions.upper, regions.set = lower, upper, was_set
            regions.joins[:], regions.hand[:] = joins, hand

    def check_invariants(self) -> None:
        for side, regions in zip(self._m.sides, self.regions, strict=True):
            assert sum(self.tups(side)) == len(side.memory), "regions overlap"
            assert regions.lower < regions.upper, "thresholds are out of order"
            assert (regions.joins >= 0).all()
