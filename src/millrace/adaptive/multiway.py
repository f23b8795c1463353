"""``StreamJoin`` of several inputs: MJoin, and MINER for trees of conditions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.adaptive.algorithms import Algorithm
from millrace.adaptive.arrivals import batches_of
from millrace.adaptive.blocks import Disk
from millrace.adaptive.box import GrowingBox, OnlyAtTheEnd
from millrace.adaptive.indexed import IndexedRows
from millrace.adaptive.join import _NOTHING, StreamJoin
from millrace.adaptive.matching import Band
from millrace.adaptive.memory import Workspace
from millrace.adaptive.miner import RegionsOfAll
from millrace.adaptive.mjoin import CoordinatedBuckets
from millrace.adaptive.output import Batches
from millrace.adaptive.partitions import Partitions
from millrace.adaptive.several import Relation, Several, SeveralOutput
from millrace.adaptive.sizing import Sizes
from millrace.adaptive.spec import PairSpec, schema_difference
from millrace.adaptive.spill import SpillArea
from millrace.adaptive.taking import SeveralMetrics, TakingIn
from millrace.adaptive.tree import JoinTree, is_tree
from millrace.core.budget import MemoryBudget
from millrace.core.clock import Clock, RealClock
from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError, StateError, one_of
from millrace.core.sizes import format_size, parse_size
from millrace.core.space import HeapSpace, Space
from millrace.rows.builder import BATCH_ROWS
from millrace.rows.columns import plain_batch, plain_schema

MULTIWAY = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "mjoin",
            CoordinatedBuckets,
            OnlyAtTheEnd,
            "one common attribute; when memory is full the largest bucket of all inputs goes to disk",
            ordered=False,
        ),
        Algorithm(
            "miner",
            RegionsOfAll,
            GrowingBox,
            "a tree of conditions; rows of the range, of any attribute, that has produced least go to disk",
        ),
    )
}
"""Algorithms for several inputs by name."""


class MultiwayJoin(StreamJoin):
    """What ``StreamJoin`` is where ``on`` is a list of conditions, or the algorithm ``miner`` or ``mjoin``.

    Parameters
    ----------
    on
        Conditions ``("input.column", "input.column")`` that make a tree of the inputs: a chain, a star, or anything
        without a cycle. A third part ``(least, greatest)`` makes one a band: the second column minus the first.
    algorithm
        ``"miner"``, or ``"mjoin"`` where all inputs are joined on one attribute.
    how
        ``"inner"``; there is no other kind for several inputs.

    Notes
    -----
    The columns of the inputs come out in the order in which ``on`` names them. A column that is equal to one of an
    input nearer to the first comes out once. A name that an earlier input has too becomes ``input.column``, or gets the
    ``suffix`` if there is one.

    Examples
    --------
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
        on: Any,
        algorithm: str | Algorithm = "miner",
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
        if isinstance(algorithm, Algorithm):
            self.algorithm = algorithm
        else:
            self.algorithm = MULTIWAY[one_of("algorithm for several inputs", algorithm, MULTIWAY)]
        if how != "inner":
            raise ConfigError(f"how: a join of several inputs is inner, and nothing else; got {how!r}")
        self._pair = None if is_tree(on) else PairSpec.of(on, how, band is not None, suffix)
        self.tree = JoinTree.of(_conditions(self._pair, band)) if self._pair else JoinTree.of(on, band)
        if not self.algorithm.ordered and not self.tree.simple:
            raise ConfigError(
                f"{self.algorithm.name}: needs one common attribute, the same column of an input in all its conditions "
                "and no band; for any tree of conditions there is miner"
            )
        self.algorithm.check_options(options)
        counted = (max_new_arrivals, max_outer_blocks, output_rows)
        for name, value in zip(("max_new_arrivals", "max_outer_blocks", "output_rows"), counted, strict=True):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: expected a whole number of at least 1; got {value!r}")
        if isinstance(wait_threshold, bool) or not isinstance(wait_threshold, int | float) or not wait_threshold >= 0:
            raise ConfigError(f"wait_threshold: expected seconds; got {wait_threshold!r}")
        if "max_outer_blocks" in self.algorithm.options:
            options["max_outer_blocks"] = max_outer_blocks
        self.budget = MemoryBudget(parse_size(memory))
        self.clock = clock or RealClock()
        self.wait_threshold, self.max_new_arrivals, self.band = wait_threshold, max_new_arrivals, band
        self._suffix, self._output_rows, self._seed = suffix, output_rows, seed
        self._space = space or HeapSpace()
        self._sizes = _sizes(self.budget.total, block, max_outer_blocks, self.algorithm, len(self.tree.names))
        self.area = SpillArea(None if spill is None else Path(spill))
        self._metrics = SeveralMetrics(budget_bytes=self.budget.total, rows_in=dict.fromkeys(self.tree.names, 0))
        self._start(options)

    # wiring

    def _start(self, options: dict[str, Any]) -> None:
        names, sizes, budget = self.tree.names, self._sizes, self.budget
        self._schemas: list[pa.Schema | None] = [None] * len(names)
        self._check_room([_NOTHING] * len(names))
        transfer = budget.reserve("transfer", sizes.transfer)
        budget.reserve("work", _work(sizes, len(names)))
        self._finished = False
        self._relations = [self._relation(number, _NOTHING) for number in range(len(names))]
        self.several = Several(
            self.tree,
            self.tree.matchings(not self.algorithm.ordered),
            self._relations,
            budget,
            sizes.pairs,
            self._metrics,
            transfer,
            sizes.block,
            Partitions(self.algorithm.partitions),
            self._seed,
        )
        self.machinery = self.several
        self.flushing, self.reactive = self.algorithm.make(self.several, options)
        for relation in self._relations:
            relation.disk.divide(self.algorithm.partitions, sizes.page, sizes.fan, relation.block_rows)
        self._taking = TakingIn(self.several, self.flushing, self.algorithm, sizes)

    def _relation(self, number: int, schema: pa.Schema) -> Relation:
        name, sizes = self.tree.names[number], self._sizes
        attributes = len(self.tree.attributes[number])
        memory = IndexedRows(name, schema, attributes, self.budget, self._space, sizes.width)
        disk = Disk(name, schema, self.area, self.budget, False)
        return Relation(number, name, schema, memory, disk, sizes.block, self.algorithm.partitions)

    def _check_room(self, schemas: list[pa.Schema]) -> None:
        least = self._sizes.least
        for schema, attributes in zip(schemas, self.tree.attributes, strict=True):
            least += IndexedRows.least_of(schema, len(attributes), 2, Sizes.LEAST_WIDTH) + Sizes.buffers(schema, True)
        if self.budget.total < least:
            raise BudgetTooSmallError(
                f"memory: {format_size(self.budget.total)} is too little for {self.algorithm.name} of "
                f"{len(schemas)} inputs; the least is {least} bytes ({format_size(least)})",
                least,
            )

    def bind(self, **schemas: pa.Schema | None) -> pa.Schema | None:
        """Fix the schemas of some inputs, and return the output's schema once it is known.

        The first :meth:`push` of an input does this by itself.
        """
        for name, given in schemas.items():
            number = self._place_of(name)
            if given is None:
                continue
            schema = plain_schema(given)
            known = self._schemas[number]
            if known is None:
                self._fix(number, schema)
            elif (known.names, known.types) != (schema.names, schema.types):
                raise SchemaError(schema_difference(name, known, schema))
        return None if self.several.out is None else self.several.out.schema

    def _fix(self, number: int, schema: pa.Schema) -> None:
        self.tree.check(number, schema)
        known = [schema if each == number else other for each, other in enumerate(self._schemas)]
        self._check_room([_NOTHING if each is None else each for each in known])
        for edge in self.tree.edges:
            for side, end in enumerate(edge.ends):
                if end.relation == number:
                    try:
                        self.several.matchings[edge.number].bind(side, schema)
                    except SchemaError as error:
                        raise SchemaError(f"on {edge.text}: {error}") from error
        whole = [each for each in known if each is not None]
        output = None
        if len(whole) == len(known):
            if self._pair is not None:
                self._pair.output_schema(*whole)
            output = SeveralOutput(self.tree, whole, self._suffix, self._metrics, self._output_rows)
        self._relations[number].close()
        self._relations[number] = relation = self._relation(number, schema)
        relation.disk.divide(self.algorithm.partitions, self._sizes.page, self._sizes.fan, relation.block_rows)
        self._schemas = known
        self.several.out = output

    def _place_of(self, name: str) -> int:
        return self.tree.names.index(one_of("input", name, self.tree.names))

    # the life cycle

    def push(self, side: str, batch: pa.RecordBatch) -> Batches:
        """Take in rows of one input."""
        number = self._coming(side, "push")
        if not isinstance(batch, pa.RecordBatch):
            raise SchemaError(f"push: expected a pyarrow.RecordBatch; got {type(batch).__name__}")
        self._check_between_calls("push")
        self.bind(**{side: batch.schema})
        rows = plain_batch(batch, self._relations[number].schema)
        return self._guarded(self._counted("rows_arriving", self._taking.take(number, rows)))

    def _counted(self, phase: str, work: Batches) -> Batches:
        before = self._metrics.rows_out
        yield from work
        if self.several.out is not None:
            yield from self.several.out.flush()
        setattr(self._metrics, phase, getattr(self._metrics, phase) + self._metrics.rows_out - before)

    def end(self, side: str) -> Batches:
        """One input has ended; rows that nobody new can meet need not stay in memory any more."""
        self._relations[self._coming(side, "end")].ended = True
        return self._guarded(iter(()))

    def _coming(self, name: str, doing: str) -> int:
        number = self._place_of(name)
        if self._finished or self._relations[number].ended:
            raise StateError(f"{doing}: the input {name!r} has ended; make a new join for new inputs")
        return number

    def finish(self) -> Batches:
        """All inputs have ended: everything that has not come out yet."""
        if self._finished:
            raise StateError("finish after finish: make a new join for new inputs")
        self._check_between_calls("finish")
        self._finished = True
        for relation in self._relations:
            relation.ended = True
        return self._guarded(self._last())

    def _last(self) -> Batches:
        if self.several.out is not None:
            yield from self.reactive.clean_up()
            yield from self.several.out.flush()
        for relation in self._relations:
            relation.clear()
        self.several.transfer.resize(0)

    def run(self, **inputs: Any) -> Batches:
        """Join whole inputs, by name: record batches in any iterable, a table, a reader or a dataset.

        They are read in turns.
        """
        missing = [name for name in self.tree.names if name not in inputs]
        if missing or len(inputs) != len(self.tree.names):
            raise ConfigError(
                f"run: expected the inputs {', '.join(self.tree.names)}; got {', '.join(inputs) or 'none'}"
            )
        readers = {name: iter(batches_of(name, given)) for name, given in inputs.items()}
        for name, given in inputs.items():
            schema = getattr(given, "schema", None)
            if isinstance(schema, pa.Schema):
                self.bind(**{name: schema})
        while readers:
            for name in list(readers):
                batch = next(readers[name], None)
                if batch is None:
                    del readers[name]
                    yield from self.end(name)
                else:
                    yield from self.push(name, batch)
        yield from self.finish()

    @property
    def identity(self) -> str:
        return f"{self.algorithm.name}, inner join on {self._conditions_said()}"

    def schema_of(self, number: int) -> pa.Schema | None:
        return self._schemas[number]

    def _conditions_said(self) -> str:
        return " and ".join(
            edge.text if edge.band is None else f"{edge.text} within {edge.band}" for edge in self.tree.edges
        )

    def __repr__(self) -> str:
        size = format_size(self.budget.total)
        return f"StreamJoin(on {self._conditions_said()}, {self.algorithm.name}, memory={size})"

    # what it tells

    @property
    def metrics(self) -> SeveralMetrics:
        """Counts so far."""
        m = self._metrics
        assert isinstance(m, SeveralMetrics)
        m.in_memory = sum(len(relation.memory) for relation in self._relations)
        m.on_disk = sum(relation.disk.rows for relation in self._relations)
        m.bytes_written, m.bytes_read = self.area.bytes_written, self.area.bytes_read
        m.used_bytes, m.peak_bytes, m.parts = self.budget.used, self.budget.peak, self.budget.parts()
        return m

    def explain(self) -> str:
        """The plan and the split of the budget, to read."""
        m, budget = self.metrics, self.budget
        came = ", ".join(f"{rows:,} {name}" for name, rows in m.rows_in.items())
        lines = [
            f"{self.algorithm.name}: {self.algorithm.summary}",
            f"  inner join on {self._conditions_said()}, memory {format_size(budget.total)}",
            f"  {came} rows came, {m.in_memory:,} are in memory, {m.on_disk:,} on disk",
        ]
        for part, nbytes in sorted(budget.parts().items(), key=lambda item: -item[1]):
            lines.append(f"  {part:>10} {format_size(nbytes):>10}  {nbytes / budget.total:6.1%}")
        lines.append(f"  {'free':>10} {format_size(budget.available):>10}")
        return "\n".join(lines)

    def check_invariants(self) -> None:
        """Assert that every structure is sound; for tests."""
        self.budget.check_invariants()
        if not self._finished:
            for relation in self._relations:
                relation.check_invariants()
            self.flushing.check_invariants()
            self.reactive.check_invariants()


