"""PMJ's flush policy: when memory is full, both sides are joined and written to disk as a pair of sorted runs."""

from __future__ import annotations

from millrace.adaptive.array_types import Batches
from millrace.adaptive.flush.flush_policy import FlushPolicy
from millrace.adaptive.inputs.pair_inputs import PairInputs
from millrace.adaptive.memory.key_ordered_rows import FIRST, LAST


class RunPairs(FlushPolicy):
    """PMJ's flush policy: rows are joined when memory is full, not as they arrive."""

    def __init__(self, inputs: PairInputs) -> None:
        self._inputs = inputs

    def flush(self) -> Batches:
        left, right = self._inputs.sides
        while len(left.memory):
            codes, slots = left.memory.take_out(int(FIRST), int(LAST), left.block_rows)
            yield from self._inputs.join_with_memory(left, codes, slots)
            self._inputs.spill(left, codes, slots)
        while len(right.memory):
            self._inputs.spill(right, *right.memory.take_out(int(FIRST), int(LAST), 64 * right.block_rows))

    def at_end(self) -> Batches:
        """Join and write the rows that are left in memory, as the last pair of runs."""
        yield from self.flush()
