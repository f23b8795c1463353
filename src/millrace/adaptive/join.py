"""``StreamJoin``: two inputs that come slowly and in bursts, joined under one byte budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.adaptive.disk.blocks import Disk
from millrace.adaptive.lifecycle import NOTHING, AdaptiveJoin, Schemas
from millrace.adaptive.memory.code_ranges import Partitions
from millrace.adaptive.memory.pair_codes import Band, Matching
from millrace.adaptive.memory.pair_output import Batches, BatchSource, PairOutput
from millrace.adaptive.memory.side import Side
from millrace.adaptive.memory.sorted_rows import MATCHED, SortedRows, Workspace
from millrace.adaptive.memory_split import Sizes
from millrace.adaptive.multiway.join_tree import is_tree
from millrace.adaptive.pair.arriving_pair import Arriving
from millrace.adaptive.pair.pair_algorithms import Algorithm
from millrace.adaptive.pair.pair_algorithms import algorithm as named
from millrace.adaptive.pair.pair_spec import SIDES, On, PairSpec
from millrace.adaptive.pair.pair_state import LogicalClock, Machinery
from millrace.core.budget import Reservation
from millrace.core.clock import Clock
from millrace.core.errors import SchemaError
from millrace.core.space import Space
from millrace.rows.batch_builder import BATCH_ROWS


class StreamJoin(AdaptiveJoin):
    """Join two inputs as their rows come, with results as early as possible and all of them at the end.

    Parameters
    ----------
    on
        Key column of both inputs; a list of them; or a pair ``(left name, right name)``. For several inputs a list of
        conditions ``("input.column", "input.column")``: see
        :class:`~millrace.adaptive.multiway.multiway_join.MultiwayJoin`.
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
        Bytes of a block on disk; by default a 128th of the memory. The paper has 10 kB.
    wait_threshold
        Seconds for which all inputs have to be silent before the disk is used to find results.
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
        if cls is StreamJoin and (is_tree(on) or getattr(algorithm, "name", algorithm) in ("miner", "mjoin")):
            from millrace.adaptive.multiway.multiway_join import MultiwayJoin

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
        self._read(on, algorithm, band, how, suffix)
        super().__init__(
            options,
            memory=memory,
            block=block,
            wait_threshold=wait_threshold,
            max_new_arrivals=max_new_arrivals,
            max_outer_blocks=max_outer_blocks,
            spill=spill,
            clock=clock,
            output_rows=output_rows,
            space=space,
            seed=seed,
        )

    # what is joined

    def _read(self, on: Any, algorithm: str | Algorithm, band: Band | None, how: str, suffix: str | None) -> None:
        """Read the arguments that say what is joined, and by whom."""
        self.spec = PairSpec.of(on, how, band is not None, suffix)
        self.inputs, self.band = SIDES, band
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in zip(*self.spec.keys, strict=True))
        self.condition = f"{self.spec.how} join on {keys}" + ("" if band is None else f" within {band}")
        self.algorithm = named(algorithm)
        if band is not None:
            self.algorithm.check_band()

    def _sized(self, block: int | None, outer_blocks: int) -> Sizes:
        return Sizes.of(self.budget.total, block, outer_blocks, self.algorithm)

    def _least_of(self, number: int, schema: pa.Schema) -> int:
        return SortedRows.least_bytes(schema, 2, Sizes.LEAST_WIDTH)

    def _side(self, number: int, schema: pa.Schema) -> Side:
        name = self.inputs[number]
        memory = SortedRows(name, schema, self.budget, self._space, self._sizes.width)
        disk = Disk(name, schema, self.area, self.budget, self.spec.keeps(number) or self.spec.how == "semi")
        return Side(number, schema, memory, disk, self._sizes.block, self.algorithm.partitions)

    def _machinery(self, transfer: Reservation) -> Machinery:
        return Machinery(
            [self._side(number, NOTHING) for number in (0, 1)],
            Matching(self.spec, self.band, not self.algorithm.ordered),
            None,
            self.budget,
            Workspace(self._sizes.pairs),
            self._metrics,
            LogicalClock(),
            transfer,
            self._sizes.block,
            (self.spec.keeps(0), self.spec.keeps(1)),
            Partitions(self.algorithm.partitions),
            self._seed,
        )

    def _taking_in(self) -> Arriving:
        return Arriving(self.machinery, self.flushing, self.algorithm, self._sizes)

    def _fit(self, number: int, schema: pa.Schema, known: Schemas) -> None:
        left, right = known
        output = None
        if left is not None and (right is not None or not self.spec.emits_right):
            output = PairOutput(self.spec, left, right, self._metrics, self._output_rows)
        self.machinery.matching.bind(number, schema)
        if output is not None:
            self.machinery.output = output

    # rows without a partner

    def _check_ended(self) -> None:
        for number, schema in enumerate(self.schemas):
            other = self.schemas[1 - number]
            if schema is None and other is not None and self.spec.keeps(1 - number) and self._output is None:
                name = self.inputs[number]
                raise SchemaError(
                    f"{name}: nothing came, so its columns are not known; say them with bind({name}=schema)"
                )

    def _alone(self) -> Batches:
        for side in self.machinery.sides:
            if self.spec.keeps(side.number):
                yield from self._alone_of(side)

    def _alone_of(self, side: Side) -> Batches:
        output = self.machinery.output
        assert output is not None
        _, slots = side.memory.entries()
        alone = slots[(side.memory.bits[slots] & MATCHED) == 0]
        yield from output.alone(side.number, side.source, alone)
        for number, partition in enumerate(side.disk.partitions):
            for at in range(len(partition)):
                chunk = side.disk.load(number, [at])
                rows = np.flatnonzero((chunk.bits & MATCHED) == 0).astype(np.int32)
                yield from output.alone(side.number, chunk.source, rows)
        for batch in side.disk.lonely():
            source = BatchSource(batch, np.zeros(len(batch), np.uint8))
            yield from output.alone(side.number, source, np.arange(len(batch), dtype=np.int32))
