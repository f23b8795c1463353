"""MINER's reactive phase, and the end of every join of several inputs.

The *box*: of each input, blocks before ``joined`` have been joined with those of all others. It grows by a chunk of one
input at a time, the outer one, with nested loops over the blocks of the others that are in the box::

    chunk of the outer ─► block of the first inner ─► block of the second ─► … ─► join
                          at[0]                       at[1]        the last counter moves fastest

A block of which no row can have a partner in those before it ends its loop at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from millrace.adaptive.disk.block_directory import Block, BlockList
from millrace.adaptive.memory.pair_codes import Mask
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.memory.row_places import Loaded
from millrace.adaptive.memory.sorted_rows import Codes
from millrace.adaptive.multiway.join_tree import Step
from millrace.adaptive.multiway.relations import Combination, Several
from millrace.adaptive.reactive.reactive_policy import Reactive

Done = Callable[[Sequence[Loaded], Combination], Mask]

_LOADS = 8
"""Blocks that one unit looks at if nothing comes of them."""


class Reach:
    """Where rows of an input can have partners of the next."""

    def __init__(self, m: Several, step: Step, place: Loaded) -> None:
        codes = np.unique(place.codes(step.origin.attribute))
        self._ranges: tuple[Codes, Codes] = m.matchings[step.edge].ranges(step.side, codes)
        self._attribute = step.target.attribute

    def touches(self, block: Block) -> bool:
        """Whether a block can have some, by its ends. It knows those of the first attribute only."""
        if self._attribute:
            return True
        lows, highs = self._ranges
        first = int(np.searchsorted(highs, block.low))
        return first < len(lows) and bool(lows[first] <= block.high)

    def of(self, place: Loaded) -> Loaded:
        """Rows that can be partners."""
        return place.only(place.near(self._attribute, *self._ranges))


def join_places(m: Several, places: list[Loaded], steps: Sequence[Step], start: int, done: Done | None) -> Batches:
    """Combinations of loaded rows that have not come out yet."""
    rows = np.arange(len(places[start]), dtype=np.int32)
    for found in m.combinations(places, start, rows, steps):
        old = m.met(places, found)
        if done is not None:
            old |= done(places, found)
        if old.any():
            new = ~old
            found = [each[new] for each in found]
        if len(found[0]):
            yield from m.put(places, found)


def clean_up(m: Several, partition: int, done: Done | None = None) -> Batches:
    """All rows of a partition are on disk: join those that have not met.

    Of each input only rows that can have partners among those before it are kept in memory, as many as there is room
    for, so an input is read once for every filling of those before it.
    """
    lists = [relation.disk.partitions[partition] for relation in m.sides]
    if not all(len(blocks) for blocks in lists):
        return
    sizes = [float(blocks.rows) for blocks in lists]
    start = int(np.argmin(sizes))
    steps = nested(m, start, sizes)
    room = m.transfer.nbytes // (len(lists) + 2)  # one for what is read, one while parts are put together

    def level(at: int, places: list[Loaded | None]) -> Batches:
        if at == len(steps):
            whole = [place for place in places if place is not None]
            yield from join_places(m, whole, steps, start, done)
            return
        step = steps[at]
        known = places[step.origin.relation]
        assert known is not None
        relation = step.target.relation
        for some in _fillings(m, relation, partition, room, Reach(m, step, known)):
            places[relation] = some
            yield from level(at + 1, places)
        places[relation] = None

    places: list[Loaded | None] = [None] * len(lists)
    for chunk in _fillings(m, start, partition, room, None):
        places[start] = chunk
        yield from level(0, places)


def _fillings(m: Several, relation: int, partition: int, room: int, reach: Reach | None) -> Iterator[Loaded]:
    """Rows within reach, so many at a time as there is room for."""
    side = m.sides[relation]
    parts: list[Loaded] = []
    held = 0
    for places in _groups(side.disk.partitions[partition], room // 2, reach):
        place = m.loaded(side, partition, places)
        if reach is not None:
            place = reach.of(place)
        if not len(place):
            continue
        if parts and held + place.nbytes > room:
            yield Loaded.together(parts)
            parts, held = [], 0
        parts.append(place)
        held += place.nbytes
    if parts:
        yield Loaded.together(parts)


def _groups(blocks: BlockList, room: int, reach: Reach | None) -> Iterator[list[int]]:
    """Blocks within reach, so many as are read together."""
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


def nested(m: Several, start: int, sizes: Sequence[float]) -> list[Step]:
    """From one input to all others, small ones first, so that large ones are read as seldom as can be."""
    costs = [0.0] * len(m.tree.edges)
    for step in m.tree.order(start, costs):
        costs[step.edge] = sizes[step.target.relation]
    return m.tree.order(start, costs)


class GrowingBox(Reactive):
    """MINER's nested loops.

    Parameters
    ----------
    max_outer_blocks
        Most blocks of a chunk.
    """

    _m: Several

    def __init__(self, machinery: Several, *, max_outer_blocks: int) -> None:
        super().__init__(machinery)
        self._m = machinery
        self._most = max_outer_blocks
        self.joined = [0] * len(machinery.sides)
        """By input, the blocks that are in the box."""
        self._outer: int | None = None
        self._chunk = 0
        self._steps: list[Step] = []
        self._at: list[int] = []
        self._places: dict[int, Loaded] = {}

    def _blocks(self, relation: int) -> BlockList:
        return self._m.sides[relation].disk.partitions[0]

    def _counts(self) -> list[int]:
        return [len(self._blocks(relation)) for relation in range(len(self.joined))]

    @property
    def work(self) -> bool:
        counts = self._counts()
        return min(counts) > 0 and (self._outer is None or counts != self.joined)

    def unit(self) -> Batches:
        """Join one block of the innermost input, or find that some have nobody to be joined with."""
        for _ in range(_LOADS):
            if not self.work:
                return
            if not self._chunk:
                self._next_chunk()
            places = self._loaded()
            if places is not None:
                assert self._outer is not None
                yield from join_places(self._m, places, self._steps, self._outer, None)
                self._advance(len(self._steps) - 1)
                return

    def _next_chunk(self) -> None:
        counts = self._counts()
        if self._outer is None:
            self._outer = int(np.argmin(counts))
            self.joined = [0 if each == self._outer else count for each, count in enumerate(counts)]
        waiting = [count - joined for count, joined in zip(counts, self.joined, strict=True)]
        if not waiting[self._outer]:
            self._outer = int(np.argmax(waiting))
        self._steps = nested(self._m, self._outer, self.joined)
        self._at = [0] * len(self._steps)
        blocks, first = self._blocks(self._outer), self.joined[self._outer]
        left = self._m.transfer.nbytes - 2 * len(self._steps) * self._m.block
        while first + self._chunk < len(blocks) and self._chunk < self._most:
            left -= 2 * blocks[first + self._chunk].nbytes
            if left < 0:
                break
            self._chunk += 1
        self._chunk = max(1, self._chunk)

    def _loaded(self) -> list[Loaded] | None:
        """The chunk and the current blocks, rows without partners left out; None if that leaves nobody."""
        assert self._outer is not None
        m, outer = self._m, self._outer
        if outer not in self._places:
            first = self.joined[outer]
            self._places[outer] = m.loaded(m.sides[outer], 0, range(first, first + self._chunk))
        for level, (step, at) in enumerate(zip(self._steps, self._at, strict=True)):
            relation = step.target.relation
            if relation in self._places:
                continue
            reach = Reach(m, step, self._places[step.origin.relation])
            if reach.touches(self._blocks(relation)[at]):
                place = reach.of(m.loaded(m.sides[relation], 0, [at]))
                if len(place):
                    self._places[relation] = place
                    continue
            self._advance(level)
            return None
        return [self._places[relation] for relation in range(len(self.joined))]

    def _advance(self, level: int) -> None:
        """Go on to the next block of a level; those behind it start again."""
        while level >= 0:
            for step in self._steps[level:]:
                self._places.pop(step.target.relation, None)
            self._at[level + 1 :] = [0] * (len(self._at) - level - 1)
            self._at[level] += 1
            if self._at[level] < self.joined[self._steps[level].target.relation]:
                return
            level -= 1
        assert self._outer is not None
        self.joined[self._outer] += self._chunk
        self._chunk = 0
        self._places.clear()

    def done(self, places: Sequence[Loaded], rows: Combination) -> Mask:
        """Which combinations were joined in the box, or in the part of the chunk's loops that has been run."""
        blocks = [place.blocks[each] for place, each in zip(places, rows, strict=True)]
        inside: list[Mask] = [each < joined for each, joined in zip(blocks, self.joined, strict=True)]
        result: Mask = np.logical_and.reduce(inside)
        if self._chunk:
            assert self._outer is not None
            first = self.joined[self._outer]
            run: Mask = (blocks[self._outer] >= first) & (blocks[self._outer] < first + self._chunk)
            before = np.zeros(len(run), np.bool_)
            for step, at in zip(reversed(self._steps), reversed(self._at), strict=True):
                each = blocks[step.target.relation]
                run &= inside[step.target.relation]
                before = (each < at) | ((each == at) & before)
            result |= run & before
        return result

    def clean_up(self) -> Batches:
        self._places.clear()
        self._m.spill_rest()
        yield from clean_up(self._m, 0, self.done)

    def state(self) -> dict[str, Any]:
        steps = [(step.edge, step.side) for step in self._steps]
        return {"joined": self.joined, "outer": self._outer, "chunk": self._chunk, "steps": steps, "at": self._at}

    def accept(self, state: dict[str, Any]) -> None:
        edges = self._m.tree.edges
        self.joined, self._outer, self._chunk = state["joined"], state["outer"], state["chunk"]
        self._steps = [Step(e, side, edges[e].ends[side], edges[e].ends[1 - side]) for e, side in state["steps"]]
        self._at = state["at"]

    def check_invariants(self) -> None:
        for joined, count in zip(self.joined, self._counts(), strict=True):
            assert joined <= count, "more blocks joined than there are"
        for step, at in zip(self._steps, self._at, strict=True):
            assert not self._chunk or at < self.joined[step.target.relation], "a loop is beyond its end"


class OnlyAtTheEnd(Reactive):
    """MJoin: nothing is done with rows on disk before all inputs have ended; then bucket by bucket."""

    _m: Several
    work = False

    def __init__(self, machinery: Several) -> None:
        super().__init__(machinery)
        self._m = machinery

    def unit(self) -> Batches:
        return iter(())

    def clean_up(self) -> Batches:
        self._m.spill_rest()
        for partition in range(self._m.partitions.count):
            yield from clean_up(self._m, partition)
