"""MJoin's flush policy: when memory is full, the bucket that is largest over all inputs goes to disk for every input.

Each such flush ends an *epoch* of the bucket. Rows of one epoch have been joined in memory; combinations of rows from
two epochs or more are found at the end. Which combinations have come out follows from the times at which rows came and
left, which is a little finer than epochs: rows are joined with those that leave to make room for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.adaptive.array_types import Batches, Counts
from millrace.adaptive.flush.buckets import Buckets
from millrace.adaptive.inputs.multiway_inputs import MultiwayInputs


class CoordinatedBuckets(Buckets):
    """MJoin: one bucket of all inputs goes to disk."""

    def __init__(self, inputs: MultiwayInputs) -> None:
        super().__init__(inputs)
        self.epochs: Counts = np.zeros(self.buckets, np.int64)
        """Flushes by bucket."""

    def flush(self) -> Batches:
        bucket = int(self.counts.sum(axis=0).argmax())
        for number in np.flatnonzero(self.counts[:, bucket]).tolist():
            self.send(number, bucket)
        self.epochs[bucket] += 1
        return iter(())

    def state(self) -> dict[str, Any]:
        return {**super().state(), "epochs": self.epochs.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.epochs[:] = state["epochs"]
