"""Flush policies that choose among hash buckets.

A bucket is a range of mixed (hashed) key codes; several buckets may share a partition on disk. A *frozen* bucket is
written to disk as soon as its rows in memory fill a block.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from millrace.adaptive.array_types import Batches, Codes, Counts, Mask
from millrace.adaptive.flush.flush_policy import FlushPolicy
from millrace.adaptive.inputs.join_inputs import JoinInputs
from millrace.adaptive.inputs.pair_inputs import PairInputs
from millrace.adaptive.memory.code_ranges import CodeRanges
from millrace.adaptive.memory.key_ordered_rows import LAST
from millrace.core.errors import one_of

_PARTITIONS = 8


class Buckets(FlushPolicy):
    """Base class of the policies that write hash buckets to disk; counts the rows in memory per input and bucket."""

    partitions = _PARTITIONS
    buckets = _PARTITIONS

    def __init__(self, inputs: JoinInputs[Any]) -> None:
        self._inputs = inputs
        self.ranges = CodeRanges(self.buckets)
        self.counts: Counts = np.zeros((len(inputs.sides), self.buckets), np.int64)
        """Rows in memory, per input and bucket."""
        self.frozen: Mask = np.zeros((len(inputs.sides), self.buckets), np.bool_)
        """Per input and bucket, whether its rows are written to disk as soon as they fill a block."""

    def arrived(self, side: int, codes: Codes) -> None:
        self.counts[side] += self.ranges.counts(codes)

    def stored(self) -> None:
        for number, bucket in np.argwhere(self.frozen):
            if self.counts[number, bucket] >= self._inputs.sides[number].block_rows:
                self.send(int(number), int(bucket))

    def send(self, number: int, bucket: int, rows: int | None = None, latest: int = int(LAST)) -> None:
        """Write rows of an input's bucket that arrived by ``latest`` to disk, at most ``rows`` if that is given."""
        side = self._inputs.sides[number]
        low, high = self.ranges.bounds(bucket)
        limit = int(self.counts[number, bucket]) if rows is None else rows
        codes, slots = side.memory.take_out(low, high, limit, latest=latest)
        self._inputs.spill(side, codes, slots, bucket * self.partitions // self.buckets)
        self.counts[number, bucket] -= len(codes)

    def send_frozen(self) -> bool:
        """Write the frozen bucket with the most rows in memory to disk; return False if no frozen bucket has rows."""
        waiting = np.where(self.frozen, self.counts, 0)
        if not waiting.any():
            return False
        number, bucket = np.unravel_index(int(waiting.argmax()), waiting.shape)
        self.send(int(number), int(bucket))
        return True

    def state(self) -> dict[str, Any]:
        return {"frozen": self.frozen.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        self.frozen[:] = state["frozen"]
        for number, side in enumerate(self._inputs.sides):
            self.counts[number] = self.ranges.counts(side.memory.entries()[0])

    def check_invariants(self) -> None:
        for number, side in enumerate(self._inputs.sides):
            counted = self.ranges.counts(side.memory.entries()[0])
            assert (self.counts[number] == counted).all(), "buckets do not add up"


class LargestPartition(Buckets):
    """XJoin's flush policy: the largest partition of one input goes to disk; rows of the other input stay in memory."""

    def flush(self) -> Batches:
        number, bucket = np.unravel_index(int(self.counts.argmax()), self.counts.shape)
        self.send(int(number), int(bucket))
        return iter(())


class SymmetricBuckets(Buckets):
    """DPHJ's flush policy: the largest bucket of both inputs goes to disk, and so do rows that arrive for it later."""

    def flush(self) -> Batches:
        both = np.where(self.frozen[0], 0, self.counts.sum(axis=0))
        if both.any():
            bucket = int(both.argmax())
            self.frozen[:, bucket] = True
            for number in (0, 1):
                self.send(number, bucket)
        else:
            self.send_frozen()
        return iter(())


class BiasedBuckets(Buckets):
    """EHJ's flush policy: the largest bucket of the probe side goes to disk.

    If the probe side has no more buckets to write, the smallest bucket of the build side goes to disk.

    Parameters
    ----------
    build
        The side that stays in memory longer, ``"left"`` or ``"right"``; it should be the smaller input.
    """

    def __init__(self, inputs: PairInputs, *, build: str = "left") -> None:
        super().__init__(inputs)
        self._build = ("left", "right").index(one_of("build", build, ("left", "right")))

    def flush(self) -> Batches:
        build, other = self._build, 1 - self._build
        if self.send_frozen():
            return iter(())
        open_others = np.where(self.frozen[other], 0, self.counts[other])
        if open_others.any():
            number, bucket = other, int(open_others.argmax())
        else:
            left = np.where(self.frozen[build] | (self.counts[build] == 0), LAST, self.counts[build])
            number, bucket = build, int(left.argmin())
            self.frozen[other, bucket] = True  # a probe bucket is frozen before or with the build bucket
        self.frozen[number, bucket] = True
        self.send(number, bucket)
        return iter(())

    def check_invariants(self) -> None:
        super().check_invariants()
        before = self.frozen[self._build] & ~self.frozen[1 - self._build]
        assert not before.any(), "a bucket of the build side left memory before the probe side's"


class AdaptivePairs(Buckets):
    """HMJ's flush policy: one bucket of both inputs goes to disk, chosen to balance memory and avoid small blocks.

    Parameters
    ----------
    smallest
        Fraction of an average bucket's rows below which a bucket is not worth writing (the paper's a).
    imbalance
        Maximum difference between the numbers of rows of the two sides in memory, as a fraction of all rows in memory
        (the paper's b).
    """

    buckets = 4 * _PARTITIONS

    def __init__(self, inputs: PairInputs, *, smallest: float = 0.5, imbalance: float = 0.25) -> None:
        super().__init__(inputs)
        self._smallest, self._imbalance = smallest, imbalance

    def flush(self) -> Batches:
        least = self._smallest * self.counts.sum() / (2 * self.buckets)
        bucket = choose_pair(self.counts[0], self.counts[1], least, self._imbalance)
        for number in (0, 1):
            if self.counts[number, bucket]:
                self.send(number, bucket)
        return iter(())


def choose_pair(left: Counts, right: Counts, smallest: float, imbalance: float) -> int:
    """Return the number of the bucket that HMJ's flush policy writes, given the rows of each side per bucket.

    It is the largest suitable bucket. The sides are balanced if their totals differ by less than ``imbalance`` times
    the number of all rows. If they are balanced, a bucket is suitable if they stay balanced once it is written.
    Otherwise, a bucket is suitable if it has at least as many rows of the larger side as of the other. If no bucket is
    suitable, all are. Buckets in which either side has fewer than ``smallest`` rows are avoided if others are left.

    >>> pairs = np.array([(4, 12), (11, 13), (13, 10), (6, 4), (25, 2)])
    >>> [choose_pair(*pairs.T, a, b) for a, b in ((10, 0.25), (10, 0.10), (1, 0.10))]
    [1, 2, 4]
    """
    total = left.sum() + right.sum()
    size = left + right
    big = (left >= smallest) & (right >= smallest)
    if abs(left.sum() - right.sum()) < imbalance * total:
        candidates = big if big.any() else size > 0
        after = np.abs((left.sum() - left) - (right.sum() - right)) < imbalance * total
        chosen = candidates & after if (candidates & after).any() else candidates
    else:
        more, fewer = (left, right) if left.sum() >= right.sum() else (right, left)
        candidates = (more >= fewer) & (size > 0)
        chosen = candidates & big if (candidates & big).any() else candidates
    return int(np.where(chosen, size, -1).argmax())


class LeastLikely(Buckets):
    """RPJ's flush policy: a block of rows goes to disk, from the buckets that are least likely to match later.

    Of a bucket that is only written in part, the oldest rows are taken.
    """

    def __init__(self, inputs: PairInputs) -> None:
        super().__init__(inputs)
        self._recent = np.ones((2, self.buckets))
        """Arrivals per side and bucket; older arrivals count less."""

    def arrived(self, side: int, codes: Codes) -> None:
        came = self.ranges.counts(codes)
        self.counts[side] += came
        self._recent[side] += came
        if self._recent.sum() > 2 * max(int(self.counts.sum()), 2 * self.buckets):
            self._recent /= 2

    def flush(self) -> Batches:
        left = 1.0  # fraction of a block that is still to be written
        block_rows = [side.block_rows for side in self._inputs.sides]
        for at in np.argsort(self._recent, axis=None, kind="stable"):
            number, bucket = 1 - int(at) // self.buckets, int(at) % self.buckets
            rows = min(int(self.counts[number, bucket]), math.ceil(left * block_rows[number]))
            if rows:
                self.send(number, bucket, rows, self._oldest(number, bucket, rows))
                left -= rows / block_rows[number]
                if left <= 0:
                    break
        return iter(())

    def _oldest(self, number: int, bucket: int, rows: int) -> int:
        """Return the time on the logical clock by which the ``rows`` oldest rows of a bucket had arrived."""
        stamps = self._inputs.sides[number].memory.stamps_between(*self.ranges.bounds(bucket))
        return int(np.partition(stamps, rows - 1)[rows - 1]) if rows < len(stamps) else int(LAST)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "recent": self._recent.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._recent[:] = state["recent"]
