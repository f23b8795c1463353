"""``StarJoin``: a stream joined with several masters under one byte budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.errors import SchemaError, StateError
from millrace.core.operator import StreamOperator
from millrace.core.sizes import format_size, parse_size
from millrace.rows.columns import plain_schema
from millrace.semistream import snapshot_format as snapshots
from millrace.semistream.arguments import AUTO
from millrace.semistream.join import SemiStreamJoin, batches_of
from millrace.semistream.output.output_columns import Batches
from millrace.semistream.sizing.arm_shares import Need, need_of, split
from millrace.semistream.star import arms as arms_of
from millrace.semistream.star.arms import Arm, naming
from millrace.semistream.star.chain import Chain, StarMetrics, split_snapshot


class StarJoin(StreamOperator):
    """Join a stream with several masters, one after the other.

    Parameters
    ----------
    arms
        The masters, each as an :class:`Arm`, a tuple ``(master, on, how)``, or a mapping of an arm's arguments.
    memory
        The budget of all arms together: bytes, ``"64MB"``, or ``"1%"`` of all masters. Input and output batches of the
        arms (at most about 8 MB each) are not part of it.
    reorder
        Run the arms in the cheapest order, where that makes no difference to the output. Columns come out in the given
        order all the same.

    Notes
    -----
    The memory is divided among the arms when the stream's schema is known. An arm with a ``share`` gets just that. The
    part of any other arm is proportional to √(master rows · bytes of a waiting tuple), which minimizes the work of all
    arms together, but it is at least what the arm needs to start. What an arm cannot use goes to other arms, for
    example where its whole master fits into less.

    Examples
    --------
    >>> import tempfile
    >>> customers = pa.table({"custkey": [1, 2], "name": ["Ann", "Bo"]})
    >>> parts = pa.table({"partkey": [7, 8], "brand": ["x", "y"]})
    >>> folder = tempfile.mkdtemp()
    >>> from millrace.master.store import MasterStore
    >>> star = StarJoin([
    ...     Arm(MasterStore.build(customers, folder + "/customers", key="custkey"), on="custkey"),
    ...     Arm(MasterStore.build(parts, folder + "/parts", key="partkey"), on="partkey", how="left"),
    ... ], memory="1MB")
    >>> orders = pa.record_batch({"custkey": [1, 2, 3], "partkey": [8, 9, 7]})
    >>> pa.Table.from_batches(star.run([orders])).sort_by("custkey").to_pylist()[1]
    {'custkey': 2, 'partkey': 9, 'name': 'Bo', 'brand': None}
    """

    def __init__(self, arms: Sequence[Any], *, memory: str | int = "64MB", reorder: bool = True) -> None:
        self.arms = arms_of.read(arms)
        self.budget = MemoryBudget(parse_size(memory, of=sum(arm.store.nbytes for arm in self.arms)))
        self._reorder = reorder
        self._chain: Chain | None = None
        self._schema = pa.schema([])
        self._straight = True
        self._finished = False
        split(self.budget.total, [self._need(arm, None) for arm in self.arms])  # raises an error if memory is too small

    # wiring

    def _need(self, arm: Arm, stream: pa.Schema | None) -> Need:
        with naming(arm.name):
            join = arm.least_join(stream)
        fixed = arm.fixed(self.budget.total)
        if stream is None:
            return Need(str(arm.name), join.budget.total, fixed=fixed)
        return need_of(str(arm.name), join, fixed)

    def bind(self, stream: pa.Schema) -> pa.Schema:
        """Fix the stream's schema, check that the arms can run with it, and return the output's schema.

        The first :meth:`push` calls it.
        """
        if self._chain is not None:
            self._chain.joins[0].bind(stream)
            return self._schema
        stream = plain_schema(stream)
        names = arms_of.output_names(self.arms, stream.names)
        order = arms_of.run_order(self.arms, stream.names) if self._reorder else list(range(len(self.arms)))
        running = [self.arms[place] for place in order]
        needs, passed = [], stream
        for arm in running:
            needs.append(self._need(arm, passed))
            passed = arm.spec.output_schema(passed, arm.store.schema)
        joins: dict[str, SemiStreamJoin] = {}
        passed = stream
        for arm, share in zip(running, split(self.budget.total, needs), strict=True):
            with naming(arm.name):
                joins[str(arm.name)] = join = arm.join(share)
                passed = join.bind(passed)
        for name, join in joins.items():
            self.budget.reserve(name, join.budget.total)
        self._straight = order == sorted(order)
        self._chain, self._schema = Chain(joins), pa.schema([passed.field(name) for name in names])
        return self._schema

    @property
    def bound(self) -> bool:
        """Whether the stream's schema is known."""
        return self._chain is not None

    @property
    def _bound_chain(self) -> Chain:
        if self._chain is None:
            raise StateError("the star has no stream yet: push a batch or call bind(schema) first")
        return self._chain

    @property
    def joins(self) -> dict[str, SemiStreamJoin]:
        """The joins of the arms by name, in the order in which they are run."""
        chain = self._bound_chain
        return dict(zip(chain.names, chain.joins, strict=True))

    @property
    def k(self) -> int:
        """Upper bound of a tuple's wait in all arms together, in steps."""
        return sum(join.k for join in self._bound_chain.joins)

    _called = "star"

    def _guarded(self, work: Batches) -> Batches:
        return super()._guarded(work if self._straight else self._in_given_order(work))

    def _in_given_order(self, work: Batches) -> Batches:
        for batch in work:
            yield batch.select(self._schema.names)

    def _check_sound(self) -> None:
        self._broken = self._broken or (self._chain.broken if self._chain else "")
        super()._check_sound()

    # the life cycle

    def push(self, batch: pa.RecordBatch) -> Batches:
        if not isinstance(batch, pa.RecordBatch):
            raise SchemaError(f"push: expected a pyarrow.RecordBatch; got {type(batch).__name__}")
        if self._finished:
            raise StateError("push after finish: make a new StarJoin for a new stream")
        self.bind(batch.schema)
        return self._guarded(self._bound_chain.push(batch))

    def step(self) -> Batches:
        """Run one step of every arm and yield the output of the last arm."""
        return self._guarded(self._bound_chain.step())

    def idle(self) -> Batches:
        """Run one step of every arm in which tuples wait, and yield the output of the last arm."""
        return self._guarded(self._chain.idle()) if self._chain else iter(())

    def finish(self) -> Batches:
        self._finished = True
        return self._guarded(self._chain.finish()) if self._chain else iter(())

    def run(self, stream: Any) -> Batches:
        """Join a whole stream (an iterable of record batches, a table, a reader or a dataset) and yield the output."""
        yield from super().run(batches_of(stream))

    def __repr__(self) -> str:
        names = ", ".join(str(arm.name) for arm in self.arms)
        return f"StarJoin({names}, memory={format_size(self.budget.total)})"

    # properties

    @property
    def nbytes(self) -> int:
        return self._chain.nbytes if self._chain else 0

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of the output: the stream's, then the arms' in the given order; raises an error if not bound yet."""
        assert self._bound_chain
        return self._schema

    @property
    def metrics(self) -> StarMetrics:
        metrics = self._chain.metrics if self._chain else StarMetrics()
        metrics.budget_bytes = self.budget.total
        return metrics

    def explain(self) -> str:
        """Return the order in which the arms run, their shares of the budget, and each arm's plan, as text."""
        lines = [f"star of {len(self.arms)} arms, memory {format_size(self.budget.total)}"]
        if self._chain is None:
            lines += [f"  {arm!r}" for arm in self.arms]
            lines.append("  (order and split follow once the stream's schema is known)")
            return "\n".join(lines)
        for name, join in self.joins.items():
            lines.append(f"  {name}: {join.budget.total / self.budget.total:.1%} of the memory")
            lines += [f"    {line}" for line in join.explain().splitlines()]
        return "\n".join(lines)

    def check_invariants(self) -> None:
        self.budget.check_invariants()
        assert self.nbytes <= self.budget.total, f"{self.nbytes} bytes in use of {self.budget.total}"
        if self._chain is not None:
            self._chain.check_invariants()
            assert self.budget.used == sum(join.budget.total for join in self._chain.joins), "shares do not add up"

    # snapshots

    def _fix_algorithms(self, algorithms: dict[str, str]) -> None:
        """Fix the algorithms of arms with ``"auto"`` to those of a snapshot, so that they get the same memory again."""
        now = [arm.with_algorithm(algorithms[str(arm.name)]) if arm.algorithm == AUTO else arm for arm in self.arms]
        self.arms, self._chain = now, None
        self.budget = MemoryBudget(self.budget.total)

    def snapshot(self) -> bytes:
        """Return every arm's waiting tuples, progress and counts as bytes, without the caches, which refill."""
        self._check_between_calls("snapshot")
        return self._bound_chain.snapshot()

    def restore(self, state: bytes) -> None:
        if self._chain is not None and (self._chain.steps or self.metrics.tuples_in):
            raise StateError("restore: this star has already begun; restore into a fresh one")
        names, steps, parts = split_snapshot(state)
        if sorted(names) != sorted(str(arm.name) for arm in self.arms):
            own = ", ".join(str(arm.name) for arm in self.arms)
            raise StateError(f"restore: expected a snapshot of a star with arms {own}; got {', '.join(names)}")
        self._fix_algorithms(dict(zip(names, map(snapshots.algorithm_of, parts), strict=True)))
        self.bind(snapshots.stream_schema(parts[0]))
        self._bound_chain.restore(names, steps, parts)
