"""``StreamJoin``: joins of inputs that arrive slowly and in bursts, under one memory budget.

::

    bind ─► push ◄──► idle ──► end (an input) … ──► finish        run: all of these calls, as rows arrive
                                                ──► abandon       an input has failed

The engine does the work: :class:`~millrace.adaptive.pair.pair_engine.PairEngine` for two inputs,
:class:`~millrace.adaptive.multiway.multiway_engine.MultiwayEngine` for several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.adaptive.adaptive_algorithm import AdaptiveAlgorithm
from millrace.adaptive.adaptive_metrics import AdaptiveMetrics, ResourceUse
from millrace.adaptive.adaptive_snapshot import JoinState, from_bytes, to_bytes
from millrace.adaptive.array_types import Batches
from millrace.adaptive.arrivals.events import Arrivals
from millrace.adaptive.arrivals.feeding import (
    Costs,
    Feeding,
    WorkDone,
    arrivals_of,
    at_rest,
    checked_inputs,
    schemas_of,
)
from millrace.adaptive.conditions.key_matching import Band
from millrace.adaptive.conditions.pair_spec import On, schema_difference
from millrace.adaptive.disk.spill_files import SpillArea
from millrace.adaptive.explain_adaptive import explain_join
from millrace.adaptive.join_engine import NO_COLUMNS, EngineParts, JoinDefinition, JoinEngine, Schemas
from millrace.adaptive.multiway.multiway_engine import MultiwayDefinition, is_multiway
from millrace.adaptive.pair.pair_engine import PairDefinition
from millrace.adaptive.word_list import in_words
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
from millrace.rows.batch_builder import BATCH_ROWS
from millrace.rows.columns import plain_batch, plain_schema


class StreamJoin(OneCallAtATime):
    """Joins inputs as their rows arrive, with results as early as possible and the complete result at the end.

    Parameters
    ----------
    on
        For two inputs, the key column of both; a list of key columns; or a pair ``(left name, right name)``. For
        several inputs, a list of conditions ``("input.column", "input.column")`` that connect the inputs as a tree: a
        chain, a star, or anything without a cycle. Several conditions between the same two inputs form one key of
        several columns. A third part ``(least, greatest)`` makes a condition a band: it limits the second column minus
        the first.
    algorithm
        A name from the table of algorithms, or an ``AdaptiveAlgorithm`` of your own. By default ``"diner"`` for two
        inputs and ``"miner"`` for several.
    memory
        The budget, in bytes or as text such as ``"5MB"``. It covers rows in memory, their index, statistics, and
        buffers for blocks that are read from disk or written to it; with slow sources also rows that wait to be
        processed. Batches that are pushed and batches that are output are not included.
    band
        ``(least, greatest)``: the limits of the difference, right key minus left key, for a key that is one column of
        numbers, dates or times. None joins equal keys.
    how
        ``"inner"``, ``"left"``, ``"right"``, ``"full"``, ``"semi"`` or ``"anti"``; with several inputs only
        ``"inner"``. Unmatched rows are output at the end.
    suffix
        Text that is appended to the name of a column if an earlier input has a column of that name. Without a suffix, a
        repeated name is an error with two inputs; with several inputs the column is called ``input.column``.
    block
        Bytes of a block on disk; by default about a 128th of the memory. The DINER paper uses 10 kB.
    wait_threshold
        Seconds without a row on any input after which rows on disk are joined.
    max_new_arrivals
        Maximum number of rows that may wait to be processed while rows on disk are joined. Some algorithms, such as
        ``"xjoin"``, do not let any row wait.
    max_outer_blocks
        Maximum number of blocks that are read into memory at a time, to join other blocks with them.
    spill
        Directory for rows that do not fit into memory; by default a temporary directory.
    clock
        Clock that measures how long inputs are silent, and the times of results; by default the machine's clock.
    output_rows
        Maximum number of rows in an output batch.
    space
        Where arrays are allocated; by default in this process's memory.
    seed
        Seed of the random generator that policies use.

    Notes
    -----
    With several inputs, the output contains the columns of one input after the other, in the order in which ``on``
    names the inputs. Columns that a condition makes equal are output once, as the column of the input that is nearer to
    the first input in the tree.

    Examples
    --------
    >>> orders = pa.record_batch({"id": [1, 2, 3], "total": [10, 20, 30]})
    >>> payments = pa.record_batch({"id": [3, 1], "paid": [30, 5]})
    >>> pair = StreamJoin(on="id", memory="1MB")
    >>> pa.Table.from_batches(pair.run(left=[orders], right=[payments])).sort_by("id").to_pylist()
    [{'id': 1, 'total': 10, 'paid': 5}, {'id': 3, 'total': 30, 'paid': 30}]

    >>> orders = pa.record_batch({"id": [1, 2], "cust": [7, 8]})
    >>> customers = pa.record_batch({"cust": [7, 8], "nation": [1, 3]})
    >>> nations = pa.record_batch({"nation": [3], "name": ["Chile"]})
    >>> on = [("orders.cust", "customers.cust"), ("customers.nation", "nations.nation")]
    >>> join = StreamJoin(on=on, algorithm="miner", memory="1MB")
    >>> pa.Table.from_batches(join.run(orders=orders, customers=customers, nations=nations)).to_pylist()
    [{'id': 2, 'cust': 8, 'nation': 3, 'name': 'Chile'}]
    """

    def __init__(
        self,
        on: On,
        algorithm: str | AdaptiveAlgorithm | None = None,
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
        self.definition = _definition(on, algorithm, band, how, suffix)
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
        """Schema of each input, None while it is not known."""
        self._last_schemas: list[pa.Schema | None] = [None] * len(self.inputs)  # of the last batches pushed
        self._split = self.definition.split(
            self.budget.total, None if block is None else parse_size(block, subject="block"), max_outer_blocks
        )
        self._buffered = self._finished = False
        self._check_least(self.schemas)
        self._area = SpillArea(None if spill is None else Path(spill))
        self._metrics = AdaptiveMetrics(dict.fromkeys(self.inputs, 0), budget_bytes=self.budget.total)
        parts = EngineParts(
            self.budget, self._split, self._area, space or HeapSpace(), self._metrics, output_rows, seed, options
        )
        self.engine: JoinEngine = self.definition.engine(parts)

    # what is joined

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return self.definition.inputs

    @property
    def algorithm(self) -> AdaptiveAlgorithm:
        """The algorithm, with its policies."""
        return self.definition.algorithm

    @property
    def condition(self) -> str:
        """The kind of join and its conditions, as text."""
        return self.definition.condition

    @property
    def identity(self) -> str:
        """The algorithm and the condition as text; a join can only restore snapshots with the same identity."""
        return f"{self.algorithm.name}, {self.condition}"

    # columns and minimum memory

    def bind(self, **schemas: pa.Schema | None) -> pa.Schema | None:
        """Set the schemas of some inputs, by name; return the schema of the output, or None if it is not known yet.

        The first :meth:`push` of an input also sets its schema.
        """
        self._check_names("bind", schemas)
        all_known = [
            known if given is None else plain_schema(given)
            for known, given in zip(self.schemas, map(schemas.get, self.inputs), strict=True)
        ]
        self._check_least(all_known)  # for all at once, so that the minimum in the error is enough
        for number, name in enumerate(self.inputs):
            given, known = schemas.get(name), self.schemas[number]
            if given is None:
                continue
            schema = plain_schema(given)
            if known is None:
                now_known = [schema if each == number else other for each, other in enumerate(self.schemas)]
                self._check_least(now_known)
                self.engine.bind(number, now_known)
                self.schemas = now_known
            elif (known.names, known.types) != (schema.names, schema.types):
                raise SchemaError(schema_difference(name, known, schema))
        output = self.engine.output
        return None if output is None else output.schema

    def _check_least(self, schemas: Schemas) -> None:
        """Check that the budget is large enough for inputs with these schemas."""
        columns = [NO_COLUMNS if schema is None else schema for schema in schemas]
        rows = [self.definition.least_row_bytes(number, each) for number, each in enumerate(columns)]
        least = self._split.least_bytes(rows, columns, self._buffered)
        if self.budget.total < least:
            inputs = f" of {len(schemas)} inputs" if len(schemas) > 2 else ""
            unknown = [name for name, schema in zip(self.inputs, schemas, strict=True) if schema is None]
            more = f", and more once the columns of {in_words(unknown)} are known" if unknown else ""
            raise BudgetTooSmallError(
                f"memory: {format_size(self.budget.total)} is too little for {self.algorithm.name}{inputs}; "
                f"the least is {least} bytes ({format_size(least)}){more}",
                least,
            )

    def _check_names(self, doing: str, given: Iterable[str]) -> None:
        for name in given:
            if name not in self.inputs:
                raise ConfigError(
                    f"{doing}: this join has the inputs {in_words(self.inputs)}; got {name!r}; for an input of that "
                    f"name, give a condition such as on=[('{name}.key', 'other.key')]"
                )

    # the life cycle

    def push(self, side: str, batch: pa.RecordBatch) -> Batches:
        """Process new rows of the input ``side`` (for two inputs, ``"left"`` or ``"right"``), and yield the output."""
        number = self._open_input(side, "push")
        if not isinstance(batch, pa.RecordBatch):
            raise SchemaError(f"push: expected a pyarrow.RecordBatch; got {type(batch).__name__}")
        self._check_between_calls("push")
        if batch.schema != self._last_schemas[number]:
            self.bind(**{side: batch.schema})
            self._last_schemas[number] = batch.schema
        rows = plain_batch(batch, self.engine.inputs.sides[number].schema)
        self.engine.reactive.pause()
        return self._guarded(self._counted(self._metrics.count_arriving, self.engine.take(number, rows)))

    def idle(self) -> Batches:
        """Join some of the rows on disk, if any are left to join, and yield output; call it while no rows arrive."""
        if self._finished:
            raise StateError("idle: the join has ended already; make a new join for new inputs")
        return self._guarded(self._counted(self._metrics.count_reactive, self._unit()))

    def _unit(self) -> Batches:
        reactive = self.engine.reactive
        if reactive.has_work:
            self._metrics.count_unit()
            yield from reactive.unit(self.engine.flushing.flush)

    @property
    def work(self) -> bool:
        """Whether rows on disk are left for :meth:`idle` to join."""
        return not self._finished and self.engine.reactive.has_work

    def end(self, side: str) -> Batches:
        """Mark one input as ended, so that rows that could only match new rows of this input can leave memory first."""
        self.engine.inputs.sides[self._open_input(side, "end")].end()
        return self._guarded(iter(()))

    def _open_input(self, name: str, doing: str) -> int:
        """Return the number of an input, or raise an error if the input has ended."""
        number = self.inputs.index(one_of("input", name, self.inputs))
        if self._finished or self.engine.inputs.sides[number].ended:
            raise StateError(f"{doing}: the input {name!r} has ended; make a new join for new inputs")
        return number

    def finish(self) -> Batches:
        """End all inputs, and yield the rest of the result."""
        if self._finished:
            raise StateError("finish: the join has ended already; make a new join for new inputs")
        self.engine.check_complete(self.schemas)
        self._check_between_calls("finish")
        return self._end_all(whole=True)

    def abandon(self) -> Batches:
        """Yield the remaining results of the rows received so far, after an input has failed."""
        if self._finished:
            raise StateError("abandon: the join has ended already; make a new join for new inputs")
        self._check_between_calls("abandon")
        return self._end_all(whole=False)

    def _end_all(self, whole: bool) -> Batches:
        self._finished = True
        for side in self.engine.inputs.sides:
            side.end()
        return self._guarded(self._rest(whole))

    def _rest(self, whole: bool) -> Batches:
        """Yield the rest of the result; include unmatched rows only if ``whole`` is set."""
        engine = self.engine
        if engine.output is not None:
            yield from engine.flushing.at_end()
            yield from engine.reactive.clean_up()
            if whole:
                yield from engine.unmatched()
            yield from engine.output.flush()
        engine.inputs.clear()

    def _counted(self, count: Callable[[int], None], work: Batches) -> Batches:
        """Yield the batches of ``work``, flush the output, and pass the number of rows output to ``count``."""
        before = self._metrics.rows_out
        try:
            yield from work
        except BudgetExceededError:
            self._stop_for_good("it ran out of memory while it processed new rows, and had already joined some of them")
            raise
        if self.engine.output is not None:
            yield from self.engine.output.flush()
        count(self._metrics.rows_out - before)

    def run(self, *, arrivals: Arrivals | None = None, costs: Costs | None = None, **inputs: Any) -> Batches:
        """Join all rows of the inputs as they arrive, join rows on disk while no rows arrive, and yield the result.

        Parameters
        ----------
        inputs
            The inputs by name: ``left=`` and ``right=``, or the names in the conditions. Lists of record batches,
            tables and datasets are read in turns. If any input is something else, such as a source of
            ``millrace.adaptive.arrivals.ipc_sources``, an iterator, a reader, or a function that returns one, each
            input is read in its own thread, and a sixteenth of the memory holds rows that wait to be processed.
        arrivals
            Events of the inputs, given instead of the inputs themselves.
        costs
            Seconds that each kind of work takes; only used if ``arrivals`` has a virtual clock.
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
            raise ConfigError(f"run: expected the inputs {in_words(self.inputs)}, or arrivals=; got both")
        feeding = Feeding(self, arrivals, costs or Costs())
        try:
            yield from feeding.run()
        except SpillError:
            if self.engine.output is not None:  # results that were found before the disk was full
                yield from self.engine.output.flush()
            raise
        finally:
            arrivals.close()
            self.close()

    def _make_room(self) -> Batches:
        """Flush rows that were pushed before the run until there is room for the input buffer."""
        self._check_least(self.schemas)
        inputs = self.engine.inputs
        while self.budget.available < self.input_buffer and inputs.any_in_memory:
            yield from self._guarded(self._counted(self._metrics.count_arriving, self.engine.flushing.flush()))
            inputs.pack()

    def close(self) -> None:
        """Remove the join's files from disk. This also happens when the process ends."""
        self._area.close()

    # snapshots

    def snapshot(self) -> bytes:
        """Return the whole state of the join as bytes, including the rows on disk."""
        self._check_between_calls("snapshot")
        if self._finished:
            raise StateError("snapshot: the join has ended already; take snapshots before finish or abandon")
        engine = self.engine
        flushing, reactive = engine.flushing.state(), engine.reactive.state()  # first, as this writes match marks
        inputs = engine.inputs.state()
        return to_bytes(JoinState(self.identity, self.schemas, self._metrics.state(), inputs, flushing, reactive))

    def restore(self, state: bytes) -> None:
        """Continue from a snapshot of a join with the same arguments."""
        self._check_between_calls("restore")
        if self._finished or any(schema is not None for schema in self.schemas):
            raise StateError("restore: expected a new join; this one has been used already")
        kept = from_bytes(state)
        if kept.identity != self.identity:
            raise StateError(f"restore: the snapshot was taken from {kept.identity}; this join is {self.identity}")
        self.bind(**dict(zip(self.inputs, kept.schemas, strict=True)))
        self.engine.inputs.restore(kept.inputs)
        self._metrics.restore(kept.counts)
        self.engine.flushing.restore(kept.flushing)
        self.engine.reactive.restore(kept.reactive)

    # current state

    @property
    def nbytes(self) -> int:
        """Bytes of the budget that are in use at the moment."""
        return self.budget.used

    @property
    def metrics(self) -> AdaptiveMetrics:
        """Metrics so far, with the current use of memory and disk."""
        sides, budget, area = self.engine.inputs.sides, self.budget, self._area
        self._metrics.refresh(
            ResourceUse(
                in_memory=sum(len(side.memory) for side in sides),
                on_disk=sum(side.disk.rows for side in sides),
                bytes_written=area.bytes_written,
                bytes_read=area.bytes_read,
                used_bytes=budget.used,
                peak_bytes=budget.peak,
                parts=budget.parts(),
            )
        )
        return self._metrics

    @property
    def work_done(self) -> WorkDone:
        """Numbers of rows, results and blocks processed so far, from which a virtual clock computes the time."""
        m, area = self._metrics, self._area
        return WorkDone(sum(m.rows_in.values()), m.rows_out, area.blocks_read, area.blocks_written)

    @property
    def waiting_limit(self) -> int:
        """Maximum number of rows that may wait to be processed; when more wait, the join interrupts its disk work."""
        return 0 if self.engine.reactive.stops_at_first_row else self.max_new_arrivals

    @property
    def input_buffer(self) -> int:
        """Bytes of the budget for rows that have arrived and wait to be processed."""
        return self._split.input_buffer

    def explain(self) -> str:
        """Return the plan of the join and the division of its memory budget, as readable text."""
        return explain_join(self.algorithm, self.condition, self.budget, self.metrics)

    def __repr__(self) -> str:
        return f"StreamJoin({self.condition}, {self.algorithm.name}, memory={format_size(self.budget.total)})"

    def check_invariants(self) -> None:
        """Assert that every data structure is consistent; for tests."""
        self.budget.check_invariants()
        if not self._finished:
            for side in self.engine.inputs.sides:
                side.check_invariants()
            self.engine.flushing.check_invariants()
            self.engine.reactive.check_invariants()


def _definition(
    on: Any, algorithm: str | AdaptiveAlgorithm | None, band: Band | None, how: str, suffix: str | None
) -> JoinDefinition:
    """Return the definition of a join of two or of several inputs, after checking the arguments."""
    if is_multiway(on, algorithm):
        return MultiwayDefinition.of(on, algorithm or "miner", band, how, suffix)
    return PairDefinition.of(on, algorithm or "diner", band, how, suffix)


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: expected a whole number of at least 1; got {value!r}")


def _check_seconds(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ConfigError(f"{name}: expected a finite number of seconds above 0; got {value!r}")
