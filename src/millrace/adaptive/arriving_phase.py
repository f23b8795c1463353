"""The arriving phase: new rows of one input are joined with the rows of other inputs in memory, then stored.

::

    piece ──► probe the other inputs ──► results ──► room? ──no──► flush (policy) ──┐
                                                       │ yes   ◄────────────────────┘
                                                       ▼
                                                  own input's memory

A batch is processed in pieces of several rows. Rows of one input are never joined with each other, so this finds the
same results as processing them one at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

import pyarrow as pa

from millrace.adaptive.array_types import Batches
from millrace.adaptive.inputs.input_side import InputSide, R
from millrace.adaptive.inputs.join_inputs import JoinInputs
from millrace.adaptive.memory_split import LONG_ROW_BUFFERS, MemorySplit
from millrace.core.errors import BudgetExceededError
from millrace.core.sizes import format_size

_FIXED_PARTS = ("transfer", "work", "directory", "input buffer")


class ArrivingPhase(ABC, Generic[R]):
    """Base class of the arriving phases, which join new rows with rows in memory, and store them there."""

    def __init__(self, inputs: JoinInputs[R], split: MemorySplit) -> None:
        self._shared, self._split = inputs, split

    def take(self, number: int, batch: pa.RecordBatch) -> Batches:
        """Process a batch of input ``number`` piece by piece, and yield output batches."""
        at = 0
        while at < len(batch):
            rows = self._split.piece_rows(batch, at, self._shared.sides[number].memory.slot_bytes)
            yield from self._piece(number, batch.slice(at, rows))
            at += rows

    @abstractmethod
    def _piece(self, number: int, piece: pa.RecordBatch) -> Batches:
        """Join some rows of one input, store them in memory, and yield output batches."""

    @abstractmethod
    def _widen_buffers(self, heap: int) -> bool:
        """Grow the buffers for a row with ``heap`` bytes of strings; return False if the budget is too small."""

    def _check_fits(self, side: InputSide[R], rows: int, heap: int) -> None:
        """Check that new rows can fit into memory at all, before they are joined with other rows.

        The strings of the new rows take ``heap`` bytes. For a single row larger than a block, the buffers are enlarged.
        """
        split, budget, buffers = self._split, self._shared.budget, self._shared.buffers
        least = side.memory.least_bytes(side.schema, rows, side.memory.index.width) + heap
        fixed = sum(budget.parts().get(part, 0) for part in _FIXED_PARTS)
        most = split.total - fixed - 2 * split.width * 16
        if (rows == 1 and heap > split.block and not self._widen_buffers(heap)) or least > most:
            enough = split.total - most + max(0, LONG_ROW_BUFFERS * heap - buffers.nbytes) + 2 * least
            raise BudgetExceededError(
                f"{side.name}: a row of {format_size(heap)} does not fit into "
                f"{format_size(split.total)} of memory; a join of rows of that size needs about "
                f"{format_size(enough)}"
            )

    def _no_room(self, side: InputSide[R], rows: int, needed: int) -> BudgetExceededError:
        """Return the error for new rows of ``needed`` bytes that do not fit although no other rows are in memory."""
        return BudgetExceededError(
            f"{side.name}: {rows:,} rows that take {format_size(needed)} do not fit into the memory of "
            f"{format_size(self._shared.budget.total)}, which also holds buffers and the block directory "
            f"(after {self._shared.metrics.flushes:,} flushes); set a larger memory="
        )
