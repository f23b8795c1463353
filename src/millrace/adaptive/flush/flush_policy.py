"""Which rows go to disk when memory is full: the interface of flush policies, and the policy that never flushes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from millrace.adaptive.array_types import Batches, Codes, Rows
from millrace.adaptive.inputs.coded_rows import CodedRows
from millrace.adaptive.inputs.pair_inputs import PairInputs
from millrace.adaptive.memory.row_index import MatchedPairs
from millrace.core.errors import BudgetExceededError
from millrace.core.sizes import format_size


class FlushPolicy(ABC):
    """Chooses rows that go to disk, and keeps the statistics it needs for that.

    A policy is made with the inputs of the join; what it takes by keyword only is an option of the join.
    """

    partitions = 1
    """Ranges of codes that rows on disk are divided into."""
    spills = True
    """Whether the join can go on when memory is full."""

    def arrived(self, side: int, codes: Codes) -> None:
        """Count rows with these sorted codes that have come in."""

    def matched(self, side: int, codes: Codes, pairs: MatchedPairs) -> None:
        """Count pairs of new rows of this side with rows of the other in memory; ``codes`` has one code per pair."""

    def combined(self, parts: Sequence[CodedRows], rows: Sequence[Rows]) -> None:
        """Count combinations of new rows of one input with rows of the others in memory."""

    def stored(self) -> None:
        """Flush buffers that are full, after rows have been stored in memory."""

    def at_end(self) -> Batches:
        """Yield results that are due when all inputs have ended, before memory is cleared."""
        return iter(())

    @abstractmethod
    def flush(self) -> Batches:
        """Write some rows to disk. The caller has checked that there are rows in memory."""

    def state(self) -> dict[str, Any]:
        """Return what a snapshot keeps of the policy: plain values, for JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""

    def check_invariants(self) -> None:
        """Assert that the statistics add up."""


class NeverFlush(FlushPolicy):
    """SHJ: both inputs have to fit into memory."""

    spills = False

    def __init__(self, inputs: PairInputs) -> None:
        self._inputs = inputs

    def flush(self) -> Batches:
        total = self._inputs.budget.total
        rows = [len(side.memory) for side in self._inputs.sides]
        raise BudgetExceededError(
            f"memory: shj keeps all rows in memory, and {rows[0]:,} left and {rows[1]:,} right rows fill "
            f"{format_size(total)}; set a larger memory=, or choose an algorithm that spills, such as diner"
        )
        yield
