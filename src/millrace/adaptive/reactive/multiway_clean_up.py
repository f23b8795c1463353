"""The clean-up of a join of several inputs: finds the combinations of rows on disk that have not been output.

Of each input, only rows that can match the rows read before are kept in memory::

    rows of the first ─► rows of the second that can match ─► rows of the third that can match … ─► join
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from millrace.adaptive.array_types import Batches, Codes, Mask
from millrace.adaptive.conditions.join_tree import TreeStep
from millrace.adaptive.disk.block_directory import BlockEntry, BlockList
from millrace.adaptive.inputs.coded_rows import LoadedRows
from millrace.adaptive.inputs.multiway_inputs import Combination, MultiwayInputs

Joined = Callable[[Sequence[LoadedRows], Combination], Mask]
"""A function that returns a mask of the combinations of rows from disk that have been joined before."""


class PartnerRanges:
    """Ranges of key codes: a row of the next input can match one of ``rows`` only if the row's code is in a range."""

    def __init__(self, inputs: MultiwayInputs, step: TreeStep, rows: LoadedRows) -> None:
        codes = np.unique(rows.codes(step.origin.attribute))
        self._ranges: tuple[Codes, Codes] = inputs.matchings[step.edge].ranges(step.side, codes)
        self._attribute = step.target.attribute

    def touches(self, block: BlockEntry) -> bool:
        """Return whether a block may contain rows in the ranges; always True for attributes other than the first."""
        if self._attribute:
            return True
        lows, highs = self._ranges
        first = int(np.searchsorted(highs, block.low))
        return first < len(lows) and bool(lows[first] <= block.high)

    def of(self, rows: LoadedRows) -> LoadedRows:
        """Return the rows whose key codes are in the ranges."""
        return rows.only(rows.near(self._attribute, *self._ranges))


def join_loaded(
    inputs: MultiwayInputs, parts: list[LoadedRows], steps: Sequence[TreeStep], start: int, joined: Joined | None
) -> Batches:
    """Emit the combinations of rows from disk that have not been output."""
    rows = np.arange(len(parts[start]), dtype=np.int32)
    for found in inputs.combinations(parts, start, rows, steps):
        old = inputs.together_in_memory(parts, found)
        if joined is not None:
            old |= joined(parts, found)
        if old.any():
            new = ~old
            found = [each[new] for each in found]
        if len(found[0]):
            yield from inputs.emit(parts, found)


def multiway_clean_up(inputs: MultiwayInputs, partition: int, joined: Joined | None = None) -> Batches:
    """Join the rows of a partition, which are all on disk, and skip combinations that have been joined before.

    Each input is read again every time that memory has been filled with new rows of the inputs before it.
    """
    lists = [relation.disk.partitions[partition] for relation in inputs.sides]
    if not all(len(blocks) for blocks in lists):
        return
    sizes = [float(blocks.rows) for blocks in lists]
    start = int(np.argmin(sizes))
    steps = nested_steps(inputs, start, sizes)
    room = inputs.buffers.nbytes // (len(lists) + 2)  # one extra share for reading, one for concatenating

    def level(at: int, parts: list[LoadedRows | None]) -> Batches:
        if at == len(steps):
            whole = [part for part in parts if part is not None]
            yield from join_loaded(inputs, whole, steps, start, joined)
            return
        step = steps[at]
        known = parts[step.origin.relation]
        assert known is not None
        relation = step.target.relation
        for some in _fillings(inputs, relation, partition, room, PartnerRanges(inputs, step, known)):
            parts[relation] = some
            yield from level(at + 1, parts)
        parts[relation] = None

    parts: list[LoadedRows | None] = [None] * len(lists)
    for rows in _fillings(inputs, start, partition, room, None):
        parts[start] = rows
        yield from level(0, parts)


def _fillings(
    inputs: MultiwayInputs, relation: int, partition: int, room: int, reach: PartnerRanges | None
) -> Iterator[LoadedRows]:
    """Yield the rows of an input on disk, as many at a time as fit into ``room`` bytes.

    Given ``reach``, only rows with key codes in these ranges are yielded.
    """
    side = inputs.sides[relation]
    parts: list[LoadedRows] = []
    held = 0
    for places in _groups(side.disk.partitions[partition], room // 2, reach):
        rows = inputs.load_rows(side, partition, places)
        if reach is not None:
            rows = reach.of(rows)
        if not len(rows):
            continue
        if parts and held + rows.nbytes > room:
            yield LoadedRows.concat(parts)
            parts, held = [], 0
        parts.append(rows)
        held += rows.nbytes
    if parts:
        yield LoadedRows.concat(parts)


def _groups(blocks: BlockList, room: int, reach: PartnerRanges | None) -> Iterator[list[int]]:
    """Yield positions of blocks, in groups that fit into ``room`` bytes.

    If ``reach`` is given, blocks that cannot have rows in these ranges are left out.
    """
    group: list[int] = []
    left = room
    for at, block in enumerate(blocks):
        if reach is not None and not reach.touches(block):
            continue
        if group and block.nbytes > left:
            yield group
            group, left = [], room
        group.append(at)
        left -= block.nbytes
    if group:
        yield group


def nested_steps(inputs: MultiwayInputs, start: int, sizes: Sequence[float]) -> list[TreeStep]:
    """Return the steps from one input to all others, small inputs first, so that large inputs are read less often."""
    costs = [0.0] * len(inputs.tree.edges)
    for step in inputs.tree.order(start, costs):
        costs[step.edge] = sizes[step.target.relation]
    return inputs.tree.order(start, costs)
