"""Reactive policies over partitions on disk: XJoin's second stage, HMJ's merging, and RPJ's choice between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.adaptive.array_types import Batches
from millrace.adaptive.disk.block_directory import BlockList
from millrace.adaptive.disk.blocks import BlockRows
from millrace.adaptive.inputs.joined_history import JoinedHistory
from millrace.adaptive.inputs.pair_inputs import PairInputs
from millrace.adaptive.reactive.pair_clean_up import clean_up
from millrace.adaptive.reactive.reactive_policy import Flush, ReactivePolicy
from millrace.adaptive.reactive.segments import SEGMENT_BYTES, Segments
from millrace.core.errors import ConfigError

_RUN_BYTES = 16
FAN_IN = 10
"""Default number of segments that are merged at a time, as in the DINER paper."""


class PartitionHistories:
    """Records for each partition which pairs of rows have been joined from disk, so that the clean-up skips them."""

    def __init__(self, inputs: PairInputs) -> None:
        self._inputs = inputs
        self._histories = [JoinedHistory() for _ in range(inputs.partitions.count)]

    def __getitem__(self, partition: int) -> JoinedHistory:
        return self._histories[partition]

    def clean_up(self) -> Batches:
        """Join all rows that have not been joined with each other yet."""
        self._inputs.spill_rest()
        for partition, history in enumerate(self._histories):
            yield from clean_up(self._inputs, partition, history)

    def state(self) -> list[Any]:
        """Return the records of all partitions as plain values, for JSON."""
        return [[history.corners, *history.runs] for history in self._histories]

    def restore(self, state: list[Any]) -> None:
        """Restore the histories from the state in a snapshot."""
        self._histories = [
            JoinedHistory([(a, b, c) for a, b, c in corners], ([(a, b) for a, b in left], [(a, b) for a, b in right]))
            for corners, left, right in state
        ]


@dataclass(frozen=True)
class PartitionTask:
    """A possible unit of work with a partition on disk; ``results`` is the number of row pairs that may be results."""

    partition: int
    side: int
    """The side whose rows are read; 0 if rows of both sides are read."""
    results: float
    blocks: int
    run: Callable[[PartitionTask], Batches]

    def rate(self) -> float:
        """Return the expected results per block read."""
        return self.results / max(1, self.blocks)


class CleanUpOnly(ReactivePolicy):
    """A reactive policy that joins rows on disk only after both inputs have ended."""

    stops_at_first_row = True
    has_work = False

    def __init__(self, inputs: PairInputs) -> None:
        self._histories = PartitionHistories(inputs)

    def unit(self, flush: Flush) -> Batches:
        return iter(())

    def clean_up(self) -> Batches:
        return self._histories.clean_up()

    def state(self) -> dict[str, Any]:
        return {"pasts": self._histories.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._histories.restore(state["pasts"])


class DiskProbing(ReactivePolicy):
    """XJoin's second stage: one side's partition on disk is joined with the other side's partition in memory.

    The partition with the most expected results is chosen, and all of its blocks are joined.
    """

    stops_at_first_row = True

    def __init__(self, inputs: PairInputs, histories: PartitionHistories | None = None) -> None:
        self._inputs = inputs
        self._histories = histories or PartitionHistories(inputs)
        self._seen = np.zeros((2, inputs.partitions.count, 2), np.int64)
        """Per side and partition, two counts at the last probe: rows on disk, and rows arrived on the other side."""
        self._charge = inputs.budget.reserve("history")
        self._runs = 0

    @property
    def has_work(self) -> bool:
        return bool(self.tasks())

    def tasks(self) -> list[PartitionTask]:
        """Return a task for each partition that can have results.

        The list is empty if there is no memory to record that another probe was made.
        """
        tasks: list[PartitionTask] = []
        if not self._charge.try_resize((self._runs + 1) * _RUN_BYTES):
            return tasks
        for side in self._inputs.sides:
            other = self._inputs.sides[1 - side.number]
            for partition, blocks in enumerate(side.disk.partitions):
                if not blocks.rows:
                    continue
                held = other.memory.between(*self._inputs.partitions.bounds(partition))
                rows, came = self._seen[side.number, partition]
                fresh = min(held, int(other.arrived_by_partition[partition] - came))
                results = blocks.rows * fresh + (blocks.rows - rows) * (held - fresh)
                if results:
                    tasks.append(PartitionTask(partition, side.number, float(results), len(blocks), self._probe))
        return tasks

    def unit(self, flush: Flush) -> Batches:
        tasks = self.tasks()
        if tasks:
            yield from self._probe(max(tasks, key=lambda task: task.results))

    def _probe(self, task: PartitionTask) -> Batches:
        """Join a partition on disk with the rows that the other side has in memory."""
        inputs, side, other = self._inputs, self._inputs.sides[task.side], self._inputs.sides[1 - task.side]
        self._runs += 1
        blocks, history = side.disk.partitions[task.partition], self._histories[task.partition]
        now, until, at = inputs.clock.tick(), 0, 0
        while at < len(blocks):
            count = inputs.buffers.fitting(blocks, at, len(blocks))
            rows = side.disk.load(task.partition, range(at, at + count))
            yield from self._join(task, rows, history)
            rows.write_marks()
            until = max(until, int(rows.stamps[1].max()))
            at += count
        history.add_run(task.side, until, now)
        self._seen[task.side, task.partition] = blocks.rows, other.arrived_by_partition[task.partition]

    def _join(self, task: PartitionTask, rows: BlockRows, history: JoinedHistory) -> Batches:
        """Join rows from disk with the other side's rows in memory, except pairs that have been joined before."""
        inputs, other = self._inputs, self._inputs.sides[1 - task.side]
        for found in other.memory.matches(*inputs.matching.ranges(task.side, rows.codes), inputs.workspace):
            arrived, left = rows.stamps[:, found.rows]
            came = other.memory.stamps[found.slots]
            new = np.maximum(arrived, came) >= left
            for until, when in history.runs[task.side]:
                new &= ~((left <= until) & (came < when))
            at, slots, keys = found.rows[new], found.slots[new], found.keys[new]
            pairs = inputs.verified(task.side, rows.source, rows.order[at], rows.codes[at], other.source, slots, keys)
            yield from inputs.emit(task.side, rows.source, pairs.rows, other.source, pairs.slots)

    def clean_up(self) -> Batches:
        return self._histories.clean_up()

    def state(self) -> dict[str, Any]:
        return {"pasts": self._histories.state(), "seen": self._seen.tolist(), "runs": self._runs}

    def restore(self, state: dict[str, Any]) -> None:
        self._histories.restore(state["pasts"])
        self._seen[:], self._runs = state["seen"], state["runs"]


