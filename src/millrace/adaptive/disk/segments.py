"""What HMJ and RPJ merge: segments, the blocks of a partition that left memory together, or were merged.

::

    blocks of both sides, by the moment they left      segments
    7 8 9 │ 15 16 │ 31 │ 40 41 42 │ …            ►     (6, 9]  (14, 16]  (30, 31]  (39, 42]  …
                                         merged  ►     (6, 31]                     (39, 42]  …

Moments that follow one another have no arrival between them, so rows of a segment have all been in memory together. No
more segments are known than a few merges take; later blocks are looked at when earlier ones have been merged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from millrace.adaptive.disk.block_directory import Block, BlockList

SEGMENT_BYTES = 64
"""What a segment takes in memory, the corner that it leaves when it is merged included."""


class Segment(NamedTuple):
    """Rows that left memory after ``since`` and until ``until``, and have all met."""

    since: int
    until: int
    left: int
    """Rows of the left side."""
    right: int
    blocks: int


class Merge(NamedTuple):
    """Segments that follow one another, and what joining them would give."""

    first: int
    segments: int
    results: float
    """Pairs of rows that may not have met."""
    blocks: int


class Segments:
    """Segments of one partition in the order of time."""

    def __init__(self) -> None:
        self.known: list[Segment] = []
        self._seen = [0, 0]
        """Blocks of each side that belong to them: all before the others in its list."""

    def look(self, lists: list[BlockList], most: int) -> None:
        """Take up blocks that have come, until so many segments are known."""
        while True:
            heads = [self._head(blocks, seen) for blocks, seen in zip(lists, self._seen, strict=True)]
            side = min((0, 1), key=lambda each: (heads[each] is None, getattr(heads[each], "left", 0)))
            block = heads[side]
            if block is None or not self._take(side, block, most):
                return
            self._seen[side] += 1

    def _head(self, blocks: BlockList, seen: int) -> Block | None:
        return blocks[seen] if seen < len(blocks) else None

    def _take(self, side: int, block: Block, most: int) -> bool:
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
        """The merge of up to ``fan_in`` segments that promises most for a block that is read."""
        count = min(fan_in, len(self.known))
        merges = [self._merge(first, count) for first in range(len(self.known) - count + 1)] if count > 1 else []
        return max(merges, key=lambda merge: merge.results / merge.blocks, default=None)

    def _merge(self, first: int, count: int) -> Merge:
        some = self.known[first : first + count]
        left, right = sum(each.left for each in some), sum(each.right for each in some)
        results = left * right - sum(each.left * each.right for each in some)
        return Merge(first, count, float(results), sum(each.blocks for each in some))

    def merged(self, merge: Merge, lists: list[BlockList], before: list[int]) -> None:
        """Segments have been joined, and are one; the lists had so many blocks before that."""
        some = self.known[merge.first : merge.first + merge.segments]
        written = [len(blocks) - old for blocks, old in zip(lists, before, strict=True)]
        left, right = sum(each.left for each in some), sum(each.right for each in some)
        blocks = merge.blocks + sum(written)
        self.known[merge.first : merge.first + merge.segments] = [
            Segment(some[0].since, some[-1].until, left, right, blocks)
        ]
        self._seen = [seen + more for seen, more in zip(self._seen, written, strict=True)]

    def state(self) -> list[Any]:
        return [[list(segment) for segment in self.known], self._seen]

    def accept(self, state: list[Any]) -> None:
        known, seen = state
        self.known, self._seen = [Segment(*segment) for segment in known], list(seen)

    def check_invariants(self, lists: list[BlockList]) -> None:
        for before, after in zip(self.known, self.known[1:], strict=False):
            assert before.until <= after.since, "segments overlap"
        for blocks, seen in zip(lists, self._seen, strict=True):
            assert seen <= len(blocks), "more blocks are known than there are"
