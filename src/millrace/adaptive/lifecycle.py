"""The life of a join of inputs that come over time, however many there are.

::

    bind ─► push ◄──► idle ──► end (an input) … ──► finish        run: all of it, as arrivals say
                                                ──► abandon       an input has broken off

What is joined with what is in the classes below: ``StreamJoin`` for two inputs, ``MultiwayJoin`` for several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.adaptive import adaptive_snapshot as snapshots
from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.arrivals.events import Arrivals
from millrace.adaptive.arrivals.feeding import (
    BUFFER_SHARE,
    Costs,
    Feeding,
    arrivals_of,
    at_rest,
    checked_inputs,
    schemas_of,
)
from millrace.adaptive.disk.spill_files import SpillArea
from millrace.adaptive.explain_adaptive import explained, listed
from millrace.adaptive.memory.pair_output import Batches, Output
from millrace.adaptive.memory.side import Side
from millrace.adaptive.memory_split import Sizes
from millrace.adaptive.pair.arriving_pair import Arriving
from millrace.adaptive.pair.pair_algorithms import Algorithm
from millrace.adaptive.pair.pair_spec import schema_difference
from millrace.adaptive.pair.pair_state import Machinery
from millrace.core.budget import MemoryBudget, Reservation
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
from millrace.rows.columns import plain_batch, plain_schema

NOTHING = pa.schema([])
"""Columns of an input of which none are known yet."""

Schemas = Sequence[pa.Schema | None]


class AdaptiveJoin(OneCallAtATime, ABC):
    """Takes in rows of several inputs, works with what is on disk while nothing comes, and has no rows left at the end.

    Who inherits from it says what is joined: ``inputs``, ``algorithm`` and ``condition`` before this ``__init__``, and
    the methods under *what is joined* after it.
    """

    inputs: tuple[str, ...]
    """Names of the inputs."""
    algorithm: Algorithm
    condition: str
    """The join in words."""
    machinery: Machinery

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        memory: str | int,
        block: str | int | None,
        wait_threshold: float,
        max_new_arrivals: int,
        max_outer_blocks: int,
        spill: str | Path | None,
        clock: Clock | None,
        output_rows: int,
        space: Space | None,
        seed: int,
    ) -> None:
        self.algorithm.check_options(options)
        _check_count("max_new_arrivals", max_new_arrivals)
        _check_count("max_outer_blocks", max_outer_blocks)
        _check_count("output_rows", output_rows)
        _check_seconds("wait_threshold", wait_threshold)
        if "max_outer_blocks" in self.algorithm.options:
            options = {**options, "max_outer_blocks": max_outer_blocks}
        self.budget = MemoryBudget(parse_size(memory))
        self.clock: Clock = clock or RealClock()
        self.wait_threshold, self.max_new_arrivals = wait_threshold, max_new_arrivals
        self.schemas: list[pa.Schema | None] = [None] * len(self.inputs)
        """Columns of the inputs, as far as they are known."""
        self._came: list[pa.Schema | None] = [None] * len(self.inputs)  # schemas of the last batches, as they were
        self._space, self._output_rows, self._seed = space or HeapSpace(), output_rows, seed
        self._sizes = self._sized(None if block is None else parse_size(block), max_outer_blocks)
        self._buffered = self._finished = False
        self._check_least(self.schemas)
        self.area = SpillArea(None if spill is None else Path(spill))
        self._metrics = AdaptiveMetrics(dict.fromkeys(self.inputs, 0), budget_bytes=self.budget.total)
        transfer = self.budget.reserve("transfer", self._sizes.transfer)
        self.budget.reserve("work", self._sizes.work)
        self.machinery = self._machinery(transfer)
        self.flushing, self.reactive = self.algorithm.make(self.machinery, options)
        self.machinery.flush = self.flushing.flush
        for side in self.machinery.sides:
            self._divide(side)
        self._arriving = self._taking_in()

    # what is joined

    @abstractmethod
    def _sized(self, block: int | None, outer_blocks: int) -> Sizes:
        """How the budget is divided."""

    @abstractmethod
    def _least_of(self, number: int, schema: pa.Schema) -> int:
        """The least bytes that an input with these columns takes."""

    @abstractmethod
    def _side(self, number: int, schema: pa.Schema) -> Side:
        """An input of which no rows have come."""

    @abstractmethod
    def _machinery(self, transfer: Reservation) -> Machinery:
        """What the policies work with, with a side for each input."""

    @abstractmethod
    def _taking_in(self) -> Arriving:
        """What takes in rows that come."""

    @abstractmethod
    def _fit(self, number: int, schema: pa.Schema, known: Schemas) -> None:
        """Fix how keys of an input are read, or say why its columns cannot be; make the output if that is known now."""

    def _check_ended(self) -> None:
        """Whether enough is known of the inputs to say what has come of them."""

    def _alone(self) -> Batches:
        """All results of rows with others have come out; what comes behind them."""
        return iter(())

    # columns, and the least memory

    def _divide(self, side: Side) -> None:
        if self.algorithm.spills:
            side.disk.divide(self.flushing.partitions, self._sizes.page, self._sizes.fan, side.block_rows)
        else:
            side.disk.divide(1, 1, 1, 0)

    def _check_least(self, schemas: Schemas) -> None:
        least = self._sizes.least
        for number, schema in enumerate(schemas):
            columns = NOTHING if schema is None else schema
            least += self._least_of(number, columns) + Sizes.buffers(columns, self.algorithm.spills)
        if self._buffered:
            least += least // (BUFFER_SHARE - 1) + 1
        if self.budget.total < least:
            inputs = f" of {len(schemas)} inputs" if len(schemas) > 2 else ""
            unknown = [name for name, schema in zip(self.inputs, schemas, strict=True) if schema is None]
            more = f", and more once the columns of {listed(unknown)} are known" if unknown else ""
            raise BudgetTooSmallError(
                f"memory: {format_size(self.budget.total)} is too little for {self.algorithm.name}{inputs}; "
                f"the least is {least} bytes ({format_size(least)}){more}",
                least,
            )

    def bind(self, **schemas: pa.Schema | None) -> pa.Schema | None:
        """Fix the schemas of some inputs, by name, and return the output's schema once it is known.

        The first :meth:`push` of an input does this by itself.
        """
        self._check_names("bind", schemas)
        all_known = [
            known if given is None else plain_schema(given)
            for known, given in zip(self.schemas, map(schemas.get, self.inputs), strict=True)
        ]
        self._check_least(all_known)  # of all at once: the least that is named will do
        for number, name in enumerate(self.inputs):
            given, known = schemas.get(name), self.schemas[number]
            if given is None:
                continue
            schema = plain_schema(given)
            if known is None:
                self._fix(number, schema)
            elif (known.names, known.types) != (schema.names, schema.types):
                raise SchemaError(schema_difference(name, known, schema))
        return None if self._output is None else self._output.schema

    def _fix(self, number: int, schema: pa.Schema) -> None:
        known = [schema if each == number else other for each, other in enumerate(self.schemas)]
        self._check_least(known)
        self._fit(number, schema, known)
        sides = self.machinery.sides
        sides[number].close()
        sides[number] = self._side(number, schema)
        self._divide(sides[number])
        self.schemas = known

    @property
    def _output(self) -> Output | None:
        return self.machinery.output

    def _check_names(self, doing: str, given: Iterable[str]) -> None:
        for name in given:
            if name not in self.inputs:
                raise ConfigError(
                    f"{doing}: this join has the inputs {listed(self.inputs)}; got {name!r}, which a condition such as "
                    f"on=[('{name}.key', 'other.key')] would name"
                )

    # the life cycle

    def push(self, side: str, batch: pa.RecordBatch) -> Batches:
        """Take in rows of one input, by its name: of two inputs, ``"left"`` or ``"right"``."""
        number = self._coming(side, "push")
        if not isinstance(batch, pa.RecordBatch):
            raise SchemaError(f"push: expected a pyarrow.RecordBatch; got {type(batch).__name__}")
        self._check_between_calls("push")
        if batch.schema != self._came[number]:
            self.bind(**{side: batch.schema})
            self._came[number] = batch.schema
        rows = plain_batch(batch, self.machinery.sides[number].schema)
        self.reactive.pause()
        return self._guarded(self._counted("rows_arriving", self._arriving.take(number, rows)))

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
        """One input has ended; rows that nobody new can meet need not stay in memory any more."""
        self.machinery.sides[self._coming(side, "end")].ended = True
        return self._guarded(iter(()))

    def _coming(self, name: str, doing: str) -> int:
        """The number of an input that has not ended."""
        number = self.inputs.index(one_of("input", name, self.inputs))
        if self._finished or self.machinery.sides[number].ended:
            raise StateError(f"{doing}: the input {name!r} has ended; make a new join for new inputs")
        return number

    def finish(self) -> Batches:
        """All inputs have ended: everything that has not come out yet."""
        if self._finished:
            raise StateError("finish after finish: make a new join for new inputs")
        self._check_ended()
        self._check_between_calls("finish")
        return self._end(whole=True)

    def abandon(self) -> Batches:
        """An input has broken off: all results of the rows that have come, which are a part of the whole."""
        if self._finished:
            raise StateError("abandon after finish: everything has come out")
        self._check_between_calls("abandon")
        return self._end(whole=False)

    def _end(self, whole: bool) -> Batches:
        self._finished = True
        for side in self.machinery.sides:
            side.ended = True
        return self._guarded(self._last(whole))

    def _last(self, whole: bool) -> Batches:
        if self._output is not None:
            yield from self.flushing.at_end()
            yield from self.reactive.clean_up()
            if whole:
                yield from self._alone()
            yield from self._output.flush()
        for side in self.machinery.sides:
            side.clear()
        self.machinery.transfer.resize(0)

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

    def run(self, *, arrivals: Arrivals | None = None, costs: Costs | None = None, **inputs: Any) -> Batches:
        """Join whole inputs as they come, and use the times in which they do not.

        Parameters
        ----------
        inputs
            By name: ``left=`` and ``right=``, or as the conditions name them. Lists of record batches, tables and
            datasets are read in turns. If one of them is something else, such as a source of
            ``millrace.adaptive.arrivals.ipc_sources``, an iterator, a reader, or a function that returns one, each is
            read in a thread of its own, and a sixteenth of the memory holds rows that wait for their turn.
        arrivals
            Events of inputs of these names, instead of them.
        costs
            How long work takes, for arrivals on a virtual clock.
        """
        self._check_names("run", inputs)
        self._check_between_calls("run")
        if arrivals is None:
            given = checked_inputs(self.inputs, inputs)
            self.bind(**schemas_of(given))
            self._buffered = not all(map(at_rest, given.values()))
            if self._buffered:
                yield from self._make_room()
            arrivals = arrivals_of(self, given)
        elif inputs:
            raise ConfigError(f"run: expected the inputs {listed(self.inputs)}, or arrivals=; got both")
        feeding = Feeding(self, arrivals, costs or Costs())
        try:
            yield from feeding.run()
        except SpillError:
            if self._output is not None:  # results that were found before the disk was full
                yield from self._output.flush()
            raise
        finally:
            arrivals.close()
            self.close()

    def _make_room(self) -> Batches:
        """Rows that were taken in before leave memory until there is room for rows that wait."""
        self._check_least(self.schemas)
        buffer, sides = self.budget.total // BUFFER_SHARE, self.machinery.sides
        while self.budget.available < buffer and any(len(side.memory) for side in sides):
            yield from self._guarded(self._counted("rows_arriving", self.flushing.flush()))
            for side in sides:
                side.memory.pack()

    def close(self) -> None:
        """Remove what is on disk. The end of the process does so too."""
        self.area.close()

    # what it keeps and tells

    def snapshot(self) -> bytes:
        """All state that has to survive, rows on disk included."""
        self._check_between_calls("snapshot")
        if self._finished:
            raise StateError("snapshot after finish: there is nothing left to keep")
        return snapshots.to_bytes(self)

    def restore(self, state: bytes) -> None:
        """Go on from a snapshot of a join with the same arguments."""
        self._check_between_calls("restore")
        if self._finished or any(schema is not None for schema in self.schemas):
            raise StateError("restore: expected a new join; this one has taken in rows")
        snapshots.restore(self, state)

    @property
    def identity(self) -> str:
        """What a snapshot has to be of."""
        return f"{self.algorithm.name}, {self.condition}"

    @property
    def nbytes(self) -> int:
        """Bytes in use now, never more than the budget."""
        return self.budget.used

    @property
    def metrics(self) -> AdaptiveMetrics:
        """Counts so far."""
        m, sides = self._metrics, self.machinery.sides
        m.in_memory = sum(len(side.memory) for side in sides)
        m.on_disk = sum(side.disk.rows for side in sides)
        m.bytes_written, m.bytes_read = self.area.bytes_written, self.area.bytes_read
        m.used_bytes, m.peak_bytes, m.parts = self.budget.used, self.budget.peak, self.budget.parts()
        return m

    def explain(self) -> str:
        """The plan and the split of the budget, to read."""
        return explained(self)

    def __repr__(self) -> str:
        return f"StreamJoin({self.condition}, {self.algorithm.name}, memory={format_size(self.budget.total)})"

    def check_invariants(self) -> None:
        """Assert that every structure is sound; for tests."""
        self.budget.check_invariants()
        if not self._finished:
            for side in self.machinery.sides:
                side.check_invariants()
            self.flushing.check_invariants()
            self.reactive.check_invariants()


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: expected a whole number of at least 1; got {value!r}")


def _check_seconds(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ConfigError(f"{name}: expected seconds above 0; got {value!r}")
