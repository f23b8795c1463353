"""``StreamJoin``: two inputs that come slowly and in bursts, joined under one byte budget."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.adaptive import snapshots
from millrace.adaptive.algorithms import Algorithm
from millrace.adaptive.algorithms import algorithm as named
from millrace.adaptive.arrivals import Arrivals
from millrace.adaptive.arriving import Arriving
from millrace.adaptive.blocks import Disk
from millrace.adaptive.explain import explained
from millrace.adaptive.feeding import BUFFER_SHARE, Costs, Feeding, arrivals_of, at_rest, checked_inputs, schemas_of
from millrace.adaptive.machinery import LogicalClock, Machinery
from millrace.adaptive.matching import Band, Matching
from millrace.adaptive.memory import MATCHED, SortedRows, Workspace
from millrace.adaptive.metrics import PairMetrics
from millrace.adaptive.output import Batches, BatchSource, PairOutput
from millrace.adaptive.partitions import Partitions
from millrace.adaptive.side import Side
from millrace.adaptive.sizing import Sizes
from millrace.adaptive.spec import SIDES, On, PairSpec, schema_difference
from millrace.adaptive.spill import SpillArea
from millrace.adaptive.tree import is_tree
from millrace.core.budget import MemoryBudget
from millrace.core.clock import Clock, RealClock
from millrace.core.errors import (
    BudgetExceededError,
    BudgetTooSmallError,
    ConfigError,
    SchemaError,
    SpillError,
    StateError,
    one_of,
)
from millrace.core.operator import OneCallAtATime
from millrace.core.sizes import format_size, parse_size
from millrace.core.space import HeapSpace, Space
from millrace.rows.builder import BATCH_ROWS
from millrace.rows.columns import plain_batch, plain_schema

_NOTHING = pa.schema([])


class StreamJoin(OneCallAtATime):
    """Join two inputs as their rows come, with results as early as possible and all of them at the end.

    Parameters
    ----------
    on
        Key column of both inputs; a list of them; or a pair ``(left name, right name)``. For several inputs a list of
        conditions ``("input.column", "input.column")``: see :class:`~millrace.adaptive.multiway.MultiwayJoin`.
    algorithm
        A name from the table of algorithms, or an ``Algorithm`` of your own.
    memory
        The budget: bytes or ``"5MB"``. It covers rows in memory, their index, statistics, and the buffers of blocks on
        their way from and to disk; with slow sources also rows that wait for their turn. Batches
        that are pushed, and those on their way out, are not in it.
    band
        ``(least, greatest)`` difference, right minus left, of one key column of numbers or moments; None for equality.
    how
        ``"inner"``, ``"left"``, ``"right"``, ``"full"``, ``"semi"`` or ``"anti"``. Rows without a partner come out at
        the end.
    suffix
        Appended to right columns whose name the left has too; without it that is an error.
    block
        Bytes of a block on disk; by default a 256th of the memory. The paper has 10 kB.
    wait_threshold
        Seconds for which both inputs have to be silent before the disk is used to find results.
    max_new_arrivals
        Rows that may wait for their turn while the disk is used.
    max_outer_blocks
        Most blocks that are kept in memory to join others with.
    spill
        Directory for rows that have no room in memory; by default a temporary one.
    clock
        What silence, and results over time, are measured with.
    output_rows
        Most rows of an output batch.
    space
        Where arrays live; by default in this process's memory.
    seed
        For what is left to chance.

    Examples
    --------
    >>> orders = pa.record_batch({"id": [1, 2, 3], "total": [10, 20, 30]})
    >>> payments = pa.record_batch({"id": [3, 1], "paid": [30, 5]})
    >>> pair = StreamJoin(on="id", memory="1MB")
    >>> pa.Table.from_batches(pair.run(left=[orders], right=[payments])).sort_by("id").to_pylist()
    [{'id': 1, 'total': 10, 'paid': 5}, {'id': 3, 'total': 30, 'paid': 30}]
    """

    def __new__(cls, on: Any = None, algorithm: Any = "diner", *_: Any, **__: Any) -> StreamJoin:
        if cls is StreamJoin and (is_tree(on) or algorithm in ("miner", "mjoin")):
            from millrace.adaptive.multiway import MultiwayJoin

            return super().__new__(MultiwayJoin)
        return super().__new__(cls)

    def __init__(
        self,
        on: On,
        algorithm: str | Algorithm = "diner",
        memory: str | int = "64MB",
        band: Band | None = None,
        how: str = "inner",
        *,
        suffix: str | None = None,
        block: str | int | None = None,
        wait_threshold: float = 0.025,
        max_new_arrivals: int = 1000,
        max_outer_blocks: int = 19,
        spill: str | Path | None = None,
        clock: Clock | None = None,
        output_rows: int = BATCH_ROWS,
        space: Space | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.spec = PairSpec.of(on, how, band is not None, suffix)
        self.algorithm = named(algorithm)
        if band is not None:
            self.algorithm.check_band()
        self.algorithm.check_options(options)
        numbers = {"max_new_arrivals": max_new_arrivals, "max_outer_blocks": max_outer_blocks}
        for name, value in (*numbers.items(), ("output_rows", output_rows)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: expected a whole number of at least 1; got {value!r}")
        if (
            isinstance(wait_threshold, bool)
            or not isinstance(wait_threshold, int | float)
            or not 0 < wait_threshold < inf
        ):
            raise ConfigError(f"wait_threshold: expected seconds above 0; got {wait_threshold!r}")
        self.budget = MemoryBudget(parse_size(memory))
        self.clock: Clock = clock or RealClock()
        self.wait_threshold, self.max_new_arrivals = wait_threshold, max_new_arrivals
        if "max_outer_blocks" in self.algorithm.options:
            options["max_outer_blocks"] = max_outer_blocks
        self._sizes = Sizes.of(
            self.budget.total, None if block is None else parse_size(block), max_outer_blocks, self.algorithm
        )
        self._space, self._output_rows, self._seed = space or HeapSpace(), output_rows, seed
        self.area = SpillArea(None if spill is None else Path(spill))
        self._metrics = PairMetrics(budget_bytes=self.budget.total)
        self.band = band
        self._buffered = False
        self._begin(band, options)

    # wiring

    def _begin(self, band: Band | None, options: dict[str, Any]) -> None:
        self._check_least(_NOTHING, _NOTHING)
        sizes, budget = self._sizes, self.budget
        self._matching = Matching(self.spec, band, not self.algorithm.ordered)
        self._output: PairOutput | None = None
        self._schemas: list[pa.Schema | None] = [None, None]
        transfer = budget.reserve("transfer", sizes.transfer)
        budget.reserve("work", sizes.work)
        self._sides = [self._side(number, _NOTHING) for number in (0, 1)]
        self.machinery = Machinery(
            self._sides,
            self._matching,
            None,
            budget,
            Workspace(sizes.pairs),
            self._metrics,
            LogicalClock(),
            transfer,
            sizes.block,
            (self.spec.keeps(0), self.spec.keeps(1)),
            Partitions(self.algorithm.partitions),
            self._seed,
        )
        self.flushing, self.reactive = self.algorithm.make(self.machinery, options)
        for side in self._sides:
            self._divide(side)
        self._arriving = Arriving(self.machinery, self.flushing, self.algorithm, sizes)
        self._finished = False

    def _side(self, number: int, schema: pa.Schema) -> Side:
        name = SIDES[number]
        memory = SortedRows(name, schema, self.budget, self._space, self._sizes.width)
        disk = Disk(name, schema, self.area, self.budget, self.spec.keeps(number) or self.spec.how == "semi")
        return Side(number, schema, memory, disk, self._sizes.block, self.algorithm.partitions)

    def _divide(self, side: Side) -> None:
        if self.algorithm.spills:
            side.disk.divide(self.flushing.partitions, self._sizes.page, self._sizes.fan, side.block_rows)
        else:
            side.disk.divide(1, 1, 1, 0)

    def _check_least(self, left: pa.Schema, right: pa.Schema) -> None:
        least = self._sizes.least
        for schema in (left, right):
            least += SortedRows.least_bytes(schema, 2, Sizes.LEAST_WIDTH)
            least += Sizes.buffers(schema, self.algorithm.spills)
        if self._buffered:
            least += least // (BUFFER_SHARE - 1) + 1
        if self.budget.total < least:
            raise BudgetTooSmallError(
                f"memory: {format_size(self.budget.total)} is too little for {self.algorithm.name}; "
                f"the least is {least} bytes ({format_size(least)})",
                least,
            )

    def bind(
        self, *, left: pa.Schema | None = None, right: pa.Schema | None = None, **others: pa.Schema | None
    ) -> pa.Schema | None:
        """Fix the schema of one input or of both, and return the output's schema once it is known.

        The first :meth:`push` of an input does this by itself.
        """
        _check_names("bind", others)
        for number, given in enumerate((left, right)):
            if given is None:
                continue
            schema = plain_schema(given)
            known = self._schemas[number]
            if known is not None:
                if (known.names, known.types) != (schema.names, schema.types):
                    raise SchemaError(schema_difference(SIDES[number], known, schema))
                continue
            self._bind(number, schema)
        return None if self._output is None else self._output.schema

    def _bind(self, number: int, schema: pa.Schema) -> None:
        other = self._schemas[1 - number]
        both = (schema, other) if number == 0 else (other, schema)
        output = None
        if both[0] is not None and (both[1] is not None or not self.spec.emits_right):
            output = PairOutput(self.spec, both[0], both[1], self._metrics, self._output_rows)
        self._check_least(*(_NOTHING if each is None else each for each in both))
        self._matching.bind(number, schema)
        self._sides[number].close()
        self._sides[number] = self._side(number, schema)
        self._divide(self._sides[number])
        self._schemas[number] = schema
        if output is not None:
            self._output = self.machinery.output = output

    # the life cycle

    def push(self, side: str, batch: pa.RecordBatch) -> Batches:
        """Take in rows of one input, ``"left"`` or ``"right"``."""
        number = self._number(side, "push")
        if not isinstance(batch, pa.RecordBatch):
            raise SchemaError(f"push: expected a pyarrow.RecordBatch; got {type(batch).__name__}")
        self._check_between_calls("push")
        self.bind(**{SIDES[number]: batch.schema})
        schema = self._sides[number].schema
        return self._guarded(self._counted("rows_arriving", self._arriving.take(number, plain_batch(batch, schema))))

    def idle(self) -> Batches:
        """Nothing comes in: do the least that can be done with rows on disk, if there are any to do it with."""
        if self._finished:
            raise StateError("idle after finish: make a new join for new inputs")
        return self._guarded(self._counted("rows_reactive", self._idle()))

    def _idle(self) -> Batches:
        if self.reactive.work:
            self._metrics.reactive_units += 1
            yield from self.reactive.unit()

    @property
    def work(self) -> bool:
        """Whether :meth:`idle` has something to do."""
        return not self._finished and self.reactive.work

    def end(self, side: str) -> Batches:
        """One input has ended; rows of the other need not stay in memory for it any more."""
        number = self._number(side, "end")
        self._sides[number].ended = True
        return self._guarded(iter(()))

    def finish(self) -> Batches:
        """Both inputs have ended: everything that has not come out yet."""
        if self._finished:
            raise StateError("finish after finish: make a new join for new inputs")
        for number, schema in enumerate(self._schemas):
            other = self._schemas[1 - number]
            if schema is None and other is not None and self.spec.keeps(1 - number) and self._output is None:
                raise SchemaError(
                    f"{SIDES[number]}: nothing came, so its columns are not known; say them with "
                    f"bind({SIDES[number]}=schema)"
                )
        self._check_between_calls("finish")
        return self._end(whole=True)

    def abandon(self) -> Batches:
        """An input has broken off: all pairs of the rows that have come, which are a part of the result."""
        if self._finished:
            raise StateError("abandon after finish: everything has come out")
        self._check_between_calls("abandon")
        return self._end(whole=False)

    def _end(self, whole: bool) -> Batches:
        self._finished = True
        for side in self._sides:
            side.ended = True
        return self._guarded(self._finish(whole))

    def _finish(self, whole: bool) -> Batches:
        if self._output is not None:
            yield from self.flushing.at_end()
            yield from self.reactive.clean_up()
            for side in self._sides:
                if whole and self.spec.keeps(side.number):
                    yield from self._alone(side)
            yield from self._output.flush()
        for side in self._sides:
            side.clear()
        self.machinery.transfer.resize(0)

    def _alone(self, side: Side) -> Batches:
        """Rows that have found no partner."""
        assert self._output is not None
        _, slots = side.memory.entries()
        alone = slots[(side.memory.bits[slots] & MATCHED) == 0]
        yield from self._output.alone(side.number, side.source, alone)
        for number, partition in enumerate(side.disk.partitions):
            for at in range(len(partition)):
                chunk = side.disk.load(number, [at])
                rows = np.flatnonzero((chunk.bits & MATCHED) == 0).astype(np.int32)
                yield from self._output.alone(side.number, chunk.source, rows)
        for batch in side.disk.lonely():
            source = BatchSource(batch, np.zeros(len(batch), np.uint8))
            yield from self._output.alone(side.number, source, np.arange(len(batch), dtype=np.int32))

    def _counted(self, phase: str, work: Batches) -> Batches:
        before = self._metrics.rows_out
        try:
            yield from work
        except BudgetExceededError:
            self._broken = "it ran out of memory while rows were taken in, some of which have met others"
            raise
        if self._output is not None:
            yield from self._output.flush()
        setattr(self._metrics, phase, getattr(self._metrics, phase) + self._metrics.rows_out - before)

    def _number(self, side: str, doing: str) -> int:
        number = SIDES.index(one_of("side", side, SIDES))
        if self._finished or self._sides[number].ended:
            raise StateError(f"{doing}: the {side} input has ended; make a new join for new inputs")
        return number

    def run(
        self,
        *,
        left: Any = None,
        right: Any = None,
        arrivals: Arrivals | None = None,
        costs: Costs | None = None,
        **others: Any,
    ) -> Batches:
        """Join two whole inputs as they come, and use the times in which they do not.

        Parameters
        ----------
        left, right
            Lists of record batches, tables and datasets are read in turns. If one of them is something else, such as a
            source of ``millrace.adaptive.sources``, an iterator, a reader, or a function that returns one, each is read
            in a thread of its own, and a sixteenth of the memory holds rows that have come and wait for their turn.
        arrivals
            Events of inputs named ``left`` and ``right``, instead of them.
        costs
            How long work takes, for arrivals on a virtual clock.
        """
        _check_names("run", others)
        self._check_between_calls("run")
        if arrivals is None:
            inputs = checked_inputs(left, right)
            self.bind(**schemas_of(inputs))
            self._buffered = not all(map(at_rest, inputs.values()))
            if self._buffered:
                yield from self._make_room()
            arrivals = arrivals_of(self, inputs)
        elif left is not None or right is not None:
            raise ConfigError("run: expected left= and right=, or arrivals=; got both")
        feeding = Feeding(self, arrivals, costs or Costs())
        try:
            yield from feeding.run()
        except SpillError:
            if self._output is not None:  # pairs that were found before the disk was full
                yield from self._output.flush()
            raise
        finally:
            arrivals.close()
            self.close()

    def _make_room(self) -> Batches:
        """Rows that were taken in before leave memory until there is room for rows that wait."""
        self._check_least(*(_NOTHING if schema is None else schema for schema in self._schemas))
        buffer = self.budget.total // BUFFER_SHARE
        while self.budget.available < buffer and any(len(side.memory) for side in self._sides):
            yield from self._guarded(self._counted("rows_arriving", self.flushing.flush()))
            for side in self._sides:
                side.memory.pack()

    def snapshot(self) -> bytes:
        """All state that has to survive, rows on disk included."""
        self._check_between_calls("snapshot")
        if self._finished:
            raise StateError("snapshot after finish: there is nothing left to keep")
        return snapshots.to_bytes(self)

    def restore(self, state: bytes) -> None:
        """Go on from a snapshot of a join with the same arguments."""
        self._check_between_calls("restore")
        if self._finished or any(schema is not None for schema in self._schemas):
            raise StateError("restore: expected a new join; this one has taken in rows")
        snapshots.restore(self, state)

    @property
    def identity(self) -> str:
        """What a snapshot has to be of."""
        keys = " = ".join(",".join(names) for names in self.spec.keys)
        return f"{self.algorithm.name}, {self.spec.how} join on {keys}, band {self.band}"

    def schema_of(self, number: int) -> pa.Schema | None:
        """Columns of an input, if they are known."""
        return self._schemas[number]

    def close(self) -> None:
        """Remove what is on disk. The end of the process does so too."""
        self.area.close()

    def __repr__(self) -> str:
        keys = ", ".join(self.spec.keys[0])
        size = format_size(self.budget.total)
        return f"StreamJoin(on {keys}, how={self.spec.how}, {self.algorithm.name}, memory={size})"

    # what it tells

    @property
    def nbytes(self) -> int:
        """Bytes in use now, never more than the budget."""
        return self.budget.used

    @property
    def metrics(self) -> PairMetrics:
        """Counts so far."""
        m = self._metrics
        m.in_memory = sum(len(side.memory) for side in self._sides)
        m.on_disk = sum(side.disk.rows for side in self._sides)
        m.bytes_written, m.bytes_read = self.area.bytes_written, self.area.bytes_read
        m.used_bytes, m.peak_bytes, m.parts = self.budget.used, self.budget.peak, self.budget.parts()
        return m

    def explain(self) -> str:
        """The plan and the split of the budget, to read."""
        return explained(self)

    def check_invariants(self) -> None:
        """Assert that every structure is sound; for tests."""
        self.budget.check_invariants()
        if not self._finished:
            for side in self._sides:
                side.check_invariants()
            self.flushing.check_invariants()
            self.reactive.check_invariants()


def _check_names(doing: str, others: Iterable[str]) -> None:
    """Inputs have other names only where the conditions name them."""
    for name in others:
        raise ConfigError(
            f"{doing}: this join has the inputs left and right; got {name!r}, which conditions such as "
            f"on=[('{name}.key', 'other.key')] would name"
        )
