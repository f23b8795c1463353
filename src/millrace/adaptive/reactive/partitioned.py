"""Reactive phases over partitions on disk: XJoin's second stage, HMJ's merging, RPJ's choice between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.adaptive.disk.block_directory import BlockList
from millrace.adaptive.disk.blocks import Chunk
from millrace.adaptive.disk.clean_up import clean_up
from millrace.adaptive.disk.segments import SEGMENT_BYTES, Segments
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.pair.pair_state import Machinery, Past
from millrace.adaptive.reactive.reactive_policy import Reactive
from millrace.core.errors import ConfigError

_RUN_BYTES = 16
FAN_IN = 10
"""Segments that are merged at a time, as in the paper of DINER."""


class AtTheEnd(Reactive):
    """Nothing is done with rows on disk before both inputs have ended."""

    hurried = True

    def __init__(self, machinery: Machinery) -> None:
        super().__init__(machinery)
        self.pasts = [Past() for _ in range(machinery.partitions.count)]

    @property
    def work(self) -> bool:
        return False

    def unit(self) -> Batches:
        return iter(())

    def clean_up(self) -> Batches:
        self._m.spill_rest()
        for partition, past in enumerate(self.pasts):
            yield from clean_up(self._m, partition, past)

    def state(self) -> dict[str, Any]:
        return {"pasts": [[past.corners, *past.history] for past in self.pasts]}

    def accept(self, state: dict[str, Any]) -> None:
        for past, (corners, left, right) in zip(self.pasts, state["pasts"], strict=True):
            past.corners = [(a, b, c) for a, b, c in corners]
            past.history = ([(a, b) for a, b in left], [(a, b) for a, b in right])


class _Task:
    """Something that can be done, and what it promises."""

    def __init__(self, kind: str, side: int, partition: int, results: float, blocks: int) -> None:
        self.kind, self.side, self.partition, self.results, self.blocks = kind, side, partition, results, blocks

    def rate(self) -> float:
        """Results for a block that is read."""
        return self.results / max(1, self.blocks)


class Probing(AtTheEnd):
    """XJoin's second stage: a partition on disk meets the other side's rows of it in memory.

    The partition that promises most is taken; once begun it is done to its end.
    """

    def __init__(self, machinery: Machinery) -> None:
        super().__init__(machinery)
        self._seen = np.zeros((2, machinery.partitions.count, 2), np.int64)
        """By side and partition, at its last run: its rows on disk, and the rows of the other side that had come."""
        self._charge = machinery.budget.reserve("history")
        self._runs = 0

    @property
    def work(self) -> bool:
        return bool(self._tasks())

    def _tasks(self) -> list[_Task]:
        tasks: list[_Task] = []
        if not self._charge.try_resize((self._runs + 1) * _RUN_BYTES):
            return tasks  # there is no memory to remember another run
        for side in self._m.sides:
            other = self._m.sides[1 - side.number]
            for partition, blocks in enumerate(side.disk.partitions):
                if not blocks.rows:
                    continue
                held = other.memory.between(*self._m.partitions.bounds(partition))
                rows, came = self._seen[side.number, partition]
                fresh = min(held, int(other.came[partition] - came))
                results = blocks.rows * fresh + (blocks.rows - rows) * (held - fresh)
                if results:
                    tasks.append(_Task("probe", side.number, partition, float(results), len(blocks)))
        return tasks

    def unit(self) -> Batches:
        tasks = self._tasks()
        if tasks:
            yield from self._probe(max(tasks, key=lambda task: task.results))

    def _probe(self, task: _Task) -> Batches:
        m, side, other = self._m, self._m.sides[task.side], self._m.sides[1 - task.side]
        self._runs += 1
        blocks, past = side.disk.partitions[task.partition], self.pasts[task.partition]
        now, until, at = m.clock.tick(), 0, 0
        while at < len(blocks):
            count = m.fitting(blocks, at, len(blocks))
            chunk = side.disk.load(task.partition, range(at, at + count))
            yield from self._meet(task, chunk, past)
            chunk.remember()
            until = max(until, int(chunk.stamps[1].max()))
            at += count
        past.add_run(task.side, until, now)
        self._seen[task.side, task.partition] = blocks.rows, other.came[task.partition]

    def _meet(self, task: _Task, chunk: Chunk, past: Past) -> Batches:
        """Rows of a chunk with rows in memory that they have not met."""
        m, other = self._m, self._m.sides[1 - task.side]
        for found in other.memory.matches(*m.matching.ranges(task.side, chunk.codes), m.work):
            arrived, left = chunk.stamps[:, found.rows]
            came = other.memory.stamps[found.slots]
            new = np.maximum(arrived, came) >= left
            for until, when in past.history[task.side]:
                new &= ~((left <= until) & (came < when))
            rows, slots, keys = found.rows[new], found.slots[new], found.keys[new]
            met = m.meet(task.side, chunk.source, chunk.order[rows], chunk.codes[rows], other.source, slots, keys)
            yield from m.put_out(task.side, chunk.source, met.rows, other.source, met.slots)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "seen": self._seen.tolist(), "runs": self._runs}

    def accept(self, state: dict[str, Any]) -> None:
        super().accept(state)
        self._seen[:], self._runs = state["seen"], state["runs"]


class Merging(AtTheEnd):
    """HMJ's merging: up to so many segments of a partition are joined with each other, and are one segment then.

    Which of them is not the paper's to say: those that promise most results for a block that is read.

    Parameters
    ----------
    fan_in
        Most segments that are merged at a time.
    """

    def __init__(self, machinery: Machinery, *, fan_in: int = FAN_IN) -> None:
        super().__init__(machinery)
        self._fan_in = checked_fan_in(fan_in)
        self.segments = [Segments() for _ in range(machinery.partitions.count)]
        self._charge = machinery.budget.reserve("segments")

    @property
    def work(self) -> bool:
        return bool(self._tasks())

    def _lists(self, partition: int) -> list[BlockList]:
        return [side.disk.partitions[partition] for side in self._m.sides]

    def _tasks(self) -> list[_Task]:
        tasks = []
        for partition, segments in enumerate(self.segments):
            segments.look(self._lists(partition), self._most(segments))
            merge = segments.best(self._fan_in)
            if merge is not None and merge.results:
                tasks.append(_Task("merge", 0, partition, merge.results, merge.blocks))
        return tasks

    def _most(self, segments: Segments) -> int:
        """How many segments of a partition may be known: enough for two merges, if there is memory for that."""
        known, most = len(segments.known), 2 * self._fan_in
        others = sum(len(each.known) for each in self.segments) - known
        while most > known and not self._charge.try_resize((others + most) * SEGMENT_BYTES):
            most -= 1
        return most

    def unit(self) -> Batches:
        tasks = self._tasks()
        if tasks:
            yield from self._merge(max(tasks, key=_Task.rate))

    def _merge(self, task: _Task) -> Batches:
        partition, segments = task.partition, self.segments[task.partition]
        merge = segments.best(self._fan_in)
        assert merge is not None
        since, until = segments.known[merge.first].since, segments.known[merge.first + merge.segments - 1].until
        before, past = [len(blocks) for blocks in self._lists(partition)], self.pasts[partition]
        yield from clean_up(self._m, partition, past, since, until)
        past.add_corner(until, until, since)
        segments.merged(merge, self._lists(partition), before)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "segments": [segments.state() for segments in self.segments]}

    def accept(self, state: dict[str, Any]) -> None:
        super().accept(state)
        for segments, kept in zip(self.segments, state["segments"], strict=True):
            segments.accept(kept)

    def check_invariants(self) -> None:
        for partition, segments in enumerate(self.segments):
            segments.check_invariants(self._lists(partition))


class BestOfBoth(Reactive):
    """RPJ: what promises most results per block read, memory with disk or disk with disk.

    Parameters
    ----------
    fan_in
        Most segments that are merged at a time.
    """

    hurried = True

    def __init__(self, machinery: Machinery, *, fan_in: int = FAN_IN) -> None:
        super().__init__(machinery)
        self._probing, self._merging = Probing(machinery), Merging(machinery, fan_in=fan_in)
        self._merging.pasts = self._probing.pasts

    @property
    def work(self) -> bool:
        return self._probing.work or self._merging.work

    def unit(self) -> Batches:
        tasks = [*self._probing._tasks(), *self._merging._tasks()]
        if tasks:
            best = max(tasks, key=_Task.rate)
            yield from self._probing._probe(best) if best.kind == "probe" else self._merging._merge(best)

    def clean_up(self) -> Batches:
        yield from self._probing.clean_up()

    def state(self) -> dict[str, Any]:
        return {"probing": self._probing.state(), "merging": self._merging.state()}

    def accept(self, state: dict[str, Any]) -> None:
        self._probing.accept(state["probing"])
        self._merging.accept(state["merging"])
        self._merging.pasts = self._probing.pasts

    def check_invariants(self) -> None:
        self._merging.check_invariants()


def checked_fan_in(fan_in: int) -> int:
    """A number of segments, or an error that says what it is instead."""
    if isinstance(fan_in, bool) or not isinstance(fan_in, int) or fan_in < 2:
        raise ConfigError(f"fan_in: expected a whole number of at least 2; got {fan_in!r}")
    return fan_in
