"""Access by look-up: the index says where a tuple's rows are, and nobody waits.

What is looked up together is read together: rows are fetched a batch at a time, in whatever order the keys came.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from millrace.master.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.columns import Indices
from millrace.rows.keyed import Codes
from millrace.semistream.access import Access, Surroundings


class Direct(Access):
    """Tuples are answered as they come."""

    at_once = True

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._looked_up = 0

    def rows_of(self, codes: Codes, most: int) -> Iterator[tuple[int, Indices, Indices]]:
        """Master rows of codes: shard, places in ``codes``, and the rows, in pieces of at most about ``most``."""
        store, device = self.around.store, self.around.device
        self._looked_up += len(codes)
        for shard in range(store.shards):
            index = store.index(shard)
            if store.unique:
                rows = index.rows_of(codes)
                places = np.flatnonzero(rows >= 0)
                device.read_rows(rows if len(places) == len(rows) else rows[places], store.row_bytes)
                yield shard, places, rows if len(places) == len(rows) else rows[places]
            else:
                for places, rows in index.pairs(codes, most):
                    device.read_rows(rows, store.row_bytes)
                    yield shard, places, rows

    @property
    def place(self) -> int:
        return 0

    def quota(self, capacity: int) -> int:
        return 0

    def loads(self) -> Iterator[Load]:
        return iter(())

    def leaving(self) -> Iterator[Slots]:
        return iter(())

    @property
    def cycles(self) -> float:
        return self._looked_up / max(1, self.around.store.rows)

    @property
    def longest_wait(self) -> int:
        return 0

    @property
    def turned(self) -> int:
        return self._looked_up

    def resume(self, turned: int) -> None:
        self._looked_up = turned

    def explain(self) -> str:
        return "rows are looked up through the index as tuples come; nobody waits"
