"""Evaluates the cache inequality, which holds if a key's master rows take less memory than its waiting tuples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.significance import count_for, surely
from millrace.rows.arena import Arena
from millrace.rows.keyed_rows import KeyedRows
from millrace.semistream.context import JoinContext

_DIRECTORY = 8.0  # bytes per row in the index
_SAMPLE = 1024


class CacheInequality:
    """Computes the bytes that a key takes in this join's cache and in its waiting room.

    Parameters
    ----------
    factor
        A key is cached only if its waiting tuples would take more than ``factor`` times the memory of its rows (s_f of
        the paper).
    margin
        Margin by which the inequality must hold, in standard deviations of the count of tuples.
    """

    def __init__(self, context: JoinContext, rows: KeyedRows, factor: float, margin: float) -> None:
        self._context, self._rows = context, rows
        self.factor, self.margin = factor, margin
        self._heap_per_row = self._sample_heap()

    def _sample_heap(self) -> float:
        """Return the bytes of strings and nested values in a master row, on average over the first rows."""
        store = self._context.store
        for shard in range(store.shards):
            mapped = store.mapped(shard)
            if mapped.rows:
                rows = np.arange(min(_SAMPLE, mapped.rows), dtype=np.int64)
                return Arena.heap_bytes_of(mapped.take(self._context.columns, rows)) / len(rows)
        return 0.0

    @property
    def row_bytes(self) -> float:
        """Average bytes that a cached master row takes (v_R in the inequality)."""
        return self.empty_bytes + self._heap_per_row

    @property
    def empty_bytes(self) -> float:
        """Bytes of a cached key that has no master rows."""
        return self._rows.slot_bytes + _DIRECTORY

    @property
    def empty_cost(self) -> float:
        """Bytes of a cached key that has no master rows, times the switching factor."""
        return self.factor * self.empty_bytes

    @property
    def tuple_bytes(self) -> float:
        """Average bytes that a waiting stream tuple takes (v_S in the inequality)."""
        return self._context.room.tuple_bytes

    def waiting_cost(self, tuples: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return for each key the average bytes of its waiting tuples, given its tuples per turn of the wheel."""
        cost: npt.NDArray[np.float64] = tuples * (self.tuple_bytes * self._context.room.mean_stay)
        return cost

    def cache_cost(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return for each key the bytes that it takes in the cache, times the switching factor, given its rows."""
        cost: npt.NDArray[np.float64] = np.where(rows > 0, rows * self.row_bytes, self.empty_bytes)
        return self.factor * cost

    @property
    def least_tuples_for_one_row(self) -> int:
        """Fewest tuples per turn of the wheel for which caching one master row pays."""
        worth = self.factor * self.row_bytes / (self.tuple_bytes * self._context.room.mean_stay)
        return int(count_for(worth, self.margin)) + 1

    def worthwhile(self, tuples: npt.NDArray[np.int32], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return for each key whether it is worth caching, given its tuples per turn and its number of master rows."""
        worth: npt.NDArray[np.bool_] = self.waiting_cost(surely(tuples, self.margin)) > self.cache_cost(rows)
        return worth
