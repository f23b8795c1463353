"""The protocol of output orders, which decide when tuples leave the join and what is kept of them until then."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.errors import BudgetExceededError
from millrace.core.sizes import format_size
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.columns import Indices, shape_of
from millrace.rows.keyed_rows import Codes
from millrace.semistream.intake import ArrivedTuples
from millrace.semistream.output.output_columns import Batches


class HeldTuples(NamedTuple):
    """All tuples of an order buffer: their rows, and the sequence number of the first."""

    rows: pa.RecordBatch
    head: int


class OutputOrder(Protocol):
    """Decides when tuples leave. The loop calls, in this order::

    begin              take new tuples: some leave at once, the others are pending
    admit              let in as many pending tuples as fit; return whether a step has to make room
    make_room_for_one  make room for one tuple when the waiting room is empty
    match              join waiting tuples with master rows that have their code
    finish             answer tuples that have met every row of their key
    end_step           release what can leave after a step
    """

    def begin(self, arrived: ArrivedTuples) -> Batches:
        """Take new tuples; yield the output of those that can leave at once."""
        ...

    @property
    def pending(self) -> int:
        """Number of tuples that have arrived and are not in the waiting room yet."""
        ...

    def admit(self, step: int) -> Generator[pa.RecordBatch, None, bool]:
        """Let in pending tuples; return True if none fits, so that a step has to make room first."""
        ...

    def make_room_for_one(self, step: int) -> None:
        """Make room for one tuple, if need be by emptying the cache.

        If that is not enough, drop the pending tuples and raise an error.
        """
        ...

    def match(self, load: Load, slots: Slots, positions: Indices, step: int) -> Batches:
        """Join pairs of a waiting tuple and a master row with the same key code; yield the output.

        Pair i is the tuple at ``slots[i]`` and the row at position ``positions[i]`` of the load.
        """
        ...

    def finish(self, slots: Slots, step: int) -> Batches:
        """Yield the output of waiting tuples that have met every master row of their key."""
        ...

    def end_step(self) -> Batches:
        """Yield the output that is complete after a step."""
        ...

    @property
    def capacity(self) -> int:
        """Number of tuples that the waiting room may hold, with memory left for the cache and its growth."""
        ...

    @property
    def waiting(self) -> int:
        """Number of tuples that have not left: those in the waiting room and those held back."""
        ...

    def trim(self) -> None:
        """Give back memory that no tuple uses."""
        ...

    # snapshots

    @property
    def waiting_schema(self) -> pa.Schema:
        """Columns of a tuple in the waiting room."""
        ...

    def codes_of(self, columns: list[pa.Array]) -> Codes:
        """Return the key codes of tuples from their columns in the waiting room."""
        ...

    def held_tuples(self) -> HeldTuples | None:
        """Return all tuples of the order buffer; None if tuples leave in any order."""
        ...

    def restore_held(self, held: HeldTuples) -> bool:
        """Restore the tuples of a saved order buffer into an empty one; return False if they do not fit."""
        ...

    def check_invariants(self) -> None:
        """Assert that the invariants of the output order hold; for tests."""
        ...


def cut(batch: pa.RecordBatch, start: int, count: int) -> list[pa.Array]:
    """Return the columns of ``count`` rows from ``start`` on; nested columns are copied, so the batch can be freed."""
    columns = [column.slice(start, count) for column in batch.columns]
    if any(shape_of(column.type) == "opaque" for column in columns):
        every = pa.array(np.arange(count))
        columns = [c.take(every) if shape_of(c.type) == "opaque" else c for c in columns]
    return columns


def too_large(columns: list[pa.Array], budget: MemoryBudget, others: str) -> BudgetExceededError:
    """Return the error for a tuple that does not fit into memory although no other tuple waits.

    ``others`` says in words which other tuples were not joined either, for the message.
    """
    return BudgetExceededError(
        f"stream: a tuple of {format_size(sum(c.nbytes for c in columns))} does not fit into memory; "
        f"{format_size(budget.available)} of {format_size(budget.total)} are free. "
        f"This tuple and {others} were not joined"
    )
