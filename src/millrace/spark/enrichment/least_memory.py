"""The least memory of a join, for the driver to check a budget before the query runs."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from millrace.core.errors import BudgetTooSmallError
from millrace.semistream.join import SemiStreamJoin


def join_with_least_memory(
    make: Callable[[int], SemiStreamJoin], stream: pa.Schema, *, at_least: int = 1
) -> SemiStreamJoin:
    """Return a join, bound to a stream, with the least memory that it can work with, but ``at_least`` so many bytes.

    ``make`` returns the join with so much memory. Every join that cannot be made says how much it lacks, so two or
    three attempts are enough.
    """
    memory = at_least
    while True:
        try:
            join = make(memory)
            join.bind(stream)
        except BudgetTooSmallError as error:
            memory = max(memory + 1, error.minimum)
        else:
            return join
