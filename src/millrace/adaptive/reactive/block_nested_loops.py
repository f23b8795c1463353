"""DINER's reactive phase: nested loops over blocks.

::

              blocks of the outer side
              1 ……… JoinedOuter │ chunk │ …
            ┌────────────────────┬──────┐
    inner 1 │                    │ ████ │      joined: the rectangle, and the chunk with
        …   │  joined            │ ████ │      inner blocks before CurrInner
            │                    │  ←CurrInner
            └────────────────────┴──────┘
     JoinedInner

A chunk consists of outer blocks that are in memory together. When the outer side has no more blocks, the sides swap
roles; each keeps its number of joined blocks.
"""

from __future__ import annotations

from typing import Any

from millrace.adaptive.array_types import Batches
from millrace.adaptive.disk.block_directory import BlockEntry, BlockList
from millrace.adaptive.disk.blocks import BlockRows
from millrace.adaptive.inputs.joined_history import JoinedHistory
from millrace.adaptive.inputs.pair_inputs import PairInputs
from millrace.adaptive.reactive.pair_clean_up import clean_up
from millrace.adaptive.reactive.reactive_policy import Flush, ReactivePolicy

_LOOKS = 16
"""Maximum number of inner blocks that a unit of work checks in search of one that can match the chunk."""


class ReactiveNL(ReactivePolicy):
    """DINER's reactive policy: a chunk of outer blocks is joined with one inner block at a time.

    Parameters
    ----------
    max_outer_blocks
        Maximum number of blocks in a chunk.
    """

    def __init__(self, inputs: PairInputs, *, max_outer_blocks: int) -> None:
        self._inputs = inputs
        self._most = max_outer_blocks
        self._outer: int | None = None
        self.joined = [0, 0]
        """The first ``joined[0]`` left blocks have been joined with the first ``joined[1]`` right blocks."""
        self._inner_at = 0
        self._outer_mem = 0
        self._chunk: BlockRows | None = None

    def _blocks(self, side: int) -> BlockList:
        return self._inputs.sides[side].disk.partitions[0]

    @property
    def has_work(self) -> bool:
        counts = [len(self._blocks(side)) for side in (0, 1)]
        return min(counts) > 0 and (self._outer is None or counts != self.joined)

    def _begin(self) -> None:
        """Make the side with fewer blocks the outer side, before the first unit of work."""
        counts = [len(self._blocks(side)) for side in (0, 1)]
        self._outer = 0 if counts[0] <= counts[1] else 1
        self.joined[1 - self._outer] = counts[1 - self._outer]

    def unit(self, flush: Flush) -> Batches:
        """Join one inner block with the chunk of outer blocks; skip inner blocks that cannot match."""
        if self._outer is None:
            self._begin()
        for _ in range(_LOOKS):  # blocks whose keys cannot match are skipped
            if not self.has_work:
                return
            outer, inner = self._roles()
            if self._inner_at < self.joined[inner]:
                if self._chunk is None:
                    yield from self._load_chunk(outer, flush)
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
        """Return the outer and the inner side, which swap roles when the outer side has no more blocks."""
        assert self._outer is not None
        if self.joined[self._outer] == len(self._blocks(self._outer)):
            self._outer, self._inner_at = 1 - self._outer, 0
        return self._outer, 1 - self._outer

    def _join(self, outer: int, chunk: BlockRows, at: int) -> Batches:
        inner = self._inputs.load(self._inputs.sides[1 - outer], [at])
        yield from self._inputs.join_blocks(1 - outer, inner, chunk)
        inner.write_marks()

    def _load_chunk(self, outer: int, flush: Flush) -> Batches:
        blocks, first = self._blocks(outer), self.joined[outer]
        yield from self._inputs.borrow(min(self._most, len(blocks) - first), flush)
        if self._inner_at == 0:
            self._outer_mem = self._inputs.buffers.fitting(blocks, first, self._most)
        self._chunk = self._inputs.load(self._inputs.sides[outer], range(first, first + self._outer_mem))

    def pause(self) -> None:
        self._drop_chunk()
        self._inputs.give_back()

    def _drop_chunk(self) -> None:
        if self._chunk is not None:
            self._chunk.write_marks()
        self._chunk = None

    def _near(self, outer: int, chunk: BlockRows, block: BlockEntry) -> bool:
        """Return whether the key ranges of a block and of the chunk are close enough for rows to match."""
        low, high = self._inputs.partner_range(1 - outer, block.low, block.high)
        return bool(low <= chunk.codes[-1] and high >= chunk.codes[0])

    def clean_up(self) -> Batches:
        """Write rows in memory to disk if the other side has rows there, and join all pairs not joined yet."""
        self.pause()
        self._inputs.spill_rest()
        yield from clean_up(self._inputs, 0, self.history)

    @property
    def history(self) -> JoinedHistory:
        """The record of which rows on disk have been joined with each other so far."""
        history = JoinedHistory()
        outer = 0 if self._outer is None else self._outer
        self._add_corner(history, outer, self.joined[outer], self.joined[1 - outer])
        self._add_corner(history, outer, self.joined[outer] + self._outer_mem, self._inner_at)
        return history

    def _add_corner(self, history: JoinedHistory, outer: int, outer_blocks: int, inner_blocks: int) -> None:
        if outer_blocks and inner_blocks:
            ends = [self._blocks(outer)[outer_blocks - 1].left, self._blocks(1 - outer)[inner_blocks - 1].left]
            history.add_corner(*(ends if outer == 0 else ends[::-1]))

    def state(self) -> dict[str, Any]:
        if self._chunk is not None:
            self._chunk.write_marks()
        return {"outer": self._outer, "joined": self.joined, "inner_at": self._inner_at, "outer_mem": self._outer_mem}

    def restore(self, state: dict[str, Any]) -> None:
        self._outer, self.joined = state["outer"], list(state["joined"])
        self._inner_at, self._outer_mem = state["inner_at"], state["outer_mem"]

    def check_invariants(self) -> None:
        for side in (0, 1):
            assert self.joined[side] <= len(self._blocks(side)), "more blocks joined than there are"
        if self._inner_at:
            assert self._outer is not None
            assert self._inner_at <= self.joined[1 - self._outer]
