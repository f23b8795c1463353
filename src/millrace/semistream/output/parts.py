"""The parts of a join, which are made once the stream's columns are known."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.core.budget import MemoryBudget
from millrace.core.metrics import JoinMetrics
from millrace.core.spec import JoinSpec
from millrace.master.store import MasterStore
from millrace.semistream.access.access_policy import Access
from millrace.semistream.binding import Binding
from millrace.semistream.cache.cache_policy import Cache
from millrace.semistream.conditions.residual import Residual
from millrace.semistream.intake import Intake
from millrace.semistream.output.output_columns import JoinOutput
from millrace.semistream.row_numbers import NumberedRows
from millrace.semistream.waiting.waiting_room import WaitingRoom


@dataclass(frozen=True)
class JoinParts:
    """Parts that the loop and its output order work with."""

    store: MasterStore
    spec: JoinSpec
    binding: Binding
    budget: MemoryBudget
    metrics: JoinMetrics
    intake: Intake
    cache: Cache
    access: Access
    room: WaitingRoom
    output: JoinOutput
    residual: Residual | None
    """Condition that is tested on every pair that was found by key or by search; None if there is none."""
    numbered: NumberedRows
