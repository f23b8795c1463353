"""The record of what has been joined with rows on disk, and the logical clock whose times it uses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from millrace.adaptive.array_types import Codes

Corner = tuple[int, int, int]
Run = tuple[int, int]


class LogicalClock:
    """A counter that advances when a row arrives or a block is written, so that no two events have the same time.

    >>> clock = LogicalClock(); clock.ticks(3), clock.tick()
    (1, 4)
    """

    def __init__(self) -> None:
        self.now = 0

    def ticks(self, count: int) -> int:
        """Advance the clock by ``count`` ticks, and return the first of the new times."""
        first = self.now + 1
        self.now += count
        return first

    def tick(self) -> int:
        """Advance the clock by one tick, and return the new time."""
        return self.ticks(1)

    def restore(self, now: int) -> None:
        """Set the clock to the time of a snapshot."""
        self.now = now


@dataclass
class JoinedHistory:
    """A record of which rows of one partition have been joined while at least one of them was on disk.

    A *corner* ``(left, right, since)`` means that two sets of rows have been joined with each other: rows of the left
    input that were flushed after ``since`` and no later than ``left``, and rows of the right input that were flushed
    after ``since`` and no later than ``right``. A *probe run* reads rows of one side from disk, and joins them with the
    rows that the other side has in memory.
    """

    corners: list[Corner] = field(default_factory=list)
    """Corners (left, right, since): left rows flushed by ``left`` and right rows by ``right``, all after ``since``."""
    runs: tuple[list[Run], list[Run]] = field(default_factory=lambda: ([], []))
    """Probe runs (until, when) per side: each read rows that were flushed by ``until``, at the time ``when``."""

    def add_corner(self, left: int, right: int, since: int = 0) -> None:
        """Record that left rows flushed by time ``left`` have been joined with right rows flushed by time ``right``.

        Rows that were flushed at time ``since`` or before are excluded. Earlier corners that the new one includes are
        removed.
        """
        kept = [(a, b, c) for a, b, c in self.corners if not (a <= left and b <= right and c >= since)]
        self.corners = [*kept, (left, right, since)]

    def add_run(self, side: int, until: int, when: int) -> None:
        """Record that rows of one side, flushed by ``until``, have been joined with the other side's rows in memory.

        ``when`` is the time of this probe run.
        """
        self.runs[side].append((until, when))

    def seen_from(self, side: int) -> tuple[Codes, Codes, Codes]:
        """Return three arrays: the corners, the probe runs of ``side``, and the probe runs of the other side.

        A corner is a row (time of ``side``, time of the other side, since), as in :meth:`add_corner`. A probe run is a
        row (until, when), as in :meth:`add_run`.
        """
        corners = np.array(self.corners, np.int64).reshape(-1, 3)
        own, other = _moments(self.runs[side]), _moments(self.runs[1 - side])
        return (corners[:, [1, 0, 2]].copy() if side else corners), own, other


def _moments(runs: list[Run]) -> Codes:
    return np.array(runs, np.int64).reshape(-1, 2)
