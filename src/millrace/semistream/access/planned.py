"""SSIJ's access: collect tuples until memory is full, then read all pages they wait for in one sweep.

Pages are read in their order on disk. Where reading on to the next page takes less time than a seek, the pages between
are read too. No tuple enters during a sweep, so that it ends with an empty waiting room.

References
----------
M. A. Bornea, A. Deligiannakis, Y. Kotidis, V. Vassalos: Semi-streamed index join for near-real time execution of ETL
transformations. ICDE 2011.
"""

from __future__ import annotations

import numpy as np

from millrace.semistream.access.numbered_pages import PageNumbers
from millrace.semistream.access.oldest import Oldest
from millrace.semistream.context import JoinContext


class Planned(Oldest):
    """Reads the pages that waiting tuples need in one sweep over the disk."""

    sweeps = True

    def __init__(self, context: JoinContext, *, loads: int | None = None) -> None:
        super().__init__(context, loads=loads)
        self._plan = np.empty(0, np.int64)

    def quota(self, capacity: int) -> int:
        if not len(self.context.room):
            self._plan = self._plan[:0]
        return 0 if len(self._plan) else super().quota(capacity)

    def _loads_now(self) -> int:
        return self._loads or self._most_loads

    def choose(self, most: int) -> PageNumbers:
        if not len(self._plan):
            room = self.context.room
            self._plan = np.sort(self.pages_of(room.oldest(len(room)), len(self.pages)))
        pages, self._plan = self._plan[:most], self._plan[most:]
        return pages
