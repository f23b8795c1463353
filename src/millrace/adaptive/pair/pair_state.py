"""What the policies work with: two sides, one clock, and the ways in which rows meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.disk.block_directory import BlockList
from millrace.adaptive.disk.blocks import Chunk
from millrace.adaptive.memory.code_ranges import Partitions
from millrace.adaptive.memory.pair_codes import Matching
from millrace.adaptive.memory.pair_output import Batches, PairOutput, Rows, Source
from millrace.adaptive.memory.side import Side
from millrace.adaptive.memory.sorted_rows import Bits, Codes, Pairs, Stamps, Workspace
from millrace.core.budget import MemoryBudget, Reservation
from millrace.kernels import bands
from millrace.kernels.radix_sort import order_of


class LogicalClock:
    """A number that grows with every event, so that no two have the same.

    >>> clock = LogicalClock(); clock.ticks(3), clock.tick()
    (1, 4)
    """

    def __init__(self) -> None:
        self.now = 0

    def ticks(self, count: int) -> int:
        """The first of so many consecutive ticks."""
        first = self.now + 1
        self.now += count
        return first

    def tick(self) -> int:
        return self.ticks(1)


class Past:
    """Which rows of a partition have met although one of them was on disk.

    Rows that had left memory by a *corner*, one moment per side, and after a moment for both, have all been joined on
    disk. A *history* says per side, run by run, until when its rows had left that were brought back to meet the other
    side's rows in memory, and when that was.
    """

    def __init__(self) -> None:
        self.corners: list[tuple[int, int, int]] = []
        """The left and the right side's moment, and the one before which rows of both are not meant."""
        self.history: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])

    def add_corner(self, left: int, right: int, since: int = 0) -> None:
        """All rows that had left by these moments, and after ``since``, have been joined with each other."""
        kept = [(a, b, c) for a, b, c in self.corners if not (a <= left and b <= right and c >= since)]
        self.corners = [*kept, (left, right, since)]

    def add_run(self, side: int, until: int, when: int) -> None:
        """Rows of a side that had left until then have met the rows that the other had in memory."""
        runs = self.history[side]
        runs.append((until, when))

    def seen_from(self, side: int) -> tuple[Codes, Codes, Codes]:
        """Corners, own and other history as arrays, own moments first."""
        corners = np.array(self.corners, np.int64).reshape(-1, 3)
        own, other = _moments(self.history[side]), _moments(self.history[1 - side])
        return (corners[:, [1, 0, 2]].copy() if side else corners), own, other


def _moments(pairs: list[tuple[int, int]]) -> Codes:
    return np.array(pairs, np.int64).reshape(-1, 2)


_NO_PAST = Past()


