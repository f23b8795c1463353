"""What the policies of a join have to work with."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.core.budget import MemoryBudget
from millrace.core.lanes import Lanes
from millrace.core.metrics import JoinMetrics
from millrace.core.space import Space
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.semistream.row_numbers import NumberedRows
from millrace.semistream.waiting.waiting_room import WaitingRoom


@dataclass(frozen=True)
class JoinContext:
    """What the policies of a join are given. Nothing in it changes while the join runs."""

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
    """Master rows per load, to begin with."""
    w: int | None
    """Tuples let in per step, if the user has fixed it; to begin with."""
    metrics: JoinMetrics
    step_rows: int
    """Master rows that may be in memory in one step."""
    numbered: NumberedRows | None = None
    """Numbers of master rows, which caches note where output is ordered."""
