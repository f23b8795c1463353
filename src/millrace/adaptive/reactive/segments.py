"""Segments: blocks of a partition that left memory together or were merged. HMJ and RPJ merge segments.

::

    blocks of both sides, by the moment they left      segments
    7 8 9 │ 15 16 │ 31 │ 40 41 42 │ …            ►     (6, 9]  (14, 16]  (30, 31]  (39, 42]  …
                                         merged  ►     (6, 31]                     (39, 42]  …

The times are those of the logical clock. No row arrived between consecutive times, so all rows of a segment that has
not been merged were in memory together. Only as many segments are kept as are needed for a few merges; later blocks
are added when earlier segments have been merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from millrace.adaptive.disk.block_directory import BlockEntry, BlockList

SEGMENT_BYTES = 64
"""Bytes that a segment takes in memory, including the entry that its merge adds to the history."""


class Segment(NamedTuple):
    """Rows that left memory after ``since`` and no later than ``until``, and have all been joined with each other."""

    since: int
    until: int
    left: int
    """Number of rows of the left side."""
    right: int
    """Number of rows of the right side."""
    blocks: int


class Merge(NamedTuple):
    """A possible merge of consecutive segments, and an estimate of the new results that it finds."""

    first: int
    segments: int
    results: float
    """Number of pairs of a left and a right row from different segments, as an estimate of the new results."""
    blocks: int


class Segments:
    """The segments of one partition, in order of time."""

    def __init__(self, known: Sequence[Segment] = (), seen: Sequence[int] = (0, 0)) -> None:
        self.known = list(known)
        self._seen = list(seen)
        """Number of blocks of each side that belong to segments: the first ones in the side's list."""

    def update(self, lists: list[BlockList], most: int) -> None:
        """Add blocks that belong to no segment yet, as long as no more than ``most`` segments are needed."""
        while True:
            heads = [self._head(blocks, seen) for blocks, seen in zip(lists, self._seen, strict=True)]
            side = min((0, 1), key=lambda each: (heads[each] is None, getattr(heads[each], "left", 0)))
            block = heads[side]
            if block is None or not self._take(side, block, most):
                return
            self._seen[side] += 1

    def _head(self, blocks: BlockList, seen: int) -> BlockEntry | None:
        return blocks[seen] if seen < len(blocks) else None

    def _take(self, side: int, block: BlockEntry, most: int) -> bool:
        rows = (block.rows, 0) if side == 0 else (0, block.rows)
        if self.known and self.known[-1].until + 1 == block.left:
            last = self.known.pop()
            self.known.append(
                Segment(last.since, block.left, last.left + rows[0], last.right + rows[1], last.blocks + 1)
            )
            return True
        if len(self.known) >= most:
            return False
        self.known.append(Segment(block.left - 1, block.left, *rows, 1))
        return True

    def best(self, fan_in: int) -> Merge | None:
        """Return the merge of ``fan_in`` consecutive segments that promises the most results per block read.

        If there are fewer segments, return the merge of all; if there are fewer than two, return None.
        """
        count = min(fan_in, len(self.known))
        merges = [self._merge(first, count) for first in range(len(self.known) - count + 1)] if count > 1 else []
        return max(merges, key=lambda merge: merge.results / merge.blocks, default=None)

    def _merge(self, first: int, count: int) -> Merge:
        some = self.known[first : first + count]
        left, right = sum(each.left for each in some), sum(each.right for each in some)
        results = left * right - sum(each.left * each.right for each in some)
        return Merge(first, count, float(results), sum(each.blocks for each in some))

    def merged(self, merge: Merge, lists: list[BlockList], before: list[int]) -> None:
        """Replace the segments of a merge by one segment; ``before`` holds the length of each block list before it."""
        some = self.known[merge.first : merge.first + merge.segments]
        written = [len(blocks) - old for blocks, old in zip(lists, before, strict=True)]
        left, right = sum(each.left for each in some), sum(each.right for each in some)
        blocks = merge.blocks + sum(written)
        self.known[merge.first : merge.first + merge.segments] = [
            Segment(some[0].since, some[-1].until, left, right, blocks)
        ]
        self._seen = [seen + more for seen, more in zip(self._seen, written, strict=True)]

    def state(self) -> list[Any]:
        """Return the segments, and the number of blocks of each side that belong to segments, for JSON."""
        return [[list(segment) for segment in self.known], self._seen]

    @staticmethod
    def from_state(state: list[Any]) -> Segments:
        """Create the segments from the state in a snapshot."""
        known, seen = state
        return Segments([Segment(*segment) for segment in known], seen)

    def check_invariants(self, lists: list[BlockList]) -> None:
        for before, after in zip(self.known, self.known[1:], strict=False):
            assert before.until <= after.since, "segments overlap"
        for blocks, seen in zip(lists, self._seen, strict=True):
            assert seen <= len(blocks), "more blocks are known than there are"
