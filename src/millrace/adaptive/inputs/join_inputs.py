"""The inputs of a join and what they share: the memory budget, the logical clock, and writing to disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.array_types import Batches, Codes
from millrace.adaptive.disk.blocks import BlockRows
from millrace.adaptive.inputs.block_buffers import BlockBuffers
from millrace.adaptive.inputs.input_side import InputSide, MemoryState, R, SideState
from millrace.adaptive.inputs.joined_history import LogicalClock
from millrace.adaptive.memory.code_ranges import CodeRanges
from millrace.core.budget import MemoryBudget
from millrace.core.errors import BudgetTooSmallError
from millrace.kernels.radix_sort import order_of
from millrace.rows.arena import Slots

MOST_BORROWED = 2
"""Divisor of the budget: blocks that are being read or written can take up to half of it."""


@dataclass(frozen=True)
class InputsState:
    """The inputs of a join, as they are stored in a snapshot."""

    clock: int
    random: dict[str, Any]
    """State of the random generator."""
    transfer: int
    """Bytes reserved for blocks that are being read or written."""
    sides: list[SideState]


class JoinInputs(ABC, Generic[R]):
    """The inputs of a join and what they share: the memory budget, the logical clock, and writing to disk.

    Parameters
    ----------
    partitions
        The key-code ranges that rows on disk are divided into.
    seed
        Seed of the random generator.
    """

    def __init__(
        self,
        sides: list[InputSide[R]],
        budget: MemoryBudget,
        metrics: AdaptiveMetrics,
        buffers: BlockBuffers,
        partitions: CodeRanges,
        seed: int,
    ) -> None:
        self.sides, self.budget, self.metrics, self.buffers = sides, budget, metrics, buffers
        self.partitions = partitions
        self.clock = LogicalClock()
        self.random = np.random.default_rng(seed)

    @property
    def any_in_memory(self) -> bool:
        """Whether any input has rows in memory."""
        return any(len(side.memory) for side in self.sides)

    def set_side(self, number: int, side: InputSide[R]) -> None:
        """Replace an input that has no rows yet, once its columns are known."""
        self.sides[number] = side

    def pack(self) -> None:
        """Release memory that is reserved for the inputs but not used by any row."""
        for side in self.sides:
            side.memory.pack()

    def clear(self) -> None:
        """Remove all rows, and release the memory for blocks."""
        for side in self.sides:
            side.clear()
        self.buffers.resize(0)

    # moving rows to disk

    def spill(self, side: InputSide[R], codes: Codes, slots: Slots, partition: int = 0) -> None:
        """Write rows to disk, several blocks at a time; the index must not contain the rows any more."""
        order = order_of(codes)
        codes, slots = codes[order], slots[order]
        rows = side.block_rows
        together = rows * max(1, self.buffers.nbytes // 4 // self.buffers.block)
        for start in range(0, len(codes), together):
            self._spill(side, codes[start : start + together], slots[start : start + together], rows, partition)
        self.metrics.count_flush(len(codes))

    def _spill(self, side: InputSide[R], codes: Codes, slots: Slots, rows: int, partition: int) -> None:
        blocks = (slots[start : start + rows] for start in range(0, len(slots), rows))
        if any(side.too_long(block) for block in blocks):  # these rows are larger than the average
            half = len(codes) // 2
            rows = max(1, min(rows, half))
            self._spill(side, codes[:half], slots[:half], rows, partition)
            self._spill(side, codes[half:], slots[half:], rows, partition)
            return
        ends = [*range(rows, len(codes), rows), len(codes)]
        side.spill(codes, slots, ends, [self.clock.tick() for _ in ends], partition)

    # blocks

    def load(self, side: InputSide[R], places: Sequence[int], partition: int = 0) -> BlockRows:
        """Read blocks of one input and merge their rows."""
        return side.disk.load(partition, places)

    def borrow(self, blocks: int, flush: Callable[[], Batches]) -> Batches:
        """Reserve memory for ``blocks`` blocks, up to half of the budget; flush rows if needed, and yield output.

        The caller must call :meth:`give_back` before new rows are processed.
        """
        buffers = self.buffers
        wanted = min((2 * blocks + 2) * buffers.block, self.budget.total // MOST_BORROWED)
        if wanted <= buffers.nbytes:
            return
        buffers.begin_loan()
        while not buffers.try_resize(wanted) and self.any_in_memory:
            lacking = wanted - buffers.nbytes - self.budget.available
            while sum(side.memory.idle_bytes for side in self.sides) < lacking and self.any_in_memory:
                yield from flush()
            self.pack()

    def give_back(self) -> None:
        """Release the memory that :meth:`borrow` has reserved."""
        self.buffers.end_loan()

    # snapshots

    def state(self) -> InputsState:
        """Return the rows of all inputs, the clock and the random generator, for a snapshot."""
        random: dict[str, Any] = dict(self.random.bit_generator.state)
        return InputsState(self.clock.now, random, self.buffers.own_bytes, [side.state() for side in self.sides])

    def restore(self, state: InputsState) -> None:
        """Restore all inputs from a snapshot; their columns must be known already."""
        self.clock.restore(state.clock)
        self.random.bit_generator.state = state.random
        self.buffers.resize(max(self.buffers.nbytes, state.transfer))
        for side, kept in zip(self.sides, state.sides, strict=True):
            if kept.memory is not None and not self._insert(side, kept.memory):
                raise BudgetTooSmallError(
                    f"restore: {len(kept.memory.codes):,} {side.name} rows of the snapshot do not fit into memory; "
                    "set a larger memory=",
                    self.budget.total + max(1, kept.memory.rows.nbytes - self.budget.available),
                )
            side.restore(kept)

    @abstractmethod
    def _insert(self, side: InputSide[R], kept: MemoryState) -> bool:
        """Insert rows of a snapshot into memory; return False if there is no room."""
