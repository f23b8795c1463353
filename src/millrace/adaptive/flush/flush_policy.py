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
    """Decides which rows go to disk, and keeps the statistics that it needs for that.

    A policy is created with the inputs of the join. Its keyword-only arguments are options of the join.
    """

    partitions = 1
    """Number of key-code ranges that rows on disk are divided into."""
    spills = True
    """Whether the policy writes rows to disk when memory is full; if not, the join fails."""

    def arrived(self, side: int, codes: Codes) -> None:
        """Update the statistics for new rows of one input, given their sorted key codes."""

    def matched(self, side: int, codes: Codes, pairs: MatchedPairs) -> None:
        """Update the statistics for pairs of a new row of ``side`` and a row of the other side in memory.

        ``codes`` holds the key code of the new row of each pair.
        """

    def combined(self, parts: Sequence[CodedRows], rows: Sequence[Rows]) -> None:
        """Update the statistics for combinations of new rows of one input with rows of the other inputs in memory.

        Combination i consists of row ``rows[n][i]`` of ``parts[n]`` for every input n.
        """

    def stored(self) -> None:
        """Write rows to disk that need not wait for a flush; called after new rows have been stored in memory."""

    def at_end(self) -> Batches:
        """Join rows in memory that the policy has left unjoined, after all inputs have ended, and yield the results."""
        return iter(())

    @abstractmethod
    def flush(self) -> Batches:
        """Write some rows to disk, and yield results found on the way. Only called if there are rows in memory."""

    def state(self) -> dict[str, Any]:
        """Return the policy's state for a snapshot, as plain values for JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the policy's state from a snapshot."""

    def check_invariants(self) -> None:
        """Assert that the statistics add up."""


class NeverFlush(FlushPolicy):
    """SHJ's flush policy, which never flushes: both inputs must fit into memory."""

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
