"""HYBRIDJOIN-L's access: load the page of the tuple at a given position of the queue, not of the oldest.

A young tuple is more likely to wait for a page that many tuples wait for, so more of them leave with its page. The
paper leaves open when the other tuples get their pages: here every ``guard``-th page is that of the oldest tuple.

References
----------
M. A. Naeem, G. Weber, C. Lutteroth, G. Dobbie: Optimizing queue-based semi-stream joins with indexed master data. DaWaK
2014.
"""

from __future__ import annotations

import numpy as np

from millrace.core.errors import ConfigError
from millrace.rows.arena import Slots
from millrace.semistream.access.numbered_pages import Counts, PageNumbers
from millrace.semistream.access.oldest import Oldest
from millrace.semistream.context import JoinContext

_TRIAL_LOADS = 2_000
_STRIDE = 0.1


class PositionSearch:
    """Searches in steps for the queue position at which most tuples leave per load; turns back when fewer leave."""

    def __init__(self) -> None:
        self.position = 0.5
        self.trials = 0
        """Number of positions tried so far."""
        self._stride = -_STRIDE
        self._loads, self._left = 0, 0.0
        self._before = 0.0

    def note_loads(self, pages: int, left: float) -> None:
        """Record that ``pages`` pages were loaded and that ``left`` tuples left with these pages.

        After enough loads, :attr:`position` becomes the next place in the queue to try.
        """
        self._loads += pages
        self._left += left
        if self._loads < _TRIAL_LOADS:
            return
        now = self._left / self._loads
        self.trials += 1
        if now < self._before:
            self._stride = -self._stride
        self.position = min(1.0, max(0.0, self.position + self._stride))
        self._before, self._loads, self._left = now, 0, 0.0


class Position(Oldest):
    """Loads the pages of tuples at a given position of the queue.

    Parameters
    ----------
    position
        Share of the waiting tuples that are younger than the chosen one: 0 chooses the youngest, 1 the oldest. With
        ``"adapt"`` the join searches for the best share.
    guard
        One load in ``guard`` is for the oldest tuple; with 0, a tuple may wait without end.
    """

    def __init__(
        self,
        context: JoinContext,
        *,
        loads: int | None = None,
        position: float | str = 0.3,
        guard: int = 2,
    ) -> None:
        super().__init__(context, loads=loads)
        if position != "adapt" and not (isinstance(position, int | float) and 0 <= position <= 1):
            raise ConfigError(f"position: expected a share from 0 to 1, or 'adapt'; got {position!r}")
        if not isinstance(guard, int) or guard < 0:
            raise ConfigError(f"guard: expected a whole number of at least 0; got {guard!r}")
        self._search = None if isinstance(position, float | int) else PositionSearch()
        self._fixed = 0.0 if isinstance(position, str) else float(position)
        self._guard = guard
        self._owed = 0

    @property
    def position(self) -> float:
        """Current position in the queue: the share of the waiting tuples that are younger."""
        return self._fixed if self._search is None else self._search.position

    @property
    def trials(self) -> int:
        """Number of positions tried so far."""
        return 0 if self._search is None else self._search.trials

    def choose(self, most: int) -> PageNumbers:
        room = self.context.room
        self._owed += most
        for_oldest = min(most, self._owed // self._guard) if self._guard else 0
        self._owed -= for_oldest * self._guard
        chosen: list[Slots] = [room.oldest(for_oldest)] if for_oldest else []
        if most > for_oldest:
            chosen.append(room.older_than(self.position, most - for_oldest))
        return self.pages_of(np.concatenate(chosen), most)

    def note_loads(self, pages: PageNumbers, left: Counts) -> None:
        super().note_loads(pages, left)
        if self._search is not None:
            self._search.note_loads(len(pages), float(left.sum()))

    @property
    def longest_wait(self) -> int:
        return self.most_waiting * self._guard if self._guard else 2**62
