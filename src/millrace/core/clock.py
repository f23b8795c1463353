"""A real and a virtual clock. Clocks are passed as arguments, so that tests and modelled disks can use virtual time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time, in seconds since some fixed moment; it never goes back."""

    def now(self) -> float: ...


class RealClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that moves only by :meth:`advance`.

    >>> clock = VirtualClock(); clock.advance(1.5); clock.now()
    1.5
    """

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"seconds: expected at least 0, because a clock cannot go back; got {seconds}")
        self._now += seconds
