"""Clean-up: both inputs have ended, and what is on disk is joined as far as it has not been.

A little is joined chunk by chunk, as nested loops. More than a few chunks are sorted first::

    blocks, each with keys from all over  ──sort some at a time──►  blocks with few keys each
    then, range of keys by range:  all rows of one side in it, in memory  ◄── blocks of the other that reach into it

so every row is read three times, however little memory there is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from millrace.adaptive.directory import Spans
from millrace.adaptive.machinery import Machinery, Past
from millrace.adaptive.memory import FIRST, LAST
from millrace.adaptive.output import Batches

_FEW = 3
"""Chunks of one side that are joined without sorting."""

Places = npt.NDArray[np.int64]


def clean_up(m: Machinery, partition: int, past: Past) -> Batches:
    """Join all rows of a partition, where all are on disk, that have not met."""
    lists = [side.disk.partitions[partition] for side in m.sides]
    if not all(len(blocks) for blocks in lists):
        return
    spans = [blocks.spans() for blocks in lists]
    sizes = [int(each[:, 2].sum()) for each in spans]
    build = 0 if sizes[0] <= sizes[1] else 1
    room = m.transfer.nbytes // 6  # a chunk is in memory twice while it is put together, and so is another
    ranges = [(int(FIRST), int(LAST))]
    if sizes[build] > _FEW * room:
        for side, blocks, each, size in zip(m.sides, lists, spans, sizes, strict=True):
            rows = blocks.rows * max(m.block, room // 32) // size
            side.disk.rewrite(partition, _groups(each, np.arange(len(each)), room), max(1, rows))
        spans = [side.disk.partitions[partition].spans() for side in m.sides]
        ranges = list(_ranges(spans[build], room))
    for low, high in ranges:
        yield from _join_range(m, partition, build, spans, low, high, room, past)


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


def _ranges(spans: Spans, room: int) -> Iterator[tuple[int, int]]:
    """Ranges of codes, first to last, whose blocks there is room for, unless one code has more."""
    first, left = int(FIRST), room
    for low, _, nbytes, *_ in spans[np.argsort(spans[:, 0], kind="stable")].tolist():
        if nbytes > left and low > first:
            yield first, low - 1
            first, left = low, room
        left -= nbytes
    yield first, int(LAST)