def _conditions(pair: PairSpec, band: Band | None) -> list[Any]:
    """The key of two inputs as a condition."""
    (left, *more), (right, *_) = pair.keys
    if more:
        raise ConfigError(f"on: inputs of miner and mjoin are joined on one column each; got {', '.join(pair.keys[0])}")
    return [(f"left.{left}", f"right.{right}") if band is None else (f"left.{left}", f"right.{right}", band)]


def _pair_bytes(inputs: int) -> int:
    """What a combination takes while it grows by one input."""
    return Workspace.bytes_per_pair + 48 + 4 * inputs


def _sizes(total: int, block: str | int | None, outer_blocks: int, algorithm: Algorithm, inputs: int) -> Sizes:
    """Divide the budget: combinations have a place for each step."""
    sizes = Sizes.of(total, None if block is None else parse_size(block), outer_blocks, algorithm, inputs)
    each = (inputs - 1) * _pair_bytes(inputs)
    pairs = max(Sizes.LEAST_PAIRS, min(65_536, total // 16 // each))
    return replace(sizes, pairs=pairs, least=sizes.least + Sizes.LEAST_PAIRS * each)


def _work(sizes: Sizes, inputs: int) -> int:
    """Bytes for rows on their way in, and for combinations."""
    return sizes.work - sizes.pairs * Workspace.bytes_per_pair + sizes.pairs * (inputs - 1) * _pair_bytes(inputs)
