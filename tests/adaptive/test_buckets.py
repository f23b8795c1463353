"""Flush policies that write hash buckets to disk: what they count, and what they do with a bucket afterwards."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.adaptive.flush.buckets import Buckets, SymmetricBuckets
from millrace.adaptive.join import StreamJoin


def test_rows_that_come_for_a_bucket_on_disk_follow_it() -> None:
    """DPHJ's buckets leave memory on both sides."""
    join = StreamJoin("k", algorithm="dphj", memory="10MB", block=1000, suffix="_r")
    random = np.random.default_rng(5)

    def push() -> None:
        for side in ("left", "right"):
            keys = random.integers(0, 1_000_000, 2_000)
            list(join.push(side, pa.record_batch({"k": keys, side[0]: keys})))

    push()
    policy = join.engine.flushing
    assert isinstance(policy, SymmetricBuckets)
    largest = int(policy.counts.sum(axis=0).argmax())
    assert list(policy.flush()) == []
    assert policy.counts[:, largest].tolist() == [0, 0]
    assert np.flatnonzero(policy.frozen.all(axis=0)).tolist() == [largest]
    assert policy.frozen.sum() == 2
    push()
    sides = join.engine.inputs.sides
    assert all(policy.counts[number, largest] < sides[number].block_rows for number in (0, 1))
    join.check_invariants()


@pytest.mark.parametrize("algorithm", ["xjoin", "dphj", "hmj", "rpj"])
def test_rows_in_memory_are_counted_after_a_restart(algorithm: str) -> None:
    def fresh() -> StreamJoin:
        return StreamJoin("k", algorithm=algorithm, memory="100kB", block=1000, suffix="_r")

    join, random = fresh(), np.random.default_rng(5)
    for _ in range(4):
        for side in ("left", "right"):
            keys = random.integers(0, 1_000, 1_000)
            list(join.push(side, pa.record_batch({"k": keys, side[0]: keys})))
    again = fresh()
    again.restore(join.snapshot())
    before, after = join.engine.flushing, again.engine.flushing
    assert isinstance(before, Buckets)
    assert isinstance(after, Buckets)
    assert before.counts.sum() > 0
    assert (before.counts == after.counts).all()
    assert (before.frozen == after.frozen).all()
    again.check_invariants()
