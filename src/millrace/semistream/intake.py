"""Intake of stream tuples: counts them, sheds some when there are too many, and computes their key codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.core.metrics import JoinMetrics
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes
from millrace.semistream.choose.auto import Auto
from millrace.semistream.shedding import Shedding
from millrace.semistream.stream_keys import Flags, StreamKeys


@dataclass(frozen=True)
class ArrivedTuples:
    """Tuples of a piece of a pushed batch, with their key codes."""

    batch: pa.RecordBatch
    codes: Codes
    valid: Flags | None
    """Flags of the tuples whose key is not null; None if no key is null."""

    def nulls(self, part: slice) -> Flags:
        """Return which tuples of a slice of the batch have a null key."""
        if self.valid is None:
            return np.zeros(len(self.codes[part]), np.bool_)
        return ~self.valid[part]


class Intake:
    """Counts new tuples, sheds some of them, and passes their keys to the statistics of ``algorithm="auto"``."""

    def __init__(self, keys: StreamKeys, metrics: JoinMetrics, shedding: Shedding | None, auto: Auto | None) -> None:
        self._keys, self._metrics, self._shedding, self._auto = keys, metrics, shedding, auto

    def take(self, batch: pa.RecordBatch) -> ArrivedTuples:
        """Count the tuples of a batch, shed some if necessary, and return the others with their key codes."""
        batch = self._thinned(batch)
        codes, valid = self._keys.codes(batch.columns)
        self._metrics.tuples_in += len(batch)
        if self._auto is not None:
            self._auto.observe(codes, valid)
        return ArrivedTuples(batch, codes, valid)

    def spare(self, codes: Codes, misses: Indices) -> Indices:
        """Shed some of the cache misses if ``spare_hits`` is set; return the misses that are kept."""
        shedding = self._shedding
        if shedding is None or not shedding.spare_hits:
            return misses
        arrived = self._metrics.tuples_in - len(codes) + misses
        kept = shedding.kept(arrived, codes[misses], np.zeros(len(misses), np.bool_))
        self._metrics.shed += len(misses) - int(kept.sum())
        return misses[kept]

    def _thinned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Shed some tuples of a batch and return the others; with ``spare_hits``, leave shedding to :meth:`spare`."""
        shedding = self._shedding
        if shedding is None or shedding.spare_hits:
            return batch
        codes = arrived = self._metrics.tuples_in + np.arange(len(batch))
        nulls = np.zeros(len(batch), np.bool_)
        if shedding.by == "key":
            codes, valid = self._keys.codes(batch.columns)
            nulls = nulls if valid is None else ~valid
        kept = shedding.kept(arrived, codes, nulls)
        dropped = len(batch) - int(kept.sum())
        self._metrics.tuples_in += dropped
        self._metrics.shed += dropped
        return batch.filter(pa.array(kept)) if dropped else batch
