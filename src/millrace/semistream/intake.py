"""Intake of stream tuples: they are counted, some are shed, and their keys are coded."""

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
    """New tuples with their key codes."""

    batch: pa.RecordBatch
    codes: Codes
    valid: Flags | None
    """Which tuples have a key; None: all."""

    def nulls(self, part: slice) -> Flags:
        """Return which tuples of a part have no key."""
        if self.valid is None:
            return np.zeros(len(self.codes[part]), np.bool_)
        return ~self.valid[part]


class Intake:
    """Counts new tuples, sheds some of them, and passes their keys to the choice of the algorithm."""

    def __init__(self, keys: StreamKeys, metrics: JoinMetrics, shedding: Shedding | None, auto: Auto | None) -> None:
        self._keys, self._metrics, self._shedding, self._auto = keys, metrics, shedding, auto

    def take(self, batch: pa.RecordBatch) -> ArrivedTuples:
        """Return the tuples of a batch that are not shed, with their codes."""
        batch = self._thinned(batch)
        codes, valid = self._keys.codes(batch.columns)
        self._metrics.tuples_in += len(batch)
        if self._auto is not None:
            self._auto.observe(codes, valid)
        return ArrivedTuples(batch, codes, valid)

    def spare(self, codes: Codes, misses: Indices) -> Indices:
        """Return the misses that are not shed, where only tuples that would have to wait are shed."""
        shedding = self._shedding
        if shedding is None or not shedding.spare_hits:
            return misses
        arrived = self._metrics.tuples_in - len(codes) + misses
        kept = shedding.kept(arrived, codes[misses], np.zeros(len(misses), np.bool_))
        self._metrics.shed += len(misses) - int(kept.sum())
        return misses[kept]

    def _thinned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the tuples of a batch that are not shed, where tuples are shed before the cache is tried."""
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
