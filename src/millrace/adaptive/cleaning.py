"""Clean-up: both inputs have ended, and what is on disk is joined as far as it has not been.

A little is joined chunk by chunk, as nested loops. More than a few chunks are joined range of keys by range::

    all rows of one side in a range, in memory  ◄── blocks of the other that reach into it

Blocks that reach into many ranges would be read for each, so these are sorted first::

    blocks, each with keys from all over  ──sort some at a time──►  blocks with few keys each

so every row is read a few times, however little memory there is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from millrace.adaptive.directory import Spans
from millrace.adaptive.machinery import Machinery, Past
from millrace.adaptive.memory import FIRST, LAST
from millrace.adaptive.output import Batches
from millrace.adaptive.side import Side

_FEW = 3
"""Chunks of one side that are joined without looking at ranges."""
_LEAST_BLOCK = 2048
"""Bytes of a sorted block, where there is little room: smaller ones take more time than they save."""
_OFTEN = 2
"""How many times a block may be read as it is; sorting costs as much."""

Places = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]


def clean_up(m: Machinery, partition: int, past: Past) -> Batches:
    """Join all rows of a partition, where all are on disk, that have not met."""
    lists = [side.disk.partitions[partition] for side in m.sides]
    if not all(len(blocks) for blocks in lists):
        return
    spans = [blocks.spans() for blocks in lists]
    sizes = [int(each[:, 2].sum()) for each in spans]
    build = 0 if sizes[0] <= sizes[1] else 1
    room = m.transfer.nbytes // 6  # a chunk is in memory twice while it is put together, and so is another
    ranges: Ranges = [(int(FIRST), int(LAST))]
    if sizes[build] > _FEW * room:
        ranges = _ranges(spans[build], room)
        for number in (build, 1 - build):
            wide = np.flatnonzero(_reached(spans[number], ranges) > _OFTEN)
            if len(wide):
                spans[number] = _sort(m, m.sides[number], partition, spans[number], wide, room)
                ranges = _ranges(spans[number], room) if number == build else ranges
    for low, high in ranges:
        yield from _join_range(m, partition, build, spans, low, high, room, past)


def _sort(m: Machinery, side: Side, partition: int, spans: Spans, wide: Places, room: int) -> Spans:
    """Sort some blocks of a side, so many at a time as there is room for; return the spans of all there are then."""
    nbytes = max(room // 32, min(m.block, _LEAST_BLOCK))
    rows = int(spans[:, 4].sum()) * nbytes // int(spans[:, 2].sum())
    side.disk.rewrite(partition, _groups(spans, wide, room), max(1, rows))
    return side.disk.partitions[partition].spans()


def _reached(spans: Spans, ranges: Ranges) -> Places:
    """How many ranges each block reaches into."""
    ends = np.array([high for _, high in ranges], np.int64)
    return np.searchsorted(ends, spans[:, 1]) - np.searchsorted(ends, spans[:, 0]) + 1


def _join_range(
    m: Machinery, partition: int, build: int, spans: list[Spans], low: int, high: int, room: int, past: Past
) -> Batches:
    """Join the rows of one side in a range of codes with all they may have to do with."""
    ours, theirs = m.sides[build], m.sides[1 - build]
    for places in _groups(spans[build], _overlapping(spans[build], low, high), room):
        whole = ours.disk.load(partition, places, spans[build])
        chunk = whole.between(low, high)
        if not len(chunk.codes):
            continue
        near = _overlapping(spans[1 - build], *m.reach(build, int(chunk.codes[0]), int(chunk.codes[-1])))
        for others in _groups(spans[1 - build], near, room):
            other = theirs.disk.load(partition, others, spans[1 - build])
            yield from m.join_chunks(1 - build, other, chunk, past)
            other.remember()
        whole.remember()


def _overlapping(spans: Spans, low: int, high: int) -> Places:
    """Blocks that may have codes from ``low`` to ``high``."""
    return np.flatnonzero((spans[:, 1] >= low) & (spans[:, 0] <= high))


def _groups(spans: Spans, places: Places, room: int) -> Iterator[list[int]]:
    """Blocks, so many at a time as there is room for; at least one."""
    group: list[int] = []
    left = room
    for place, nbytes in zip(places.tolist(), spans[places, 2].tolist(), strict=True):
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
