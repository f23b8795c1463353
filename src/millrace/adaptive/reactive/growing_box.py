"""Reactive policies for several inputs: MINER's nested loops over blocks, and MJoin's clean-up at the end.

The *box* is what has been joined so far: the first ``joined[i]`` blocks of every input i, with each other. It
grows by a chunk of blocks of one input at a time, the *outer* input, with nested loops over the blocks of the other
inputs that are in the box::

    chunk of the outer ─► block of the first inner ─► block of the second ─► … ─► join
                          at[0]                       at[1]        the last counter moves fastest

If no row of a block can match a row in the blocks of the loops around it, the loops inside it are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.adaptive.array_types import Batches, Mask
from millrace.adaptive.conditions.join_tree import TreeStep
from millrace.adaptive.disk.block_directory import BlockList
from millrace.adaptive.inputs.coded_rows import LoadedRows
from millrace.adaptive.inputs.multiway_inputs import Combination, MultiwayInputs
from millrace.adaptive.reactive.multiway_clean_up import PartnerRanges, join_loaded, multiway_clean_up, nested_steps
from millrace.adaptive.reactive.reactive_policy import Flush, ReactivePolicy

_LOADS = 8
"""Maximum number of attempts, within one unit of work, to find blocks that can match."""


class GrowingBox(ReactivePolicy):
    """MINER's reactive policy: nested loops over the blocks of all inputs.

    Parameters
    ----------
    max_outer_blocks
        Maximum number of blocks of the outer input that are joined together, as one chunk.
    """

    def __init__(self, inputs: MultiwayInputs, *, max_outer_blocks: int) -> None:
        self._inputs = inputs
        self._most = max_outer_blocks
        self.joined = [0] * len(inputs.sides)
        """For each input, how many of its first blocks have been joined with those of all other inputs."""
        self._outer: int | None = None
        self._chunk = 0
        self._steps: list[TreeStep] = []
        self._at: list[int] = []
        self._loaded: dict[int, LoadedRows] = {}

    def _blocks(self, relation: int) -> BlockList:
        return self._inputs.sides[relation].disk.partitions[0]

    def _counts(self) -> list[int]:
        return [len(self._blocks(relation)) for relation in range(len(self.joined))]

    @property
    def has_work(self) -> bool:
        counts = self._counts()
        return min(counts) > 0 and (self._outer is None or counts != self.joined)

    def unit(self, flush: Flush) -> Batches:
        """Join one block of the innermost input, or skip some blocks without matches."""
        for _ in range(_LOADS):
            if not self.has_work:
                return
            if not self._chunk:
                self._next_chunk()
            parts = self._load()
            if parts is not None:
                assert self._outer is not None
                yield from join_loaded(self._inputs, parts, self._steps, self._outer, None)
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
        self._steps = nested_steps(self._inputs, self._outer, self.joined)
        self._at = [0] * len(self._steps)
        blocks, first = self._blocks(self._outer), self.joined[self._outer]
        left = self._inputs.buffers.nbytes - 2 * len(self._steps) * self._inputs.buffers.block
        while first + self._chunk < len(blocks) and self._chunk < self._most:
            left -= 2 * blocks[first + self._chunk].nbytes
            if left < 0:
                break
            self._chunk += 1
        self._chunk = max(1, self._chunk)

    def _load(self) -> list[LoadedRows] | None:
        """Read the outer input's chunk and the current block of each other input, without rows that cannot match.

        If no row of a block can match, move on to the next block, and return None.
        """
        assert self._outer is not None
        inputs, outer = self._inputs, self._outer
        if outer not in self._loaded:
            first = self.joined[outer]
            self._loaded[outer] = inputs.load_rows(inputs.sides[outer], 0, range(first, first + self._chunk))
        for level, (step, at) in enumerate(zip(self._steps, self._at, strict=True)):
            relation = step.target.relation
            if relation in self._loaded:
                continue
            reach = PartnerRanges(inputs, step, self._loaded[step.origin.relation])
            if reach.touches(self._blocks(relation)[at]):
                rows = reach.of(inputs.load_rows(inputs.sides[relation], 0, [at]))
                if len(rows):
                    self._loaded[relation] = rows
                    continue
            self._advance(level)
            return None
        return [self._loaded[relation] for relation in range(len(self.joined))]

    def _advance(self, level: int) -> None:
        """Move one loop to its next block, and restart the loops inside it."""
        while level >= 0:
            for step in self._steps[level:]:
                self._loaded.pop(step.target.relation, None)
            self._at[level + 1 :] = [0] * (len(self._at) - level - 1)
            self._at[level] += 1
            if self._at[level] < self.joined[self._steps[level].target.relation]:
                return
            level -= 1
        assert self._outer is not None
        self.joined[self._outer] += self._chunk
        self._chunk = 0
        self._loaded.clear()

    def in_box(self, parts: Sequence[LoadedRows], rows: Combination) -> Mask:
        """Return a mask of ``rows``: the combinations that the nested loops have joined so far.

        Combinations with rows of the current chunk are included if they have been joined already.
        """
        blocks = [part.blocks[each] for part, each in zip(parts, rows, strict=True)]
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
        self._loaded.clear()
        self._inputs.spill_rest()
        yield from multiway_clean_up(self._inputs, 0, self.in_box)

    def state(self) -> dict[str, Any]:
        steps = [(step.edge, step.side) for step in self._steps]
        return {"joined": self.joined, "outer": self._outer, "chunk": self._chunk, "steps": steps, "at": self._at}

    def restore(self, state: dict[str, Any]) -> None:
        edges = self._inputs.tree.edges
        self.joined, self._outer, self._chunk = state["joined"], state["outer"], state["chunk"]
        self._steps = [TreeStep(e, side, edges[e].ends[side], edges[e].ends[1 - side]) for e, side in state["steps"]]
        self._at = state["at"]

    def check_invariants(self) -> None:
        for joined, count in zip(self.joined, self._counts(), strict=True):
            assert joined <= count, "more blocks joined than there are"
        for step, at in zip(self._steps, self._at, strict=True):
            assert not self._chunk or at < self.joined[step.target.relation], "a loop is beyond its end"


class MultiwayCleanUpOnly(ReactivePolicy):
    """MJoin's reactive policy: rows on disk are joined only after all inputs have ended, partition by partition."""

    has_work = False

    def __init__(self, inputs: MultiwayInputs) -> None:
        self._inputs = inputs

    def unit(self, flush: Flush) -> Batches:
        return iter(())

    def clean_up(self) -> Batches:
        self._inputs.spill_rest()
        for partition in range(self._inputs.partitions.count):
            yield from multiway_clean_up(self._inputs, partition)
