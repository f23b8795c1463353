"""EHJ: buckets of the other side (S) leave before those of the build side (R). The paper's clean-up rests on that.

Rows are as long as a block, so rows of a frozen bucket are on disk at once, as in the paper, and they come one at a
time, so everything has a moment. The join itself tells who has met by when rows came and left, and needs no such order.
"""

from __future__ import annotations

from collections import Counter
from math import inf

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.adaptive.array_types import Batches
from millrace.adaptive.flush.buckets import BiasedBuckets
from millrace.adaptive.inputs.pair_inputs import PairInputs
from millrace.adaptive.memory.key_ordered_rows import LAST
from millrace.core.errors import ConfigError

_ROWS = 90
_BLOCK = 256
_RULE = "a bucket of the build side left memory before the probe side's"

Moments = dict[tuple[int, int], float]


class Run:
    """One join of rows that come in turns: what came out, when, and when which bucket of which side was frozen."""

    def __init__(self, build: str = "left", keys: tuple[int, int] = (25, 25), memory: int = 40_000) -> None:
        rng = np.random.default_rng(4)
        self.keys = [rng.integers(0, high, _ROWS).tolist() for high in keys]
        self.join = mr.StreamJoin(on="k", algorithm="ehj", memory=memory, block=_BLOCK, build=build)
        policy = self.join.engine.flushing
        assert isinstance(policy, BiasedBuckets)
        self.policy = policy
        self.build = ("left", "right").index(build)
        self.frozen: Moments = {}
        self.came: dict[tuple[int, int], int] = {}
        self.buckets: dict[int, int] = {}
        self.broken: set[str] = set()
        self.early: Counter[tuple[int, int]] = Counter()
        for at in range(_ROWS):
            for side, (name, short) in enumerate((("left", "l"), ("right", "r"))):
                self._push(side, name, short, at)
        self.late = _pairs(list(self.join.finish()))
        self.join.close()

    def _push(self, side: int, name: str, short: str, at: int) -> None:
        key = self.keys[side][at]
        row = pa.record_batch({"k": [key], short: [at], f"{short}_text": ["x" * _BLOCK]})
        self.came[side, at] = 2 * at + side
        before = self.policy.frozen.copy()
        self.early += _pairs(list(self.join.push(name, row)))
        for number, bucket in np.argwhere(self.policy.frozen & ~before):
            self.frozen[int(number), int(bucket)] = 2 * at + side + 0.5
        try:
            self.join.check_invariants()
        except AssertionError as error:
            self.broken.add(str(error))
        inputs = self.join.engine.inputs
        assert isinstance(inputs, PairInputs)
        codes, _ = inputs.matching.codes([pa.array([key])])
        self.buckets[key] = int(self.policy.ranges.counts(codes).argmax())

    def left_to_the_end(self) -> Counter[tuple[int, int]]:
        """The pairs that the paper's clean-up would find, by moments of arrival and of the first flush of a bucket."""
        found: Counter[tuple[int, int]] = Counter()
        for i, key in enumerate(self.keys[0]):
            for j, other in enumerate(self.keys[1]):
                if key == other and self._found_late((i, j), self.buckets[key]):
                    found[i, j] += 1
        return found

    def _found_late(self, pair: tuple[int, int], bucket: int) -> bool:
        r, s = self.build, 1 - self.build
        r_came, s_came = self.came[r, pair[r]], self.came[s, pair[s]]
        s_left, r_left = self.frozen.get((s, bucket), inf), self.frozen.get((r, bucket), inf)
        return (s_came < s_left < r_came) or (s_left < s_came < r_left and r_came > s_came) or s_came > r_left

    @property
    def truth(self) -> Counter[tuple[int, int]]:
        left, right = self.keys
        return Counter((i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b)


def _pairs(out: list[pa.RecordBatch]) -> Counter[tuple[int, int]]:
    return Counter((row["l"], row["r"]) for batch in out for row in batch.to_pylist())


def r_before_s(self: BiasedBuckets) -> Batches:
    """The policy with the sides the wrong way round."""
    build, other = self._build, 1 - self._build
    if not self.send_frozen():
        for number in (build, other):
            held = np.where(self.frozen[number], 0, self.counts[number])
            if held.any():
                bucket = int(held.argmax())
                self.frozen[number, bucket] = True
                self.send(number, bucket)
                break
    return iter(())


@pytest.mark.parametrize("build", ["left", "right"])
def test_the_papers_rule_says_what_is_left_to_the_end(build: str) -> None:
    run = Run(build)
    assert not run.broken
    assert run.early + run.late == run.truth
    assert run.early
    assert run.late
    assert run.late == run.left_to_the_end()
    sides = [{bucket for side, bucket in run.frozen if side == number} for number in (run.build, 1 - run.build)]
    assert sides[0], "no bucket of the build side left: the rule was not put to the test"
    assert sides[0] <= sides[1]
    assert all(run.frozen[1 - run.build, bucket] <= run.frozen[run.build, bucket] for bucket in sides[0])


def test_r_before_s_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rule is for: with it alone, such a policy would lose pairs or give them out twice."""
    monkeypatch.setattr(BiasedBuckets, "flush", r_before_s)
    run = Run()
    assert run.broken == {_RULE}
    assert run.early + run.late == run.truth  # moments of rows do not depend on it
    assert run.late != run.left_to_the_end()


def test_an_empty_bucket_is_frozen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of S is in memory when R leaves: its moment counts from then on."""
    first = Run(keys=(25, 1))
    assert not first.broken
    assert first.late == first.left_to_the_end()
    empty = [bucket for side, bucket in first.frozen if side == 0 and bucket != first.buckets[0]]
    assert empty
    assert all(first.frozen[1, bucket] == first.frozen[0, bucket] for bucket in empty)

    def forgetful(self: BiasedBuckets) -> Batches:
        build, other = self._build, 1 - self._build
        if self.send_frozen():
            return iter(())
        held = np.where(self.frozen[other], 0, self.counts[other])
        number, bucket = other, int(held.argmax())
        if not held.any():
            open_ = np.where(self.frozen[build] | (self.counts[build] == 0), LAST, self.counts[build])
            number, bucket = build, int(open_.argmin())
        self.frozen[number, bucket] = True
        self.send(number, bucket)
        return iter(())

    monkeypatch.setattr(BiasedBuckets, "flush", forgetful)
    assert Run(keys=(25, 1)).broken == {_RULE}


def test_the_build_side_has_a_name() -> None:
    with pytest.raises(ConfigError, match="build: expected one of 'left', 'right'; got 'middle'"):
        mr.StreamJoin(on="k", algorithm="ehj", build="middle")