class Machinery:
    """Two sides and what can be done with them."""

    def __init__(
        self,
        sides: list[Side],
        matching: Matching,
        output: PairOutput | None,
        budget: MemoryBudget,
        work: Workspace,
        metrics: AdaptiveMetrics,
        clock: LogicalClock,
        transfer: Reservation,
        block: int,
        keeps: tuple[bool, bool],
        partitions: Partitions,
        seed: int,
    ) -> None:
        self.sides, self.matching, self.output, self.budget = sides, matching, output, budget
        self.work, self.metrics, self.clock = work, metrics, clock
        self.transfer, self.block = transfer, block
        self.keeps = keeps
        """Whether rows of a side come out without a partner too."""
        self.partitions = partitions
        """How rows on disk are divided."""
        self.random = np.random.default_rng(seed)
        self.flush: Callable[[], Batches] = lambda: iter(())
        """Send something to disk, as the join's policy says."""
        self._own = 0
        """Bytes for blocks on their way that are not lent; 0 where none are."""

    # rows meet

    def meet(
        self, side: int, own: Source, rows: Rows, codes: Codes, other: Source, others: Rows, other_codes: Codes
    ) -> Pairs:
        """Those of the pairs that are real: rows, the other side's rows, and the other side's codes."""
        columns = self.matching.key_columns
        ours = (codes, lambda: own.values(columns(side), rows))
        theirs = (other_codes, lambda: other.values(columns(1 - side), others))
        left, right = (ours, theirs) if side == 0 else (theirs, ours)
        real = self.matching.verified(left[0], right[0], left[1], right[1])
        if real is None or real.all():
            return Pairs(rows, others, other_codes)
        return Pairs(rows[real], others[real], other_codes[real])

    def put_out(self, side: int, own: Source, rows: Rows, other: Source, others: Rows) -> Batches:
        """Pairs of rows of this side and of the other."""
        assert self.output is not None
        if side == 0:
            yield from self.output.pairs(own, rows, other, others)
        else:
            yield from self.output.pairs(other, others, own, rows)

    def meet_memory(self, side: Side, codes: Codes, slots: Rows) -> Batches:
        """Rows of one side, sorted, meet all of the other's in memory."""
        other = self.sides[1 - side.number]
        for found in other.memory.matches(*self.matching.ranges(side.number, codes), self.work):
            own = slots[found.rows]
            met = self.meet(side.number, side.source, own, codes[found.rows], other.source, found.slots, found.keys)
            yield from self.put_out(side.number, side.source, met.rows, other.source, met.slots)

    def join_chunks(self, side: int, chunk: Chunk, other: Chunk, past: Past | None = None) -> Batches:
        """Rows of two chunks that have not met before; the other should be the larger."""
        lows, highs = self.matching.ranges(side, chunk.codes)
        corners, own, others = (past or _NO_PAST).seen_from(side)
        cursor = np.array([0, 0, -1], np.int64)
        mine, theirs = self.work.rows, self.work.slots
        while cursor[0] < len(lows):
            made = bands.merge(
                lows, highs, chunk.stamps, other.codes, other.stamps, corners, own, others, cursor, mine, theirs
            )
            if not made:
                continue
            at, behind = mine[:made], theirs[:made]
            met = self.meet(
                side, chunk.source, chunk.order[at], chunk.codes[at],
                other.source, other.order[behind], other.codes[behind],
            )  # fmt: skip
            yield from self.put_out(side, chunk.source, met.rows, other.source, met.slots)

    # rows leave memory

    def spill(self, side: Side, codes: Codes, slots: npt.NDArray[np.int32], partition: int = 0) -> None:
        """Write rows that the index has given out to disk, as blocks, some of them put together at a time."""
        order = order_of(codes)
        codes, slots = codes[order], slots[order]
        rows = side.block_rows
        together = rows * max(1, self.transfer.nbytes // 4 // self.block)
        for start in range(0, len(codes), together):
            self._spill(side, codes[start : start + together], slots[start : start + together], rows, partition)
        self.metrics.flushes += 1
        self.metrics.spilled_rows += len(codes)

    def _spill(self, side: Side, codes: Codes, slots: npt.NDArray[np.int32], rows: int, partition: int) -> None:
        blocks = (slots[start : start + rows] for start in range(0, len(slots), rows))
        if any(side.too_long(block) for block in blocks):  # its rows hold more than rows do on average
            half = len(codes) // 2
            rows = max(1, min(rows, half))
            self._spill(side, codes[:half], slots[:half], rows, partition)
            self._spill(side, codes[half:], slots[half:], rows, partition)
            return
        ends = [*range(rows, len(codes), rows), len(codes)]
        side.spill(codes, slots, ends, [self.clock.tick() for _ in ends], partition)

    def spill_rest(self) -> None:
        """At the end: what is in memory goes to disk, if the other side has rows there that it may not have met."""
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
        self.transfer.resize(self.transfer.nbytes + self.budget.available)

    def put_back(self, side: Side, codes: Codes, batch: pa.RecordBatch, stamps: Stamps, bits: Bits) -> bool:
        """Rows of a snapshot, sorted by code, take their place in memory; False if there is no room."""
        if not side.memory.make_room(codes, side.memory.arena.heap_bytes_of(batch.columns)):
            return False
        side.memory.insert(codes, np.arange(len(codes), dtype=np.int64), batch.columns, stamps, bits)
        return True

    # blocks

    def load(self, side: Side, places: Sequence[int], partition: int = 0) -> Chunk:
        """Read blocks of a side."""
        return side.disk.load(partition, places)

    def fitting(self, blocks: BlockList, first: int, most: int) -> int:
        """How many blocks from the first on there is memory for, at least one.

        Each is there twice while they are put together.
        """
        left, count = self.transfer.nbytes - 2 * self.block, 0
        while first + count < len(blocks) and count < most:
            left -= 2 * blocks[first + count].nbytes
            if left < 0:
                break
            count += 1
        return max(1, count)

    def borrow(self, blocks: int) -> Batches:
        """Have room for so many blocks at a time, for which rows leave memory; at most half of the budget is for them.

        Rows of the policy's choice go to disk. :meth:`give_back` before rows are taken in again.
        """
        wanted = min((2 * blocks + 2) * self.block, self.budget.total // 2)
        if wanted <= self.transfer.nbytes:
            return
        self._own = self._own or self.transfer.nbytes
        while not self.transfer.try_resize(wanted) and any(len(side.memory) for side in self.sides):
            lacking = wanted - self.transfer.nbytes - self.budget.available
            while sum(side.memory.idle_bytes for side in self.sides) < lacking and any(
                len(side.memory) for side in self.sides
            ):
                yield from self.flush()
            for side in self.sides:
                side.memory.pack()

    @property
    def own_transfer(self) -> int:
        """Bytes for blocks on their way, without what is borrowed."""
        return self._own or self.transfer.nbytes

    def give_back(self) -> None:
        """What was borrowed is for rows again."""
        if self._own:
            self.transfer.resize(self._own)
            self._own = 0

    def reach(self, side: int, low: int, high: int) -> tuple[int, int]:
        """From which to which code of the other side rows with codes from ``low`` to ``high`` may have partners."""
        ends = np.array([low, high], np.int64)
        lows, highs = self.matching.ranges(side, ends)
        return int(lows[0]), int(highs[1])
