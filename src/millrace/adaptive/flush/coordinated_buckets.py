"""MJoin's flushing: when memory is full, the largest bucket of all inputs together goes to disk for every input.

Each such flush ends an *epoch* of the bucket. Rows of one epoch have met in memory; combinations of rows from two
epochs or more are found at the end. Which of them have met is told by the moments at which rows came and left, which is
a little finer than epochs: rows meet those that leave to make room for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.adaptive.flush.buckets import Buckets
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.multiway.relations import Several


class CoordinatedBuckets(Buckets):
    """MJoin."""

    def __init__(self, machinery: Several) -> None:
        super().__init__(machinery)
        inputs = len(machinery.sides)
        self.counts = np.zeros((inputs, self.buckets), np.int64)
        self.frozen = np.zeros((inputs, self.buckets), np.bool_)
        self.epochs = np.zeros(self.buckets, np.int64)
        """Flushes by bucket."""

    def flush(self) -> Batches:
        bucket = int(self.counts.sum(axis=0).argmax())
        for number in np.flatnonzero(self.counts[:, bucket]).tolist():
            self.send(number, bucket)
        self.epochs[bucket] += 1
        return iter(())

    def state(self) -> dict[str, Any]:
        return {**super().state(), "epochs": self.epochs.tolist()}

    def accept(self, state: dict[str, Any]) -> None:
        super().accept(state)
        self.epochs[:] = state["epochs"]
