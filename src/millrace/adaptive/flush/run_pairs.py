"""PMJ's flushing: memory is filled, then both sides are joined and written as a pair of sorted runs."""

from __future__ import annotations

from millrace.adaptive.flush.flush_policy import Flushing
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.memory.sorted_rows import FIRST, LAST


class RunPairs(Flushing):
    """PMJ: nobody meets anybody before memory is full."""

    def flush(self) -> Batches:
        left, right = self._m.sides
        while len(left.memory):
            codes, slots = left.memory.take_out(int(FIRST), int(LAST), left.block_rows)
            yield from self._m.meet_memory(left, codes, slots)
            self._m.spill(left, codes, slots)
        while len(right.memory):
            self._m.spill(right, *right.memory.take_out(int(FIRST), int(LAST), 64 * right.block_rows))

    def at_end(self) -> Batches:
        """The last, partial content of memory is a pair of runs too."""
        yield from self.flush()
