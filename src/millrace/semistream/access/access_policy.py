"""The interface of access policies: they choose the master rows that waiting tuples meet next, and end their waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from millrace.core.errors import StateError
from millrace.master.read.wheel import Load, Wheel
from millrace.rows.arena import Slots
from millrace.rows.code_filter import FoundCodes
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes
from millrace.semistream.context import JoinContext


class Access(ABC):
    """Policy of the disk phase. The loop calls, in this order::

    quota     how many tuples may enter now
    on_admit  tuples have entered
    loads     the master rows of one step, which all waiting tuples meet
    on_match  those of them that match waiting tuples
    finished  the tuples that have met all of their rows
    """

    at_once = False
    """Whether tuples are answered as they come, without waiting."""
    paged = False
    """Whether master rows come in pages that are chosen, several in one step."""
    wheel: Wheel | None = None
    """The scan that passes the whole master by in turns; None if there is none."""

    def __init__(self, context: JoinContext) -> None:
        self.context = context
        self.b = context.b
        """Master rows per load."""
        self.w = context.w
        """Tuples let in per step, if the user has fixed it."""

    @property
    @abstractmethod
    def place(self) -> int:
        """Number that grows with every step: tuples that enter at the same place form a chunk."""

    @abstractmethod
    def quota(self, capacity: int) -> int:
        """Return how many tuples may enter before the next step, if the waiting room can hold ``capacity``."""

    def on_admit(self, codes: Codes) -> None:
        """Take note of the codes of tuples that have entered the waiting room."""

    @abstractmethod
    def loads(self) -> Iterator[Load]:
        """Yield the master rows of the next step."""

    def on_match(self, load: Load, met: FoundCodes) -> None:
        """Take note of the rows of a load that matched waiting tuples."""

    @abstractmethod
    def finished(self) -> Iterator[Slots]:
        """Yield the waiting tuples that have met every row of their key."""

    @property
    @abstractmethod
    def cycles(self) -> float:
        """Periods passed so far: turns of the wheel, or another measure by which caches age their counts."""

    @property
    @abstractmethod
    def longest_wait(self) -> int:
        """Most steps that a tuple waits."""

    @property
    @abstractmethod
    def turned(self) -> int:
        """Progress so far, as a number from which :meth:`resume` continues after a restart."""

    @abstractmethod
    def resume(self, turned: int) -> None:
        """Continue from the progress ``turned``."""

    def on_resume(self, waited: int) -> None:
        """Adapt to the tuples restored after a restart, of which the oldest has waited ``waited`` steps."""

    def retune(self, b: int) -> None:
        """Load ``b`` master rows at a time from now on; only a scan in turns can do that."""
        raise StateError("b: pages that are found through the index have a fixed size")

    def limit_admission(self, w: int | None) -> None:
        """Let ``w`` tuples in per step from now on; None: as many as keep the waiting room evenly full."""
        self.w = w

    def rows_of(self, codes: Codes, most: int) -> Iterator[tuple[int, Indices, Indices]]:
        """Yield the master rows of codes at once: shard, places in ``codes``, rows. Only where :attr:`at_once`."""
        raise StateError(f"{type(self).__name__}: finds no rows as tuples come; tuples wait")

    def row_counts(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Return how many master rows each code has. Only where :attr:`at_once`."""
        raise StateError(f"{type(self).__name__}: finds no rows as tuples come; tuples wait")

    @abstractmethod
    def explain(self) -> str:
        """Return a line that describes how the master is accessed."""

    def check_invariants(self) -> None:
        """Assert that the policy is sound; for tests."""
