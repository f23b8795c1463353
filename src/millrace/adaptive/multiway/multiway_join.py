"""``StreamJoin`` of several inputs: MJoin, and MINER for trees of conditions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millrace.adaptive.disk.blocks import Disk
from millrace.adaptive.flush.coordinated_buckets import CoordinatedBuckets
from millrace.adaptive.flush.miner_regions import RegionsOfAll
from millrace.adaptive.join import StreamJoin
from millrace.adaptive.lifecycle import NOTHING, Schemas
from millrace.adaptive.memory.code_ranges import Partitions
from millrace.adaptive.memory.indexed_rows import IndexedRows
from millrace.adaptive.memory.pair_codes import Band
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.memory_split import Sizes
from millrace.adaptive.multiway.arriving_multiway import TakingIn
from millrace.adaptive.multiway.join_tree import JoinTree, is_tree
from millrace.adaptive.multiway.relations import Relation, Several, SeveralOutput
from millrace.adaptive.pair.arriving_pair import Arriving
from millrace.adaptive.pair.pair_algorithms import Algorithm
from millrace.adaptive.pair.pair_spec import PairSpec
from millrace.adaptive.reactive.growing_box import GrowingBox, OnlyAtTheEnd
from millrace.core.budget import Reservation
from millrace.core.errors import ConfigError, SchemaError, one_of

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
        without a cycle; several between the same two inputs are one key of several columns. A third part
        ``(least, greatest)`` makes one a band: the second column minus the first.
    algorithm
        ``"miner"``, or ``"mjoin"`` where all inputs are joined on one attribute, or on one group of them.
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

    machinery: Several

    def __init__(
        self,
        on: Any,
        algorithm: str | Algorithm = "miner",
        memory: str | int = "64MB",
        band: Band | None = None,
        how: str = "inner",
        **settings: Any,
    ) -> None:
        super().__init__(on, algorithm, memory, band, how, **settings)

    def _read(self, on: Any, algorithm: str | Algorithm, band: Band | None, how: str, suffix: str | None) -> None:
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
                f"{self.algorithm.name}: needs one common attribute, the same columns of an input in all its "
                "conditions and no band; for any tree of conditions there is miner"
            )
        self.inputs, self.band, self._suffix = self.tree.names, band, suffix
        self.condition = f"inner join on {self.tree}"

    def _sized(self, block: int | None, outer_blocks: int) -> Sizes:
        inputs = len(self.inputs)
        return Sizes.of(self.budget.total, block, outer_blocks, self.algorithm, inputs).of_combinations(inputs)

    def _least_of(self, number: int, schema: pa.Schema) -> int:
        return IndexedRows.least_of(schema, len(self.tree.attributes[number]), 2, Sizes.LEAST_WIDTH)

    def _side(self, number: int, schema: pa.Schema) -> Relation:
        name, sizes = self.inputs[number], self._sizes
        attributes = len(self.tree.attributes[number])
        memory = IndexedRows(name, schema, attributes, self.budget, self._space, sizes.width)
        disk = Disk(name, schema, self.area, self.budget, False)
        return Relation(number, name, schema, memory, disk, sizes.block, self.algorithm.partitions)

    def _machinery(self, transfer: Reservation) -> Several:
        return Several(
            self.tree,
            self.tree.matchings(not self.algorithm.ordered),
            [self._side(number, NOTHING) for number in range(len(self.inputs))],
            self.budget,
            self._sizes.pairs,
            self._metrics,
            transfer,
            self._sizes.block,
            Partitions(self.algorithm.partitions),
            self._seed,
        )

    def _taking_in(self) -> Arriving:
        return TakingIn(self.machinery, self.flushing, self.algorithm, self._sizes)

    def _fit(self, number: int, schema: pa.Schema, known: Schemas) -> None:
        self.tree.check(number, schema)
        whole = [each for each in known if each is not None]
        output = None
        if len(whole) == len(known):
            if self._pair is not None:
                self._pair.output_schema(*whole)
            output = SeveralOutput(self.tree, whole, self._suffix, self._metrics, self._output_rows)
        ways = self.tree.ways(number)
        for way in ways:
            try:
                self.machinery.matchings[way.edge].check(way.side, schema)
            except SchemaError as error:
                raise SchemaError(f"on {self.tree.edges[way.edge].text}: {error}") from error
        for way in ways:
            self.machinery.matchings[way.edge].bind(way.side, schema)
        self.machinery.output = output

    def _check_ended(self) -> None:
        """Where an input has not come there is no result."""

    def _alone(self) -> Batches:
        return iter(())


def _conditions(pair: PairSpec, band: Band | None) -> list[tuple[Any, ...]]:
    """The key of two inputs as conditions."""
    ends = [(f"left.{left}", f"right.{right}") for left, right in zip(*pair.keys, strict=True)]
    return [*ends] if band is None else [(*ends[0], band)]
