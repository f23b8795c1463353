"""A model of Millrace's waiting room: how many tuples fit, and the least budget with which a join starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millrace.core.bisection import increasing_root
from millrace.cost.plan import LEAST_MATCHES, LEAST_PAIRS, LOAD_ROW_BYTES, PAIR_BYTES, Plan
from millrace.cost.workload import Workload

CHUNK_BYTES = 256
"""Bytes that the queue takes for the tuples of one step."""
FILTER_BYTES = 2.0
"""The part of ``tuple_bytes`` that is charged for a tuple's bits in the filter, in bytes."""


def least_memory(workload: Workload, b: int = 1) -> int:
    """Return the least budget with which a join with loads of ``b`` rows starts, in bytes."""
    room = int(4 * (workload.tuple_bytes - FILTER_BYTES)) + 64 + 4 * CHUNK_BYTES
    filters = 3 * (workload.threads * 8 * LEAST_MATCHES + 8)
    return b * LOAD_ROW_BYTES + LEAST_PAIRS * PAIR_BYTES + room + 1024 + filters


@dataclass(frozen=True)
class Room:
    """The size of a waiting room: how many tuples fit, and the bytes of their queue and their filter."""

    capacity: float
    queue: float
    filter: float

    @classmethod
    def fitting(cls, workload: Workload, plan: Plan, free: float, chunks: Callable[[float], float]) -> Room:
        """Return the room for as many tuples as fit into ``free`` bytes, their queue and filter included.

        ``chunks(tuples)`` is the number of steps whose tuples are in the queue when that many tuples wait. The bits of
        the filter are counted twice, as the joins count them: in the size of the filter and in ``tuple_bytes``.
        """
        finders = workload.threads * 8 * plan.matches

        def used(tuples: float) -> float:
            beside = CHUNK_BYTES * chunks(tuples) + finders + filter_bytes(tuples)
            return tuples * workload.tuple_bytes + beside

        fits = increasing_root(used, free, 1.0, max(1.0, free / workload.tuple_bytes), 1e-6, 1e-4 * max(free, 1.0))
        return cls(fits, CHUNK_BYTES * chunks(fits), finders + filter_bytes(fits))

    def parts(self, workload: Workload) -> dict[str, float]:
        """Return the bytes of the waiting tuples, of their queue and of their filter, by their names in the budget."""
        waiting = self.capacity * (workload.tuple_bytes - FILTER_BYTES)
        return {"waiting": waiting, "queue": self.queue, "filter": self.filter}


def filter_bytes(tuples: float) -> int:
    """Return the bytes of the bit filter for ``tuples`` tuples.

    Its length in words of 8 bytes is a power of two, so it has 8 to 16 bits for each of ``1.25 * tuples`` tuples.
    """
    bits = 8 * int(tuples + tuples / 4)
    return 8 * max(1, 1 << max(0, (bits - 1).bit_length() - 6))
