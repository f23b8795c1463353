"""What an access policy is: it decides which master rows waiting tuples meet next, and who has then met enough."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from millrace.core.budget import MemoryBudget
from millrace.core.lanes import Lanes
from millrace.core.metrics import JoinMetrics
from millrace.core.space import Space
from millrace.master.device import Device
from millrace.master.read.wheel import Load
from millrace.master.store import MasterStore
from millrace.rows.arena import Slots
from millrace.rows.code_filter import Met
from millrace.rows.keyed_rows import Codes
from millrace.semistream.output.row_numbers import NumberedRows
from millrace.semistream.waiting.waiting_room import WaitingRoom


@dataclass
class Surroundings:
    """What the policies of a join can see of it. ``b`` and ``w`` may change on the way, the rest does not."""

    store: MasterStore
    device: Device
    room: WaitingRoom
    budget: MemoryBudget
    space: Space
    lanes: Lanes
    columns: list[int]
    """Master columns a cached row needs."""
    single: bool
    """Whether the first master row of a key settles all there is to know about the key."""
    matches: int
    """Matching master rows that are handled at a time."""
    b: int
    """Master rows per load."""
    w: int | None
    """Tuples let in per step, if the user has fixed it."""
    metrics: JoinMetrics
    step_rows: int
    """Master rows that may be in memory in one step."""
    numbered: NumberedRows | None = None
    """Where output is ordered: caches note the numbers of their rows."""


class Access(ABC):
    """Policy of the disk phase. The loop calls, in this order::

    quota     how many tuples may enter now
    admitted  they have
    loads     master rows of one step, which meet everyone who waits
    on_match  those of them that somebody waits for
    leaving   tuples for which there is nothing more to meet
    """

    at_once = False
    """Whether tuples are answered as they come and nobody waits."""
    paged = False
    """Whether master rows come in pages that are chosen, several in one step."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around

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

    def on_match(self, load: Load, met: Met) -> None:
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
        """Load ``b`` master rows at a time from now on. Only called where the master passes by in turns."""
        raise NotImplementedError

    @abstractmethod
    def explain(self) -> str:
        """How it works with what it has, in a line."""

    def check_invariants(self) -> None:
        """Assert that the policy is sound; for tests."""
