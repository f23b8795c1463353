"""The context of a join's policies: the parts, settings and sizes that they work with."""

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
    """Parts and settings of a join that its policies work with; none is replaced while the join runs."""

    store: MasterStore
    device: Device
    room: WaitingRoom
    budget: MemoryBudget
    space: Space
    lanes: Lanes
    columns: list[int]
    """Places of the master columns that a cached row holds."""
    single: bool
    """Whether one master row per key is enough: keys do not repeat, or one match decides (semi and anti joins)."""
    matches: int
    """Largest number of matching master rows that a thread handles at a time."""
    b: int
    """Master rows per load, or per page, when the join starts."""
    w: int | None
    """Tuples let in per step when the join starts; None if the user has not set it."""
    metrics: JoinMetrics
    step_rows: int
    """Largest number of master rows that may be in memory in one step."""
    numbered: NumberedRows | None = None
    """Row numbers of the master, which caches keep beside their rows if output is ordered; None if it is not."""
