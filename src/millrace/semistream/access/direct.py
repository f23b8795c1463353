"""The access of ``lookup`` and ``inl``: the index gives the places of a tuple's master rows, and no tuple waits.

``lookup`` reads rows for a piece of a pushed batch at a time; ``inl`` (index nested loops) reads tuple by tuple through
a pool of pages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from millrace.kernels import pool
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes
from millrace.semistream.access.access_policy import Access
from millrace.semistream.context import JoinContext

_FRAME_BYTES = 5


class Direct(Access):
    """Looks up the master rows of tuples through the index as soon as the tuples arrive."""

    at_once = True

    def __init__(self, context: JoinContext) -> None:
        super().__init__(context)
        self._looked_up = 0

    def rows_of(self, codes: Codes, most: int) -> Iterator[tuple[int, Indices, Indices]]:
        """Yield the master rows with these key codes, in pieces of one shard each.

        A piece is the number of a shard, the places of the rows' key codes in ``codes``, and the rows' numbers in the
        shard. If keys repeat, it holds at most ``most`` rows. Rows are looked up while the result is read.
        """
        store = self.context.store
        self._looked_up += len(codes)
        for shard in range(store.shards):
            index = store.index(shard)
            if store.unique:
                rows = index.rows_of(codes)
                places = np.flatnonzero(rows >= 0)
                rows = rows if len(places) == len(rows) else rows[places]
                self._read(shard, rows)
                yield shard, places, rows
            else:
                for places, rows in index.pairs(codes, most):
                    self._read(shard, rows)
                    yield shard, places, rows

    def row_counts(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Return for each key code how many master rows have it."""
        store = self.context.store
        counts: npt.NDArray[np.int64] = np.sum(
            [store.index(shard).ranges_of(codes)[1] for shard in range(store.shards)], axis=0
        )
        return counts

    def _read(self, shard: int, rows: Indices) -> None:
        """Record on the device that these rows are read together."""
        self.context.device.read_rows(rows, self.context.store.row_bytes)

    @property
    def place(self) -> int:
        return 0

    def quota(self, capacity: int) -> int:
        return 0

    def loads(self) -> Iterator[Load]:
        return iter(())

    def finished(self) -> Iterator[Slots]:
        return iter(())

    @property
    def cycles(self) -> float:
        return self._looked_up / max(1, self.context.store.rows)

    @property
    def longest_wait(self) -> int:
        return 0

    @property
    def turned(self) -> int:
        return self._looked_up

    def resume(self, turned: int) -> None:
        self._looked_up = turned

    def explain(self) -> str:
        return "rows are looked up through the index as tuples come; no tuple waits"


class PerTuple(Direct):
    """Index nested loops over a clustered B+-tree: each tuple reads the page of its row unless the pool holds it.

    The pool takes most of the memory, and the device counts the reads of all other pages. Pages are replaced by the
    second-chance rule, which approximates least recently used. The rows themselves come from mapped files.
    """

    def __init__(self, context: JoinContext) -> None:
        super().__init__(context)
        device, store = context.device, context.store
        self._rows_per_page = max(1, int(device.page_bytes / max(1.0, store.row_bytes)))
        pages = sum(-(-shard.rows // self._rows_per_page) for shard in store.manifest.shards)
        free = context.budget.available * 7 // 8
        frames = max(1, free // (device.page_bytes + _FRAME_BYTES))
        context.budget.reserve("pool", min(free, frames * (device.page_bytes + _FRAME_BYTES)))
        self._pool = pool.Pool(
            np.full(pages, -1, np.int32),
            np.full(frames, -1, np.int32),
            np.zeros(frames, np.uint8),
            np.zeros(1, np.int64),
        )
        rows = [shard.rows for shard in store.manifest.shards]
        self._first_page = np.concatenate(([0], np.cumsum([-(-n // self._rows_per_page) for n in rows])))

    def _read(self, shard: int, rows: Indices) -> None:
        missed = pool.use(self._pool, int(self._first_page[shard]) + rows // self._rows_per_page)
        self.context.device.read_scattered(missed)

    def explain(self) -> str:
        return f"rows are looked up tuple by tuple through a pool of {len(self._pool.page):,} pages; no tuple waits"
