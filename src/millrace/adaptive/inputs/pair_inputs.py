"""The two inputs of a join, and the ways in which their rows are joined."""

from __future__ import annotations

import numpy as np

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.array_types import Batches, Codes, Rows
from millrace.adaptive.conditions.key_matching import KeyMatching
from millrace.adaptive.disk.blocks import BlockRows
from millrace.adaptive.inputs.block_buffers import BlockBuffers
from millrace.adaptive.inputs.input_side import InputSide, MemoryState
from millrace.adaptive.inputs.join_inputs import JoinInputs
from millrace.adaptive.inputs.joined_history import JoinedHistory
from millrace.adaptive.memory.code_ranges import CodeRanges
from millrace.adaptive.memory.key_ordered_rows import KeyOrderedRows
from millrace.adaptive.memory.row_index import MatchedPairs, Workspace
from millrace.adaptive.memory.row_sources import RowSource
from millrace.adaptive.output.pair_output import PairOutput
from millrace.core.budget import MemoryBudget
from millrace.kernels import bands

PairSide = InputSide[KeyOrderedRows]

_NOTHING_JOINED = JoinedHistory()


class PairInputs(JoinInputs[KeyOrderedRows]):
    """The two inputs of a join.

    Parameters
    ----------
    workspace
        Arrays for the pairs of rows that are processed together.
    keeps
        Per side, whether unmatched rows are output.
    """

    def __init__(
        self,
        sides: list[PairSide],
        matching: KeyMatching,
        workspace: Workspace,
        keeps: tuple[bool, bool],
        budget: MemoryBudget,
        metrics: AdaptiveMetrics,
        buffers: BlockBuffers,
        partitions: CodeRanges,
        seed: int,
    ) -> None:
        super().__init__(sides, budget, metrics, buffers, partitions, seed)
        self.matching, self.workspace, self.keeps = matching, workspace, keeps
        self.output: PairOutput | None = None
        """The builder of output batches; None until the output columns are known."""

    def set_output(self, output: PairOutput) -> None:
        """Set the builder of output batches, once the output columns are known."""
        self.output = output

    # pairs

    def verified(
        self, side: int, own: RowSource, rows: Rows, codes: Codes, other: RowSource, others: Rows, other_codes: Codes
    ) -> MatchedPairs:
        """Return the pairs of ``rows[i]`` and ``others[i]`` whose keys match, each with its code from ``other_codes``.

        The key codes of all given pairs match, but the keys themselves may differ.
        """
        columns = self.matching.key_columns
        ours = (codes, lambda: own.values(columns(side), rows))
        theirs = (other_codes, lambda: other.values(columns(1 - side), others))
        left, right = (ours, theirs) if side == 0 else (theirs, ours)
        real = self.matching.verified(left[0], right[0], left[1], right[1])
        if real is None or real.all():
            return MatchedPairs(rows, others, other_codes)
        return MatchedPairs(rows[real], others[real], other_codes[real])

    def emit(self, side: int, own: RowSource, rows: Rows, other: RowSource, others: Rows) -> Batches:
        """Add pairs of a row of ``side`` and a row of the other side to the output; yield batches that become full."""
        assert self.output is not None
        if side == 0:
            yield from self.output.pairs(own, rows, other, others)
        else:
            yield from self.output.pairs(other, others, own, rows)

    def join_with_memory(self, side: PairSide, codes: Codes, slots: Rows) -> Batches:
        """Join rows of one side, sorted by key code, with all rows of the other side in memory."""
        other = self.sides[1 - side.number]
        for found in other.memory.matches(*self.matching.ranges(side.number, codes), self.workspace):
            own = slots[found.rows]
            pairs = self.verified(
                side.number, side.source, own, codes[found.rows], other.source, found.slots, found.keys
            )
            yield from self.emit(side.number, side.source, pairs.rows, other.source, pairs.slots)

    def join_blocks(
        self, side: int, rows: BlockRows, other: BlockRows, history: JoinedHistory | None = None
    ) -> Batches:
        """Join rows of one side with rows of the other side, both read from disk; skip pairs that were joined before.

        This is faster if ``other`` is the larger of the two.
        """
        lows, highs = self.matching.ranges(side, rows.codes)
        corners, own, others = (history or _NOTHING_JOINED).seen_from(side)
        cursor = np.array([0, 0, -1], np.int64)
        mine, theirs = self.workspace.rows, self.workspace.slots
        while cursor[0] < len(lows):
            made = bands.merge(
                lows, highs, rows.stamps, other.codes, other.stamps, corners, own, others, cursor, mine, theirs
            )
            if not made:
                continue
            at, behind = mine[:made], theirs[:made]
            pairs = self.verified(
                side, rows.source, rows.order[at], rows.codes[at],
                other.source, other.order[behind], other.codes[behind],
            )  # fmt: skip
            yield from self.emit(side, rows.source, pairs.rows, other.source, pairs.slots)

    def partner_range(self, side: int, low: int, high: int) -> tuple[int, int]:
        """Return the range of codes on the other side that can match codes from ``low`` to ``high``."""
        ends = np.array([low, high], np.int64)
        lows, highs = self.matching.ranges(side, ends)
        return int(lows[0]), int(highs[1])

    # memory

    def spill_rest(self) -> None:
        """Write each side's rows in memory to disk if the other side has rows on disk, to join them there.

        All memory that is free afterwards is reserved for blocks.
        """
        needed = [side for side in self.sides if self.sides[1 - side.number].disk.rows]
        for side in needed:
            for partition in range(self.partitions.count):
                low, high = self.partitions.bounds(partition)
                while True:
                    codes, slots = side.memory.take_out(low, high, 64 * side.block_rows)
                    if not len(codes):
                        break
                    self.spill(side, codes, slots, partition)
            side.memory.pack()
        self.buffers.take_rest()

    def _insert(self, side: PairSide, kept: MemoryState) -> bool:
        if not side.memory.make_room(kept.codes, side.memory.arena.heap_bytes_of(kept.rows.columns)):
            return False
        order = np.arange(len(kept.codes), dtype=np.int64)
        side.memory.insert(kept.codes, order, kept.rows.columns, kept.stamps, kept.bits)
        return True