class SegmentMerging(ReactivePolicy):
    """HMJ's reactive policy: up to ``fan_in`` segments of a partition are joined with each other and become one.

    The paper does not say which segments to merge; those with the most expected results per block read are chosen.

    Parameters
    ----------
    fan_in
        Maximum number of segments that are merged at a time.
    """

    stops_at_first_row = True

    def __init__(
        self, inputs: PairInputs, histories: PartitionHistories | None = None, *, fan_in: int = FAN_IN
    ) -> None:
        self._inputs = inputs
        self._histories = histories or PartitionHistories(inputs)
        self._fan_in = checked_fan_in(fan_in)
        self.segments = [Segments() for _ in range(inputs.partitions.count)]
        """The segments of each partition."""
        self._charge = inputs.budget.reserve("segments")

    @property
    def has_work(self) -> bool:
        return bool(self.tasks())

    def _lists(self, partition: int) -> list[BlockList]:
        return [side.disk.partitions[partition] for side in self._inputs.sides]

    def tasks(self) -> list[PartitionTask]:
        """Return the best merge of each partition in which a merge can have results."""
        tasks = []
        for partition, segments in enumerate(self.segments):
            segments.update(self._lists(partition), self._most(segments))
            merge = segments.best(self._fan_in)
            if merge is not None and merge.results:
                tasks.append(PartitionTask(partition, 0, merge.results, merge.blocks, self._merge))
        return tasks

    def _most(self, segments: Segments) -> int:
        """Return how many segments of a partition may be kept: enough for two merges, if there is memory for them."""
        known = len(segments.known)
        others = sum(len(each.known) for each in self.segments) - known
        affordable = (self._charge.nbytes + self._inputs.budget.available) // SEGMENT_BYTES - others
        most = 2 * self._fan_in
        if most > known:
            most = max(known, min(most, affordable))
        if most > known:
            self._charge.resize((others + most) * SEGMENT_BYTES)
        return most

    def unit(self, flush: Flush) -> Batches:
        tasks = self.tasks()
        if tasks:
            yield from self._merge(max(tasks, key=PartitionTask.rate))

    def _merge(self, task: PartitionTask) -> Batches:
        """Join the segments of a partition that promise the most results per block, and replace them by one."""
        partition, segments = task.partition, self.segments[task.partition]
        merge = segments.best(self._fan_in)
        assert merge is not None
        since, until = segments.known[merge.first].since, segments.known[merge.first + merge.segments - 1].until
        before, history = [len(blocks) for blocks in self._lists(partition)], self._histories[partition]
        yield from clean_up(self._inputs, partition, history, since, until)
        history.add_corner(until, until, since)
        segments.merged(merge, self._lists(partition), before)

    def clean_up(self) -> Batches:
        return self._histories.clean_up()

    def state(self) -> dict[str, Any]:
        return {"pasts": self._histories.state(), "segments": [segments.state() for segments in self.segments]}

    def restore(self, state: dict[str, Any]) -> None:
        self._histories.restore(state["pasts"])
        self.segments = [Segments.from_state(kept) for kept in state["segments"]]

    def check_invariants(self) -> None:
        for partition, segments in enumerate(self.segments):
            segments.check_invariants(self._lists(partition))


class ProbeOrMerge(ReactivePolicy):
    """RPJ's reactive policy: probes memory or merges segments, whichever promises more results per block read.

    Parameters
    ----------
    fan_in
        Maximum number of segments that are merged at a time.
    """

    stops_at_first_row = True

    def __init__(self, inputs: PairInputs, *, fan_in: int = FAN_IN) -> None:
        self._histories = PartitionHistories(inputs)
        self._probing = DiskProbing(inputs, self._histories)
        self._merging = SegmentMerging(inputs, self._histories, fan_in=fan_in)

    @property
    def has_work(self) -> bool:
        return self._probing.has_work or self._merging.has_work

    def unit(self, flush: Flush) -> Batches:
        tasks = [*self._probing.tasks(), *self._merging.tasks()]
        if tasks:
            best = max(tasks, key=PartitionTask.rate)
            yield from best.run(best)

    def clean_up(self) -> Batches:
        return self._histories.clean_up()

    def state(self) -> dict[str, Any]:
        return {"probing": self._probing.state(), "merging": self._merging.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._probing.restore(state["probing"])
        self._merging.restore(state["merging"])

    def check_invariants(self) -> None:
        self._merging.check_invariants()


def checked_fan_in(fan_in: int) -> int:
    """Return ``fan_in`` after checking that it is a whole number of at least 2."""
    if isinstance(fan_in, bool) or not isinstance(fan_in, int) or fan_in < 2:
        raise ConfigError(f"fan_in: expected a whole number of at least 2; got {fan_in!r}")
    return fan_in
