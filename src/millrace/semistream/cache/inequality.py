"""The cache inequality: whether the master rows of a key take less memory in the cache than its tuples do waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.significance import count_for, surely
from millrace.rows.arena import Arena
from millrace.rows.keyed_rows import KeyedRows
from millrace.semistream.context import JoinContext

_DIRECTORY = 8.0  # bytes of the directory per row
_SAMPLE = 1024


class CacheInequality:
    """Costs of a key in bytes, cached and waiting, as this join charges them.

    Parameters
    ----------
    factor
        s_f of the paper: above 1 a key must be that much cheaper in the cache to enter.
    margin
        Standard deviations of a count by which the inequality must hold.
    """

    def __init__(self, context: JoinContext, rows: KeyedRows, factor: float, margin: float) -> None:
        self._context, self._rows = context, rows
        self.factor, self.margin = factor, margin
        self._heap_per_row = self._sample_heap()

    def _sample_heap(self) -> float:
        """Return the bytes that strings and nested values of a master row take, by the first rows."""
        store = self._context.store
        for shard in range(store.shards):
            mapped = store.mapped(shard)
            if mapped.rows:
                rows = np.arange(min(_SAMPLE, mapped.rows), dtype=np.int64)
                return Arena.heap_bytes_of(mapped.take(self._context.columns, rows)) / len(rows)
        return 0.0

    @property
    def row_bytes(self) -> float:
        """v_R: what one master row costs in the cache."""
        return self.empty_bytes + self._heap_per_row

    @property
    def empty_bytes(self) -> float:
        """What a group without rows costs."""
        return self._rows.slot_bytes + _DIRECTORY

    @property
    def empty_cost(self) -> float:
        """What a group without rows costs, times the switching factor."""
        return self.factor * self.empty_bytes

    @property
    def tuple_bytes(self) -> float:
        """v_S: what one stream tuple costs while it waits."""
        return self._context.room.tuple_bytes

    def waiting_cost(self, tuples: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the bytes that keys with so many tuples per turn take in the waiting room, on average over a turn."""
        cost: npt.NDArray[np.float64] = tuples * (self.tuple_bytes * self._context.room.stay)
        return cost

    def cache_cost(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return the bytes of groups with so many rows each, times the switching factor."""
        cost: npt.NDArray[np.float64] = np.where(rows > 0, rows * self.row_bytes, self.empty_bytes)
        return self.factor * cost

    @property
    def least_tuples_for_one_row(self) -> int:
        """The fewest tuples per turn that justify caching one master row."""
        worth = self.factor * self.row_bytes / (self.tuple_bytes * self._context.room.stay)
        return int(count_for(worth, self.margin)) + 1

    def worthwhile(self, tuples: npt.NDArray[np.int32], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return whether the cache inequality surely holds, for keys with so many tuples in a turn and master rows."""
        worth: npt.NDArray[np.bool_] = self.waiting_cost(surely(tuples, self.margin)) > self.cache_cost(rows)
        return worth
