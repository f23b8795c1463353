"""Who leaves memory when there is no room: the policy's interface, and the joins that never spill."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.memory.sorted_rows import Codes, Pairs
from millrace.adaptive.pair.pair_state import Machinery
from millrace.core.errors import BudgetExceededError
from millrace.core.sizes import format_size


class Flushing(ABC):
    """Chooses rows that go to disk, and keeps the statistics it needs for that."""

    partitions = 1
    """Into how many ranges of codes the rows on disk are divided."""

    def __init__(self, machinery: Machinery) -> None:
        self._m = machinery

    def arrived(self, side: int, codes: Codes) -> None:
        """Rows with these codes, sorted, have come in."""

    def matched(self, side: int, codes: Codes, pairs: Pairs) -> None:
        """Rows of this side have met rows of the other in memory: one code per pair."""

    def settle(self) -> None:
        """Rows have taken their place in memory; some may be wanted elsewhere."""

    def at_end(self) -> Batches:
        """Both inputs have ended, and what is in memory is still there."""
        return iter(())

    @abstractmethod
    def flush(self) -> Batches:
        """Send something to disk; the caller has seen to it that there is something in memory."""

    def state(self) -> dict[str, Any]:
        """What it would have to know after a restart."""
        return {}

    def accept(self, state: dict[str, Any]) -> None:
        """Go on from a state."""

    def check_invariants(self) -> None:
        """Assert that the statistics are sound."""


class NeverFlush(Flushing):
    """SHJ: both inputs have to fit into memory."""

    def flush(self) -> Batches:
        total = self._m.budget.total
        rows = [len(side.memory) for side in self._m.sides]
        raise BudgetExceededError(
            f"memory: shj keeps everything in memory, and {format_size(total)} are full with {rows[0]:,} left and "
            f"{rows[1]:,} right rows; give it more, or choose an algorithm that spills, such as diner"
        )
        yield
