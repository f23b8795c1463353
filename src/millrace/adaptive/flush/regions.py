"""DINER's flush policy: keys are divided into three regions; the one with the fewest results per row is flushed first.

::

        lower            middle                 upper
    ───────────┤ Lw ├──────────────────┤ Up ├───────────►  key
    lowest go first   the clock chooses      highest go first

After a flush both thresholds, ``Lw`` and ``Up``, are set again, so that the outer regions hold about one block each.
In the middle region, the clock algorithm of page replacement chooses rows: a hand moves over the rows in key order,
takes those whose ``JOINED`` flag is not set, and clears the flag of the others.

Notes
-----
If a region holds less than a block, the paper continues with the region of the "second highest" benefit; it must mean
the next *lowest*. In band joins, a result counts for the region of the matched row's own key, not of the probing row's.
The number of rows in a region is computed from ranks when it is needed; no counters are kept.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from millrace.adaptive.array_types import Batches, Codes, Counts
from millrace.adaptive.flush.flush_policy import FlushPolicy
from millrace.adaptive.inputs.pair_inputs import PairInputs, PairSide
from millrace.adaptive.memory.key_ordered_rows import FIRST, LAST
from millrace.adaptive.memory.row_index import MatchedPairs
from millrace.kernels import bands
from millrace.rows.arena import Slots

LOWER, MIDDLE, UPPER = 0, 1, 2


class RankedRows(Protocol):
    """Rows in memory, sorted by a key. The rank of a row is its position in this order."""

    def __len__(self) -> int: ...

    def below(self, key: int, equal: bool = False) -> int:
        """Return the number of rows with a key below ``key``; with ``equal``, also count the rows with that key."""
        ...

    def key_at(self, rank: int) -> int:
        """Return the key of the row at position ``rank`` in key order, counted from 0."""
        ...

    def take_out(self, low: int, high: int, limit: int, skip: int = 0) -> tuple[Codes, Slots]:
        """Remove up to ``limit`` rows with keys from ``low`` to ``high`` from the index; return their keys and slots.

        The first ``skip`` rows with such keys are left in place.
        """
        ...

    def sweep(self, low: int, high: int, hand: npt.NDArray[np.int64], limit: int) -> tuple[Codes, Slots]:
        """Remove up to ``limit`` rows with keys from ``low`` to ``high`` that the clock algorithm chooses.

        Return their keys and slots. ``hand`` is the position of the clock's hand, and is moved.
        """
        ...


class Regions:
    """The division of the range of keys into three regions by two thresholds, with the results of each region.

    The rows to flush from the middle region are chosen by the clock algorithm, whose hand is kept here.
    """

    def __init__(self) -> None:
        self.lower, self.upper = int(FIRST), int(LAST)
        self.divided = False
        """Whether the thresholds have been set; as long as they are not, all rows are in the middle region."""
        self.joins: Counts = np.zeros(3, np.int64)
        """Number of results of each region; it is set to zero or reduced at each flush."""
        self._hand: npt.NDArray[np.int64] = np.zeros(2, np.int64)

    def credit(self, codes: Codes) -> None:
        """Count one result for each key code, in the region that the code is in."""
        if self.divided:
            bands.count_regions(codes, np.int64(self.lower), np.int64(self.upper), self.joins)
        else:
            self.joins[MIDDLE] += len(codes)

    def rows_in(self, rows: RankedRows) -> list[int]:
        """Return the number of rows in the lower, the middle and the upper region."""
        if not self.divided:
            return [0, len(rows), 0]
        lower = rows.below(self.lower, equal=True)
        upper = len(rows) - rows.below(self.upper)
        return [lower, len(rows) - lower - upper, upper]

    def take(self, rows: RankedRows, region: int, wanted: int) -> tuple[Codes, Slots]:
        """Remove up to ``wanted`` rows of a region from the index; return their key codes and slots."""
        if region == LOWER:
            return rows.take_out(int(FIRST), self.lower, wanted)
        if region == UPPER:
            rank = max(len(rows) - wanted, rows.below(self.upper))
            low = rows.key_at(rank)
            return rows.take_out(low, int(LAST), wanted, skip=rank - rows.below(low))
        low, high = (self.lower + 1, self.upper - 1) if self.divided else (int(FIRST), int(LAST))
        codes: list[Codes] = []
        slots: list[Slots] = []
        for _ in range(2):  # the first round of the clock may only clear flags
            taken = rows.sweep(low, high, self._hand, wanted)
            codes.append(taken[0])
            slots.append(taken[1])
            wanted -= len(taken[0])
            if wanted == 0:
                break
        return np.concatenate(codes), np.concatenate(slots)

    def start_clock(self, rows: RankedRows, random: np.random.Generator) -> None:
        """Set the hand of the clock algorithm to a random row, before the first flush."""
        if not self.divided:
            self._hand[:] = rows.key_at(int(random.integers(len(rows)))), 0

    def divide(self, rows: RankedRows, block_rows: int) -> None:
        """Set the thresholds so that the outer regions hold about a block each."""
        count = len(rows)
        if count == 0:
            self.divided, self.lower, self.upper = False, int(FIRST), int(LAST)
            return
        self.divided = True
        self.lower = rows.key_at(min(block_rows, count) - 1)
        self.upper = rows.key_at(max(0, count - block_rows))
        if self.upper <= self.lower:  # equal keys: the upper region begins after them
            rank = rows.below(self.lower, equal=True)
            self.upper = rows.key_at(rank) if rank < count else int(LAST)
            if self.upper <= self.lower:
                self.lower = self.upper - 1

    def clear_joins(self) -> None:
        """Set the counts of results to zero."""
        self.joins[:] = 0

    def age_joins(self, part: int) -> None:
        """Reduce the number of results of each region by ``1 / part`` of itself, rounded up."""
        self.joins -= -(-self.joins // part)

    def state(self) -> list[Any]:
        """Return the thresholds, the result counts and the clock's hand as plain values, for JSON."""
        return [self.lower, self.upper, self.divided, self.joins.tolist(), self._hand.tolist()]

    def restore(self, state: list[Any]) -> None:
        """Restore the regions from the state in a snapshot."""
        self.lower, self.upper, self.divided, self.joins[:], self._hand[:] = state

    def check_invariants(self, rows: RankedRows) -> None:
        assert sum(self.rows_in(rows)) == len(rows), "regions overlap"
        assert self.lower < self.upper, "thresholds are out of order"
        assert (self.joins >= 0).all()


