"""What an access policy is: it decides which master rows waiting tuples meet next, and which tuples have met enough."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

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
    admitted  they have
    loads     master rows of one step, which meet everyone who waits
    on_match  those of them that somebody waits for
    leaving   tuples for which there is nothing more to meet
    """

    at_once = False
    """Whether tuples are answered as they come, without waiting."""
    paged = False
    """Whether master rows come in pages that are chosen, several in one step."""
    wheel: Wheel | None = None
    """The scan that passes the whole master by in turns, where there is one."""

    def __init__(self, context: JoinContext) -> None:
        self.context = context
        self.b = context.b
        """Master rows per load."""
        self.w = context.w
        """Tuples let in per step, if the user has fixed it."""

    @property
    @abstractmethod
    def place(self) -> int:
        """A number that grows with every step: tuples that enter at the same place form a chunk."""

    @abstractmethod
    def quota(self, capacity: int) -> int:
        """How many tuples may enter before the next step, if the waiting room can hold ``capacity``."""

    def admitted(self, codes: Codes) -> None:
        """Tuples with these codes have entered."""

    @abstractmethod
    def loads(self) -> Iterator[Load]:
        """The master rows of the next step."""

    def on_match(self, load: Load, met: FoundCodes) -> None:
        """Master rows of a load that matched waiting tuples."""

    @abstractmethod
    def leaving(self) -> Iterator[Slots]:
        """Tuples that are still here and have met every row of their key."""

    @property
    @abstractmethod
    def cycles(self) -> float:
        """How often a period has passed in which policies count; the unit of ageing."""

    @property
    @abstractmethod
    def longest_wait(self) -> int:
        """Steps that no tuple waits longer than."""

    @property
    @abstractmethod
    def turned(self) -> int:
        """How far it has come, to go on from after a restart."""

    @abstractmethod
    def resume(self, turned: int) -> None:
        """Go on from there."""

    def resumed(self, waited: int) -> None:
        """Those who waited are here again; the oldest has waited so many steps."""

    def retune(self, b: int) -> None:
        """Load ``b`` master rows at a time from now on. Only a scan in turns can."""
        raise StateError("b: the pages of a join that finds them through the index cannot change their size")

    def limit_admission(self, w: int | None) -> None:
        """Let ``w`` tuples in per step from now on; None: as many as keep the waiting room evenly full."""
        self.w = w

    def rows_of(self, codes: Codes, most: int) -> Iterator[tuple[int, Indices, Indices]]:
        """Yield the master rows of codes at once: shard, places in ``codes``, rows. Only where :attr:`at_once`."""
        raise StateError(f"{type(self).__name__} answers no tuple at once")

    @abstractmethod
    def explain(self) -> str:
        """How it works with what it has, in a line."""

    def check_invariants(self) -> None:
        """Assert that the policy is sound; for tests."""
