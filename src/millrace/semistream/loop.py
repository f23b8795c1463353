"""The loop that all algorithms share.

::

    push(batch) ─► intake ─► order.begin ──known──────────────► output
                                │pending
                                ▼
                             order.admit ─► waiting room ◄── meet, pairs ── access.loads ◄── master
                                │full            │
                                └──► a step ◄────┘ order.match, order.finish ─► output

In a step, or disk phase, some master rows are read and compared with the waiting tuples, and the tuples that have met
all of their rows leave. The cache policy and the access policy make up the algorithm; the output order decides when
tuples leave. The loop calls them; they never call the loop.
"""

from __future__ import annotations

import pyarrow as pa

from millrace.core.budget import Reservation
from millrace.core.errors import BudgetExceededError
from millrace.core.sizes import format_size
from millrace.cost.plan import LOAD_ROW_BYTES
from millrace.semistream.output.output_columns import Batches
from millrace.semistream.output.output_order import OutputOrder
from millrace.semistream.output.parts import JoinParts


class JoinLoop:
    """Runs the phases of one join with one algorithm.

    Parameters
    ----------
    parts
        The cache policy, the access policy, the waiting room and the other parts of the join.
    order
        Decides when tuples leave.
    load
        The load buffer's reservation in the budget.
    pair_bytes
        Bytes that pairs of a tuple's slot and a master row's number take in the load buffer.
    """

    def __init__(self, parts: JoinParts, order: OutputOrder, load: Reservation, pair_bytes: int) -> None:
        self.parts, self.order = parts, order
        self.access, self.cache, self.room = parts.access, parts.cache, parts.room
        self.steps = 0
        """Number of steps so far."""
        self._cycle = 0
        self._load, self._pair_bytes = load, pair_bytes

    def push(self, batch: pa.RecordBatch) -> Batches:
        """Join a piece of a pushed batch and yield output; run steps when tuples do not fit into the waiting room.

        ``SemiStreamJoin.push`` cuts a batch into pieces of at most 65,536 tuples.
        """
        order = self.order
        yield from order.begin(self.parts.intake.take(batch))
        while order.pending:
            if not (yield from order.admit(self.steps)):
                continue
            if len(self.room):
                yield from self.step()
            else:
                order.make_room_for_one(self.steps)

    def step(self) -> Batches:
        """Run one step: read some master rows, join waiting tuples with them, and yield the output."""
        parts, order, cache, access = self.parts, self.order, self.cache, self.access
        self.steps += 1
        self._begin_cycle()
        cache.begin_step()
        for load in access.loads():
            parts.metrics.probes += len(load.codes)
            for met in self.room.meet(load):
                access.on_match(load, met)
                cache.on_match(load, met)
                for slots, positions in self.room.pairs(load, met):
                    yield from order.match(load, slots, positions, self.steps)
            cache.on_load(load)
        cache.end_step()
        for slots in access.finished():
            yield from order.finish(slots, self.steps)
        yield from order.end_step()

    def _begin_cycle(self) -> None:
        cycle = int(self.access.cycles) + 1
        if cycle != self._cycle:
            self._cycle = cycle
            self.room.rows.trim()
            self.cache.begin_cycle(cycle)
            self.order.trim()

    def drain(self) -> Batches:
        """Run steps until no tuple waits, and yield the output."""
        while len(self.room):
            yield from self.step()
        self.room.rows.trim()
        self.order.trim()

    def resume(self, steps: int) -> None:
        """Continue after ``steps`` earlier steps; the access policy must have resumed already."""
        self.steps = steps
        if self.access.cycles % 1:
            self._cycle = int(self.access.cycles) + 1  # this turn has begun already

    def retune(self, b: int) -> None:
        """Load ``b`` rows at a time from now on, or raise an error if there is no memory for them."""
        nbytes, budget = b * LOAD_ROW_BYTES + self._pair_bytes, self.parts.budget
        if not self._load.try_resize(nbytes):
            self.room.rows.trim()
            self.order.trim()
            if not self._load.try_resize(nbytes):
                raise BudgetExceededError(
                    f"b: loads of {b:,} rows need {format_size(nbytes - self._load.nbytes)} more, but only "
                    f"{format_size(budget.available)} of {format_size(budget.total)} are left. "
                    "Call step() so that waiting tuples leave"
                )
        self.access.retune(b)

    def check_invariants(self) -> None:
        """Assert that the invariants of every part hold; for tests."""
        self.room.check_invariants()
        self.order.check_invariants()
        self.cache.check_invariants()
        self.access.check_invariants()
