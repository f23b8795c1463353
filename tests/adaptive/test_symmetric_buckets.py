"""DPHJ's flush policy: a bucket leaves memory on both sides, and rows that come for it later follow it to disk."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.adaptive.flush.buckets import SymmetricBuckets
from millrace.adaptive.join import StreamJoin


def test_rows_that_come_for_a_bucket_on_disk_follow_it() -> None:
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
