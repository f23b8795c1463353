"""Clean-up: both inputs have ended, and what is on disk is joined as far as it has not been.

A little is joined chunk by chunk, as nested loops. More than a few chunks are joined range of keys by range::

    all rows of one side in a range, in memory  ◄── rows of the other that they may have to do with
          blocks that reach into the next range stay for it, on both sides

so a block is read once, if what has been begun has room in memory. Blocks with keys from all over do not; these are
sorted first::

    blocks, each with keys from all over  ──sort some at a time──►  blocks with few keys each

and every row is read a few times, however little memory there is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from millrace.adaptive.disk.block_directory import Spans
from millrace.adaptive.disk.blocks import Chunk, Piece
from millrace.adaptive.disk.spill_files import BlockId
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.memory.side import Side
from millrace.adaptive.memory.sorted_rows import FIRST, LAST
from millrace.adaptive.pair.pair_state import Machinery, Past

_FEW = 3
"""Chunks of one side that are joined without looking at ranges."""
_LEAST_BLOCK = 2048
"""Bytes of a sorted block, where there is little room: smaller ones take more time than they save."""
_REACH = (16, 8, 4, 2)
"""Into how many ranges a block may reach as it is, if what is begun has room; else fewer, and sorting is worth it."""

Places = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]


def clean_up(m: Machinery, partition: int, past: Past, since: int = 0, until: int = int(LAST)) -> Batches:
    """Join all rows of a partition on disk that have not met; or those of blocks that left memory at that time."""
    spans = [side.disk.partitions[partition].spans(since, until) for side in m.sides]
    if not all(len(each) for each in spans):
        return
    sizes = [int(each[:, 2].sum()) for each in spans]
    build = 0 if sizes[0] <= sizes[1] else 1
    window, room = m.transfer.nbytes // 6, m.transfer.nbytes // 12  # putting rows together takes the rest
    ranges: Ranges = [(int(FIRST), int(LAST))]
    if sizes[build] > _FEW * room:
        ranges = _ranges(spans[build], window)
        for number in (build, 1 - build):
            wide = _wide(spans[number], ranges, window)
            if len(wide):
                _sort(m, m.sides[number], partition, spans[number], wide)
                spans[number] = m.sides[number].disk.partitions[partition].spans(since, until)
                ranges = _ranges(spans[number], window) if number == build else ranges
    ours, theirs = (Window(m.sides[number], partition, spans[number], window, room) for number in (build, 1 - build))
    for low, high in ranges:
        for chunk in ours.chunks(low, high):
            for other in theirs.chunks(*m.reach(build, int(chunk.codes[0]), int(chunk.codes[-1]))):
                yield from m.join_chunks(1 - build, other, chunk, past)
                other.remember()
                del other  # before the next is put together
            chunk.remember()
            del chunk


class Window:
    """Blocks of one side, as a clean-up goes through the codes: those that reach further stay for the next range.

    Parameters
    ----------
    held
        Most bytes of blocks that are held.
    room
        Most bytes of rows that are put together. While they are, they take twice that, and the other side's are there.
    """

    def __init__(self, side: Side, partition: int, spans: Spans, held: int, room: int) -> None:
        self._disk, self._partition, self._spans, self._most, self._room = side.disk, partition, spans, held, room
        self._held: dict[int, Piece] = {}
        self._nbytes = 0

    def chunks(self, low: int, high: int) -> Iterator[Chunk]:
        """All rows with codes from ``low`` to ``high``, so many at a time as there is room for."""
        spans = self._spans
        near = _overlapping(spans, low, high)
        near = near[np.argsort(spans[near, 1], kind="stable")]  # who reaches furthest is let go last
        self._let_go([at for at in self._held if spans[at, 1] < low])
        pieces: list[Piece] = []
        left = self._room
        for at, nbytes, rows in zip(near.tolist(), *spans[near][:, [2, 4]].T.tolist(), strict=True):
            crowded = at not in self._held and self._nbytes + nbytes > self._most
            if not crowded:
                piece = self._read(at).between(low, high)
            if pieces and (crowded or nbytes * len(piece) // rows > left):
                yield self._disk.together(self._partition, pieces)
                pieces, left = [], self._room
            if crowded:
                self._make_room(nbytes, high)
                piece = self._read(at).between(low, high)
            if len(piece):
                pieces.append(piece)
                left -= nbytes * len(piece) // rows
        if pieces:
            yield self._disk.together(self._partition, pieces)

    def _read(self, at: int) -> Piece:
        if at not in self._held:
            _, _, nbytes, block, rows, place = self._spans[at].tolist()
            self._held[at] = self._disk.read(place, BlockId(block), rows)
            self._nbytes += nbytes
        return self._held[at]

    def _make_room(self, nbytes: int, high: int) -> None:
        """Let go of blocks that do not reach beyond a code; if that is not enough, of others."""
        self._let_go([at for at in self._held if self._spans[at, 1] <= high])
        for at in [*self._held]:
            if self._nbytes + nbytes > self._most:
                self._let_go([at])

    def _let_go(self, places: list[int]) -> None:
        for at in places:
            del self._held[at]
            self._nbytes -= int(self._spans[at, 2])


def _sort(m: Machinery, side: Side, partition: int, spans: Spans, wide: Places) -> None:
    """Sort some blocks of a side, so many at a time as there is room for."""
    room = m.transfer.nbytes // 6
    nbytes = max(room // 32, min(m.block, _LEAST_BLOCK))
    rows = int(spans[:, 4].sum()) * nbytes // int(spans[:, 2].sum())
    side.disk.rewrite(partition, _groups(spans[wide], room), max(1, rows))


def _wide(spans: Spans, ranges: Ranges, room: int) -> Places:
    """Blocks that reach so far that the others, begun and not ended, leave half of the room."""
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
    """How many ranges each block reaches into."""
    ends = np.array([high for _, high in ranges], np.int64)
    return np.searchsorted(ends, spans[:, 1]) - np.searchsorted(ends, spans[:, 0]) + 1


def _overlapping(spans: Spans, low: int, high: int) -> Places:
    """Blocks that may have codes from ``low`` to ``high``."""
    return np.flatnonzero((spans[:, 1] >= low) & (spans[:, 0] <= high))


def _groups(spans: Spans, room: int) -> Iterator[list[int]]:
    """Places of blocks, so many at a time as there is room for; at least one."""
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
    """Ranges of codes, first to last, with room for the blocks that reach into one, unless that would be too many."""
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
