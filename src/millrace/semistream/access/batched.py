"""Batched look-ups: tuples wait until there are enough different keys, which are then looked up together.

A step looks up the keys of all waiting tuples, each key once. A step is run when a batch of keys waits, when memory is
full, or on a call of ``step`` or ``idle`` (the published operator has a timer).

References
----------
R. Derakhshan, A. Sattar, B. Stantic: A new operator for efficient stream-relation join processing in data streaming
engines. CIKM 2013.

The paper describes the cache, the batches and the order; how they work together is our reconstruction.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from millrace.core.errors import ConfigError
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.keyed_rows import Codes
from millrace.semistream.access.access_policy import Access
from millrace.semistream.access.numbered_pages import Pages
from millrace.semistream.context import JoinContext


class Batched(Access):
    """Looks up the keys of all waiting tuples together.

    Parameters
    ----------
    batch
        Largest number of different keys that are looked up together.
    """

    paged = True

    def __init__(self, context: JoinContext, *, batch: int = 8192) -> None:
        super().__init__(context)
        if not isinstance(batch, int) or batch < 1:
            raise ConfigError(f"batch: expected a whole number of at least 1; got {batch!r}")
        self._batch = batch
        self._pages = Pages(context.store, context.device, self.b)
        self._steps = self._looked_up = 0
        self._codes: Codes = np.empty(0, np.int64)

    @property
    def place(self) -> int:
        return self._steps

    def quota(self, capacity: int) -> int:
        room = self.context.room
        keys = self._batch - room.rows.keys
        w = self.w or capacity
        if not len(room):
            return max(1, min(w, keys, capacity))
        return max(0, min(w - room.newest_chunk_size(self.place), keys, capacity - len(room)))

    def loads(self) -> Iterator[Load]:
        context = self.context
        self._steps += 1
        self._codes = np.sort(context.room.groups()[0])
        self._looked_up += len(self._codes)
        for load in self._pages.groups(self._codes, max(1, context.step_rows // 2)):
            if load.rows is not None:
                context.device.read_rows(load.rows, context.store.row_bytes)
            yield load

    def finished(self) -> Iterator[Slots]:
        slots = self.context.room.rows.slots_of(self._codes)
        if len(slots):
            yield slots

    @property
    def cycles(self) -> float:
        return self._looked_up / max(1, self.context.store.rows)

    @property
    def longest_wait(self) -> int:
        return 1

    @property
    def turned(self) -> int:
        return self._steps

    def resume(self, turned: int) -> None:
        self._steps = turned

    def explain(self) -> str:
        return f"up to {self._batch:,} keys are looked up together through the index"
