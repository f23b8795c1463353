"""The interface of access policies, which choose the next master rows to load and say which tuples are done."""

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
    """Policy that decides which master rows waiting tuples meet next. The loop calls, in this order::

    quota     returns how many tuples may enter now
    on_admit  takes note of the tuples that have entered
    loads     yields the master rows of one step, which all waiting tuples meet
    on_match  takes note of the rows of a load that match waiting tuples
    finished  yields the tuples that have met all of their rows

    If :attr:`at_once` is true, ``IndexAnswers`` calls these instead, once or several times for each piece of a pushed
    batch: :meth:`row_counts` if output is ordered and keys repeat, then :meth:`rows_of`.
    """

    at_once = False
    """Whether tuples are answered as soon as they arrive, without waiting."""
    paged = False
    """Whether the policy loads chosen master rows, found through the index, instead of scanning them all."""
    wheel: Wheel | None = None
    """The scan that reads the whole master over and over; None if the policy does not scan."""

    def __init__(self, context: JoinContext) -> None:
        self.context = context
        self.b = context.b
        """Master rows per load, or per page if the policy loads pages."""
        self.w = context.w
        """Largest number of tuples let in per step; None if the policy decides."""

    @property
    @abstractmethod
    def place(self) -> int:
        """Number that grows with every step; tuples that enter while it stays the same form one chunk."""

    @abstractmethod
    def quota(self, capacity: int) -> int:
        """Return how many tuples may enter before the next step if the waiting room can hold ``capacity`` in all."""

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
        """Number of periods so far, of which the current one counts in part.

        A period is a full scan of the master, or another span that the policy defines. Caches reduce old counts in
        every period.
        """

    @property
    @abstractmethod
    def longest_wait(self) -> int:
        """Largest number of steps that a tuple may wait."""

    @property
    @abstractmethod
    def turned(self) -> int:
        """Progress so far, as a number that is saved and later passed to :meth:`resume`."""

    @abstractmethod
    def resume(self, turned: int) -> None:
        """Continue from saved progress, an earlier value of :attr:`turned`."""

    def on_resume(self, waited: int) -> None:
        """Adapt to the tuples restored after a restart; the oldest has waited ``waited`` steps."""

    def retune(self, b: int) -> None:
        """Load ``b`` master rows at a time from now on; raise an error unless the policy scans the whole master."""
        raise StateError("b: pages that are found through the index have a fixed size; it cannot be changed")

    def limit_admission(self, w: int | None) -> None:
        """Let at most ``w`` tuples in per step from now on; with None, the policy decides how many."""
        self.w = w

    def rows_of(self, codes: Codes, most: int) -> Iterator[tuple[int, Indices, Indices]]:
        """Yield the master rows with these key codes, in pieces of one shard each.

        A piece is the number of a shard, the places of the rows' key codes in ``codes``, and the rows' numbers in the
        shard. If keys repeat, it holds at most ``most`` rows. Rows are looked up while the result is read. Only for
        policies with :attr:`at_once`.
        """
        raise StateError(f"{type(self).__name__}.rows_of: not defined; policies with at_once=True have to define it")

    def row_counts(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Return for each key code how many master rows have it. Only for policies with :attr:`at_once`."""
        raise StateError(f"{type(self).__name__}.row_counts: not defined; policies with at_once=True have to define it")

    @abstractmethod
    def explain(self) -> str:
        """Return a line that describes how the master is accessed."""

    def check_invariants(self) -> None:
        """Assert that the policy's invariants hold; for tests."""
