"""MJoin's flush policy: when memory is full, the bucket with the most rows in total goes to disk for every input.

Each flush ends an *epoch* of the bucket. Rows of one epoch have been joined in memory; combinations of rows from
different epochs are found at the end. Which combinations have been output follows from the times at which their rows
arrived and left memory. These times are slightly more precise than epochs, because new rows are also joined with the
rows that are flushed to make room for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.adaptive.array_types import Batches, Counts
from millrace.adaptive.flush.buckets import Buckets
from millrace.adaptive.inputs.multiway_inputs import MultiwayInputs


class CoordinatedBuckets(Buckets):
    """MJoin's flush policy: the bucket with the most rows in total goes to disk for every input."""

    def __init__(self, inputs: MultiwayInputs) -> None:
        super().__init__(inputs)
        self.epochs: Counts = np.zeros(self.buckets, np.int64)
        """Number of flushes per bucket."""

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
