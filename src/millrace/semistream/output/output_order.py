"""What the loop needs of the order of output: when a tuple leaves, and what is kept of it until then."""

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
from millrace.semistream.intake import Arrived
from millrace.semistream.output.output_columns import Batches


class HeldTuples(NamedTuple):
    """Tuples that wait for earlier ones to leave: the rows, and the number of the first."""

    rows: pa.RecordBatch
    head: int


class OutputOrder(Protocol):
    """Decides when tuples leave. The loop calls, in this order::

    begin     tuples have come: some leave at once, the others are pending
    admit     let pending tuples in, as many as there is room for; whether a step has to make room
    make_way  the waiting room is empty and a tuple still does not fit
    match     waiting tuples have met master rows with their code
    leave     waiting tuples have met every row of their key
    end_step  all loads of a step have passed
    """

    def begin(self, arrived: Arrived) -> Batches:
        """Yield what can leave at once."""
        ...

    @property
    def pending(self) -> int:
        """Tuples that have come and are not let in yet."""
        ...

    def admit(self, step: int) -> Generator[pa.RecordBatch, None, bool]:
        """Let pending tuples in; return whether none could be let in, so that a step has to make room."""
        ...

    def make_way(self, step: int) -> None:
        """Make way for one tuple by all means, or raise an error and drop what is pending."""
        ...

    def match(self, load: Load, slots: Slots, positions: Indices, step: int) -> Batches:
        """Yield what comes out as waiting tuples meet master rows that may match."""
        ...

    def leave(self, slots: Slots, step: int) -> Batches:
        """Yield what comes out as tuples leave that have met every master row of their key."""
        ...

    def end_step(self) -> Batches:
        """Yield what can leave now that a step is over."""
        ...

    @property
    def capacity(self) -> int:
        """Tuples that the waiting room may hold, beside what the cache has and wants to grow into."""
        ...

    @property
    def waiting(self) -> int:
        """Tuples that have not left: those that meet master rows, and those that are held back."""
        ...

    def trim(self) -> None:
        """Give memory back that no tuple uses."""
        ...

    # snapshots

    @property
    def waiting_schema(self) -> pa.Schema:
        """Columns that the waiting room keeps of a tuple."""
        ...

    def codes_of(self, columns: list[pa.Array]) -> Codes:
        """Return the key codes of tuples, given what the waiting room keeps of them."""
        ...

    def held(self) -> HeldTuples | None:
        """Return the tuples that wait for earlier ones; None if tuples leave in any order."""
        ...

    def hold_again(self, held: HeldTuples) -> bool:
        """Take tuples back from a snapshot into an empty buffer; return whether there was room for them."""
        ...

    def check_invariants(self) -> None:
        """Assert that the order is sound; for tests."""
        ...


def cut(batch: pa.RecordBatch, start: int, count: int) -> list[pa.Array]:
    """Return the columns of some rows; opaque ones are copied so that they do not hold on to the whole batch."""
    columns = [column.slice(start, count) for column in batch.columns]
    if any(shape_of(column.type) == "opaque" for column in columns):
        every = pa.array(np.arange(count))
        columns = [c.take(every) if shape_of(c.type) == "opaque" else c for c in columns]
    return columns


def too_large(columns: list[pa.Array], budget: MemoryBudget, others: str) -> BudgetExceededError:
    """Return the error for a tuple that does not fit into an empty join."""
    return BudgetExceededError(
        f"stream: a tuple of {format_size(sum(c.nbytes for c in columns))} does not fit; "
        f"{format_size(budget.available)} of {format_size(budget.total)} are free. It and {others} were not taken in"
    )
