"""The context in which the policies of a join work."""

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
    """Parts and settings of a join that its policies work with. Nothing in it changes while the join runs."""

    store: MasterStore
    device: Device
    room: WaitingRoom
    budget: MemoryBudget
    space: Space
    lanes: Lanes
    columns: list[int]
    """Master columns a cached row needs."""
    single: bool
    """Whether the first master row of a key decides the result of its tuples."""
    matches: int
    """Matching master rows processed at a time."""
    b: int
    """Master rows per load at the start."""
    w: int | None
    """Tuples let in per step at the start, if fixed by the user."""
    metrics: JoinMetrics
    step_rows: int
    """Master rows that may be in memory in one step."""
    numbered: NumberedRows | None = None
    """Numbers of master rows, which caches note where output is ordered; None elsewhere."""