class ThreeRegions(FlushPolicy):
    """DINER's flush policy: a block of the region with the fewest results per row goes to disk."""

    def __init__(self, inputs: PairInputs) -> None:
        self._inputs = inputs
        self.regions = (Regions(), Regions())
        """Regions of the left and of the right input."""

    def matched(self, side: int, codes: Codes, pairs: MatchedPairs) -> None:
        self.regions[side].credit(codes)
        self.regions[1 - side].credit(pairs.keys)

    def flush(self) -> Batches:
        side = self._victim()
        regions, wanted = self.regions[side.number], self._wanted(side)
        regions.start_clock(side.memory, self._inputs.random)
        for region in self._by_benefit(side):
            codes, slots = regions.take(side.memory, region, wanted)
            if len(codes):
                self._inputs.spill(side, codes, slots)
            wanted -= len(codes)
            if wanted == 0:
                break
        regions.divide(side.memory, side.block_rows)
        regions.clear_joins()
        return iter(())

    def _wanted(self, side: PairSide) -> int:
        """Return how many rows to flush: whole blocks, to free about half of the memory that is missing for new rows.

        Only half is freed at a time, so that both sides flush in turn.
        """
        left, right = (each.memory for each in self._inputs.sides)
        lacking = max(left.lacking - right.idle_bytes, right.lacking - left.idle_bytes)
        rows = side.block_rows
        return max(1, int(lacking / 2 / side.memory.row_bytes) // rows) * rows

    def _victim(self) -> PairSide:
        """Return the side to flush: one whose rows can get no new matches, else the one with more rows in memory."""
        left, right = self._inputs.sides
        if left.ended != right.ended:
            idle = right if left.ended else left
            if len(idle.memory):
                return idle
        return left if len(left.memory) >= len(right.memory) else right

    def _by_benefit(self, side: PairSide) -> list[int]:
        """Return the non-empty regions, in ascending order of results per row."""
        regions = self.regions[side.number]
        rows, joins = regions.rows_in(side.memory), regions.joins
        return sorted((r for r in range(3) if rows[r]), key=lambda r: (joins[r] / rows[r], r != MIDDLE, r))

    def state(self) -> dict[str, Any]:
        return {"regions": [regions.state() for regions in self.regions]}

    def restore(self, state: dict[str, Any]) -> None:
        for regions, kept in zip(self.regions, state["regions"], strict=True):
            regions.restore(kept)

    def check_invariants(self) -> None:
        for side, regions in zip(self._inputs.sides, self.regions, strict=True):
            regions.check_invariants(side.memory)
