"""Which rows of a partition have been joined although one of them was on disk, and the clock this is measured with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from millrace.adaptive.array_types import Codes

Corner = tuple[int, int, int]
Run = tuple[int, int]


class LogicalClock:
    """A number that grows with every event, so that no two events have the same.

    >>> clock = LogicalClock(); clock.ticks(3), clock.tick()
    (1, 4)
    """

    def __init__(self) -> None:
        self.now = 0

    def ticks(self, count: int) -> int:
        """Advance by so many ticks, and return the first of them."""
        first = self.now + 1
        self.now += count
        return first

    def tick(self) -> int:
        """Advance by one tick, and return it."""
        return self.ticks(1)

    def restore(self, now: int) -> None:
        """Set the clock to the time of a snapshot."""
        self.now = now


@dataclass
class JoinedHistory:
    """The rows of one partition that have been joined although one of them was on disk.

    Rows that had left memory by a *corner*, one moment per side, and after a moment for both, have all been joined on
    disk. A *probe run* has read rows of one side from disk and joined them with the rows that the other side had in
    memory.
    """

    corners: list[Corner] = field(default_factory=list)
    """The left and the right side's moment, and the one before which rows of both are left out."""
    runs: tuple[list[Run], list[Run]] = field(default_factory=lambda: ([], []))
    """By side, for each probe run: the moment by which its rows had left memory, and the moment of the run."""

    def add_corner(self, left: int, right: int, since: int = 0) -> None:
        """Add that all rows that had left by these moments, and after ``since``, have been joined with each other."""
        kept = [(a, b, c) for a, b, c in self.corners if not (a <= left and b <= right and c >= since)]
        self.corners = [*kept, (left, right, since)]

    def add_run(self, side: int, until: int, when: int) -> None:
        """Add that rows of a side that had left by ``until`` were joined with the other side's memory at ``when``."""
        self.runs[side].append((until, when))

    def seen_from(self, side: int) -> tuple[Codes, Codes, Codes]:
        """Return corners, own runs and the other side's runs as arrays, own moments first."""
        corners = np.array(self.corners, np.int64).reshape(-1, 3)
        own, other = _moments(self.runs[side]), _moments(self.runs[1 - side])
        return (corners[:, [1, 0, 2]].copy() if side else corners), own, other


def _moments(runs: list[Run]) -> Codes:
    return np.array(runs, np.int64).reshape(-1, 2)
