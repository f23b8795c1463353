"""The clean-up of a join of two inputs: rows on disk are joined where they have not been joined before.

A small partition is joined chunk by chunk, with nested loops. A larger one is joined one range of keys at a time::

    all rows of one side in a range, in memory  ◄── rows of the other side that can match them
          blocks that reach into the next range stay in memory for it, on both sides

So a block is read once, if there is room for all blocks that reach into later ranges. Blocks with a wide range of keys
are sorted first::

    blocks, each with a wide range of keys  ──sort some at a time──►  blocks with narrow ranges

So every row is read a few times, even with very little memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from millrace.adaptive.array_types import Batches
from millrace.adaptive.disk.block_directory import Spans
from millrace.adaptive.disk.blocks import BlockRows, BlockSlice
from millrace.adaptive.disk.spill_files import BlockId
from millrace.adaptive.inputs.joined_history import JoinedHistory
from millrace.adaptive.inputs.pair_inputs import PairInputs, PairSide
from millrace.adaptive.memory.key_ordered_rows import FIRST, LAST

_FEW = 3
"""A partition is not divided into ranges of keys if its smaller side has at most this many chunks."""
_LEAST_BLOCK = 2048
"""Minimum bytes of a sorted block when memory is short: sorting into smaller blocks takes more time than it saves."""
_REACH = (16, 8, 4, 2)
"""Limits for how many ranges a block may overlap without being sorted, tried in this order until memory suffices."""

Places = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]


def clean_up(
    inputs: PairInputs, partition: int, history: JoinedHistory, since: int = 0, until: int = int(LAST)
) -> Batches:
    """Join rows of a partition on disk that have not been joined before.

    Only blocks that left memory after ``since`` and no later than ``until`` are joined.
    """
    spans = [side.disk.partitions[partition].spans(since, until) for side in inputs.sides]
    if not all(len(each) for each in spans):
        return
    sizes = [int(each[:, 2].sum()) for each in spans]
    build = 0 if sizes[0] <= sizes[1] else 1
    window, room = inputs.buffers.nbytes // 6, inputs.buffers.nbytes // 12  # merging rows takes the rest
    ranges: Ranges = [(int(FIRST), int(LAST))]
    if sizes[build] > _FEW * room:
        ranges = _ranges(spans[build], window)
        for number in (build, 1 - build):
            wide = _wide(spans[number], ranges, window)
            if len(wide):
                _sort(inputs, inputs.sides[number], partition, spans[number], wide)
                spans[number] = inputs.sides[number].disk.partitions[partition].spans(since, until)
                ranges = _ranges(spans[number], window) if number == build else ranges
    ours, theirs = (
        BlockWindow(inputs.sides[number], partition, spans[number], window, room) for number in (build, 1 - build)
    )
    for low, high in ranges:
        for chunk in ours.chunks(low, high):
            for other in theirs.chunks(*inputs.partner_range(build, int(chunk.codes[0]), int(chunk.codes[-1]))):
                yield from inputs.join_blocks(1 - build, other, chunk, history)
                other.write_marks()
                del other  # before the next is merged
            chunk.write_marks()
            del chunk


class BlockWindow:
    """Blocks of one side that are held in memory during a clean-up, which joins one range of keys after the other.

    Blocks that also have keys of later ranges are kept if possible, so that they are not read again.

    Parameters
    ----------
    held
        Maximum bytes of blocks to hold.
    room
        Maximum bytes of rows that are merged at a time. Merging takes twice as much memory, in addition to that for
        the rows of the other side.
    """

    def __init__(self, side: PairSide, partition: int, spans: Spans, held: int, room: int) -> None:
        self._disk, self._partition, self._spans, self._most, self._room = side.disk, partition, spans, held, room
        self._held: dict[int, BlockSlice] = {}
        self._nbytes = 0

    def chunks(self, low: int, high: int) -> Iterator[BlockRows]:
        """Yield all rows with codes from ``low`` to ``high``, as many at a time as there is room for."""
        spans = self._spans
        near = _overlapping(spans, low, high)
        near = near[np.argsort(spans[near, 1], kind="stable")]  # the block that reaches furthest is dropped last
        self._drop([at for at in self._held if spans[at, 1] < low])
        pieces: list[BlockSlice] = []
        left = self._room
        for at, nbytes, rows in zip(near.tolist(), *spans[near][:, [2, 4]].T.tolist(), strict=True):
            crowded = at not in self._held and self._nbytes + nbytes > self._most
            if not crowded:
                piece = self._read(at).between(low, high)
            if pieces and (crowded or nbytes * len(piece) // rows > left):
                yield self._disk.merge(self._partition, pieces)
                pieces, left = [], self._room
            if crowded:
                self._make_room(nbytes, high)
                piece = self._read(at).between(low, high)
            if len(piece):
                pieces.append(piece)
                left -= nbytes * len(piece) // rows
        if pieces:
            yield self._disk.merge(self._partition, pieces)

    def _read(self, at: int) -> BlockSlice:
        if at not in self._held:
            _, _, nbytes, block, rows, place = self._spans[at].tolist()
            self._held[at] = self._disk.read(place, BlockId(block), rows)
            self._nbytes += nbytes
        return self._held[at]

    def _make_room(self, nbytes: int, high: int) -> None:
        """Drop blocks that have no codes above ``high``, and then others, until there is room for ``nbytes`` bytes."""
        self._drop([at for at in self._held if self._spans[at, 1] <= high])
        for at in [*self._held]:
            if self._nbytes + nbytes > self._most:
                self._drop([at])

    def _drop(self, places: list[int]) -> None:
        for at in places:
            del self._held[at]
            self._nbytes -= int(self._spans[at, 2])


def _sort(inputs: PairInputs, side: PairSide, partition: int, spans: Spans, wide: Places) -> None:
    """Sort the rows of some blocks of a side into new blocks, as many blocks at a time as there is room for.

    ``wide`` are the positions of these blocks in ``spans``.
    """
    room = inputs.buffers.nbytes // 6
    nbytes = max(room // 32, min(inputs.buffers.block, _LEAST_BLOCK))
    rows = int(spans[:, 4].sum()) * nbytes // int(spans[:, 2].sum())
    side.disk.rewrite(partition, _groups(spans[wide], room), max(1, rows))


def _wide(spans: Spans, ranges: Ranges, room: int) -> Places:
    """Return the positions of the blocks to sort, because they overlap too many ranges.

    The limit is chosen so that the other blocks that overlap several ranges take at most half of ``room`` bytes at any
    time, if possible.
    """
    starts, reached = np.array([low for low, _ in ranges], np.int64), _reached(spans, ranges)
    first = np.searchsorted(starts, spans[:, 0], side="right")
    for most in _REACH:
        kept = reached <= most
        begun = np.bincount(first[kept], spans[kept, 2], len(ranges) + 2)
        ended = np.bincount((first + reached - 1)[kept], spans[kept, 2], len(ranges) + 2)
        if (begun - ended).cumsum().max() <= room // 2:
            break
    return np.flatnonzero(~kept)


def _reached(spans: Spans, ranges: Ranges) -> Places:
    """Return how many ranges each block overlaps."""
    ends = np.array([high for _, high in ranges], np.int64)
    return np.searchsorted(ends, spans[:, 1]) - np.searchsorted(ends, spans[:, 0]) + 1


def _overlapping(spans: Spans, low: int, high: int) -> Places:
    """Return the positions of the blocks that may contain codes from ``low`` to ``high``."""
    return np.flatnonzero((spans[:, 1] >= low) & (spans[:, 0] <= high))


def _groups(spans: Spans, room: int) -> Iterator[list[int]]:
    """Yield positions of blocks in groups that fit into ``room`` bytes, with at least one block each."""
    group: list[int] = []
    left = room
    for nbytes, place in spans[:, [2, 5]].tolist():
        if group and nbytes > left:
            yield group
            group, left = [], room
        group.append(place)
        left -= nbytes
    if group:
        yield group


def _ranges(spans: Spans, room: int) -> Ranges:
    """Divide all codes into ranges such that the blocks that overlap a range fit into ``room`` bytes, if possible."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    ranges: Ranges = []
    first, left = int(FIRST), room
    for at, (low, _, nbytes, *_) in enumerate(spans.tolist()):
        if nbytes > left and low > first:
            ranges.append((first, low - 1))
            begun = spans[:at]
            first, left = low, max(room // 2, room - int(begun[begun[:, 1] >= low, 2].sum()))
        left -= nbytes
    return [*ranges, (first, int(LAST))]
