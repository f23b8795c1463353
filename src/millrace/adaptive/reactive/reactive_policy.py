"""What is done while nothing comes in, and at the end: the interface, and DINER's nested loops over blocks.

::

              blocks of the outer side
              1 ……… JoinedOuter │ chunk │ …
            ┌────────────────────┬──────┐
    inner 1 │                    │ ████ │      joined: the rectangle, and the chunk with
        …   │  joined            │ ████ │      inner blocks before CurrInner
            │                    │  ←CurrInner
            └────────────────────┴──────┘
     JoinedInner

When the outer side has no more blocks the roles change; the counters go with the sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from millrace.adaptive.disk.block_directory import Block, BlockList
from millrace.adaptive.disk.blocks import Chunk
from millrace.adaptive.disk.clean_up import clean_up
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.pair.pair_state import Machinery, Past

_LOOKS = 16


class Reactive(ABC):
    """Joins that involve the disk."""

    hurried = False
    """Whether it ends as soon as anything has come; else when ``max_new_arrivals`` rows wait."""

    def __init__(self, machinery: Machinery) -> None:
        self._m = machinery

    @property
    @abstractmethod
    def work(self) -> bool:
        """Whether there is something to do while nothing comes in."""

    @abstractmethod
    def unit(self) -> Batches:
        """The least that has to be done at a time before input is looked at again."""

    def pause(self) -> None:
        """Rows come in again: they need the memory."""

    @abstractmethod
    def clean_up(self) -> Batches:
        """Both inputs have ended: join all that has not been."""

    def state(self) -> dict[str, Any]:
        """What it would have to know after a restart."""
        return {}

    def accept(self, state: dict[str, Any]) -> None:
        """Go on from a state."""

    def check_invariants(self) -> None:
        """Assert that the bookkeeping is sound."""


class Idle(Reactive):
    """Nothing is ever on disk."""

    work = False

    def unit(self) -> Batches:
        return iter(())

    def clean_up(self) -> Batches:
        return iter(())


class ReactiveNL(Reactive):
    """DINER's nested loops: a chunk of outer blocks with one inner block at a time.

    Parameters
    ----------
    max_outer_blocks
        Most blocks of a chunk, before the end.
    """

    def __init__(self, machinery: Machinery, *, max_outer_blocks: int) -> None:
        super().__init__(machinery)
        self._most = max_outer_blocks
        self._outer: int | None = None
        self.joined = [0, 0]
        """Blocks of each side that have been joined with each other."""
        self._inner_at = 0
        self._outer_mem = 0
        self._chunk: Chunk | None = None

    def _blocks(self, side: int) -> BlockList:
        return self._m.sides[side].disk.partitions[0]

    @property
    def work(self) -> bool:
        counts = [len(self._blocks(side)) for side in (0, 1)]
        return min(counts) > 0 and (self._outer is None or counts != self.joined)

    def _begin(self) -> None:
        """The first time: the side with fewer blocks is the outer one."""
        counts = [len(self._blocks(side)) for side in (0, 1)]
        self._outer = 0 if counts[0] <= counts[1] else 1
        self.joined[1 - self._outer] = counts[1 - self._outer]

    def unit(self) -> Batches:
        """Join one inner block with the outer chunk."""
        if self._outer is None:
            self._begin()
        for _ in range(_LOOKS):  # blocks whose keys are elsewhere cost a look only
            if not self.work:
                return
            outer, inner = self._roles()
            if self._inner_at < self.joined[inner]:
                if self._chunk is None:
                    yield from self._load_chunk(outer)
                chunk = self._chunk
                assert chunk is not None
                at = self._inner_at
                self._inner_at += 1
                near = self._near(outer, chunk, self._blocks(inner)[at])
                if near:
                    yield from self._join(outer, chunk, at)
            else:
                near = False
                self._outer_mem = self._outer_mem or len(self._blocks(outer)) - self.joined[outer]
            if self._inner_at >= self.joined[inner]:
                self.joined[outer] += self._outer_mem
                self._inner_at = self._outer_mem = 0
                self._drop_chunk()
                return
            if near:
                return

    def _roles(self) -> tuple[int, int]:
        """Who is the outer side and who the inner: they change when the outer one has no more blocks."""
        assert self._outer is not None
        if self.joined[self._outer] == len(self._blocks(self._outer)):
            self._outer, self._inner_at = 1 - self._outer, 0
        return self._outer, 1 - self._outer

    def _join(self, outer: int, chunk: Chunk, at: int) -> Batches:
        inner = self._m.load(self._m.sides[1 - outer], [at])
        yield from self._m.join_chunks(1 - outer, inner, chunk)
        inner.remember()

    def _load_chunk(self, outer: int) -> Batches:
        blocks, first = self._blocks(outer), self.joined[outer]
        yield from self._m.borrow(min(self._most, len(blocks) - first))
        if self._inner_at == 0:
            self._outer_mem = self._m.fitting(blocks, first, self._most)
        self._chunk = self._m.load(self._m.sides[outer], range(first, first + self._outer_mem))

    def pause(self) -> None:
        self._drop_chunk()
        self._m.give_back()

    def _drop_chunk(self) -> None:
        if self._chunk is not None:
            self._chunk.remember()
        self._chunk = None

    def _near(self, outer: int, chunk: Chunk, block: Block) -> bool:
        """Whether a block can have partners in the chunk, by its ends."""
        low, high = self._m.reach(1 - outer, block.low, block.high)
        return bool(low <= chunk.codes[-1] and high >= chunk.codes[0])

    def clean_up(self) -> Batches:
        """What is in memory goes to disk, where rows of the other side are that it has not met; then all are joined."""
        self.pause()
        self._m.spill_rest()
        yield from clean_up(self._m, 0, self.past)

    @property
    def past(self) -> Past:
        """Who has met on disk so far."""
        past = Past()
        outer = 0 if self._outer is None else self._outer
        self._corner(past, outer, self.joined[outer], self.joined[1 - outer])
        self._corner(past, outer, self.joined[outer] + self._outer_mem, self._inner_at)
        return past

    def _corner(self, past: Past, outer: int, outer_blocks: int, inner_blocks: int) -> None:
        if outer_blocks and inner_blocks:
            ends = [self._blocks(outer)[outer_blocks - 1].left, self._blocks(1 - outer)[inner_blocks - 1].left]
            past.add_corner(*(ends if outer == 0 else ends[::-1]))

    def state(self) -> dict[str, Any]:
        if self._chunk is not None:
            self._chunk.remember()
        return {"outer": self._outer, "joined": self.joined, "inner_at": self._inner_at, "outer_mem": self._outer_mem}

    def accept(self, state: dict[str, Any]) -> None:
        self._outer, self.joined = state["outer"], list(state["joined"])
        self._inner_at, self._outer_mem = state["inner_at"], state["outer_mem"]

    def check_invariants(self) -> None:
        for side in (0, 1):
            assert self.joined[side] <= len(self._blocks(side)), "more blocks joined than there are"
        if self._inner_at:
            assert self._outer is not None
            assert self._inner_at <= self.joined[1 - self._outer]
