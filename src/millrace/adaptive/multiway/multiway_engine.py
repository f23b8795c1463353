"""The engine of a join of several inputs: MJoin, and MINER for trees of conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.adaptive.adaptive_algorithm import AdaptiveAlgorithm
from millrace.adaptive.array_types import Batches
from millrace.adaptive.conditions.join_tree import JoinTree, is_tree
from millrace.adaptive.conditions.key_matching import Band
from millrace.adaptive.conditions.pair_spec import PairSpec
from millrace.adaptive.flush.coordinated_buckets import CoordinatedBuckets
from millrace.adaptive.flush.miner_regions import MinerRegions
from millrace.adaptive.inputs.multiway_inputs import MultiwayInputs, Relation
from millrace.adaptive.join_engine import NO_COLUMNS, EngineParts, Schemas
from millrace.adaptive.memory.code_ranges import CodeRanges
from millrace.adaptive.memory.indexed_rows import IndexedRows
from millrace.adaptive.memory_split import MemorySplit
from millrace.adaptive.multiway.multiway_arriving import MultiwayArrivingPhase
from millrace.adaptive.output.combination_output import CombinationOutput
from millrace.adaptive.reactive.growing_box import GrowingBox, MultiwayCleanUpOnly
from millrace.core.errors import ConfigError, SchemaError, one_of

MULTIWAY = {
    algorithm.name: algorithm
    for algorithm in (
        AdaptiveAlgorithm(
            "mjoin",
            CoordinatedBuckets,
            MultiwayCleanUpOnly,
            "one common key; when memory is full, the hash bucket with the most rows goes to disk for all inputs",
            ordered=False,
        ),
        AdaptiveAlgorithm(
            "miner",
            MinerRegions,
            GrowingBox,
            "a tree of conditions; rows of the key range with the fewest results per row go to disk",
        ),
    )
}
"""Algorithms for several inputs, by name."""


def is_multiway(on: Any, algorithm: str | AdaptiveAlgorithm | None) -> bool:
    """Return whether ``on`` is a list of conditions, or the algorithm is one for several inputs."""
    return is_tree(on) or getattr(algorithm, "name", algorithm) in MULTIWAY


@dataclass(frozen=True)
class MultiwayDefinition:
    """What a join of several inputs computes, and its algorithm."""

    tree: JoinTree
    pair: PairSpec | None
    """The specification of a join of two inputs; None if ``on`` is a list of conditions."""
    suffix: str | None
    algorithm: AdaptiveAlgorithm

    @staticmethod
    def of(
        on: Any, algorithm: str | AdaptiveAlgorithm, band: Band | None, how: str, suffix: str | None
    ) -> MultiwayDefinition:
        """Create the definition from a join's arguments, after checking them.

        >>> MultiwayDefinition.of([("a.x", "b.x"), ("b.y", "c.y", (0, 9))], "miner", None, "inner", None).condition
        'inner join on a.x = b.x and b.y = c.y within (0, 9)'
        """
        if isinstance(algorithm, AdaptiveAlgorithm):
            chosen = algorithm
        else:
            chosen = MULTIWAY[one_of("algorithm for several inputs", algorithm, MULTIWAY)]
        if how != "inner":
            raise ConfigError(f"how: a join of several inputs can only be 'inner'; got {how!r}")
        pair = None if is_tree(on) else PairSpec.of(on, how, band is not None, suffix)
        tree = JoinTree.of(_conditions(pair, band)) if pair else JoinTree.of(on, band)
        if not chosen.ordered and not tree.simple:
            raise ConfigError(
                f"{chosen.name}: expected conditions without a band, and all conditions on an input with the same "
                f"columns of it; got {tree}. algorithm='miner' has neither restriction"
            )
        return MultiwayDefinition(tree, pair, suffix, chosen)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return self.tree.names

    @property
    def condition(self) -> str:
        """The kind of join and its conditions, as text."""
        return f"inner join on {self.tree}"

    def split(self, total: int, block: int | None, outer_blocks: int) -> MemorySplit:
        """Return how a budget of ``total`` bytes is divided among the parts of the join."""
        inputs, algorithm = len(self.inputs), self.algorithm
        split = MemorySplit.of(
            total, block, outer_blocks, spills=algorithm.spills, partitions=algorithm.partitions, inputs=inputs
        )
        return split.of_combinations(inputs)

    def least_row_bytes(self, number: int, schema: pa.Schema) -> int:
        """Return the minimum bytes to reserve for the rows of one input in memory."""
        return IndexedRows.least_of(schema, len(self.tree.attributes[number]), 2, MemorySplit.LEAST_WIDTH)

    def output_schema(self, schemas: Sequence[pa.Schema]) -> pa.Schema:
        """Return the output schema."""
        if self.pair is not None:
            self.pair.output_schema(*schemas)  # checks that no name is in both inputs
        return self.tree.output_schema(schemas, self.suffix)

    def engine(self, parts: EngineParts) -> MultiwayEngine:
        """Create the engine of one join from its parts."""
        return MultiwayEngine(self, parts)


class MultiwayEngine:
    """The engine of a join of several inputs."""

    def __init__(self, definition: MultiwayDefinition, parts: EngineParts) -> None:
        self._definition, self._parts = definition, parts
        algorithm, tree = definition.algorithm, definition.tree
        buffers = parts.buffers()
        self.inputs = MultiwayInputs(
            [self._new_side(number, NO_COLUMNS) for number in range(len(tree.names))],
            tree,
            tree.key_matchings(not algorithm.ordered),
            parts.split.pairs,
            parts.budget,
            parts.metrics,
            buffers,
            CodeRanges(algorithm.partitions),
            parts.seed,
        )
        self.flushing, self.reactive = algorithm.policies(self.inputs, parts.options)
        self._arriving = MultiwayArrivingPhase(self.inputs, self.flushing, parts.split)

    @property
    def output(self) -> CombinationOutput | None:
        """The builder of output batches; None until the output columns are known."""
        return self.inputs.output

    def _new_side(self, number: int, schema: pa.Schema) -> Relation:
        parts, tree = self._parts, self._definition.tree
        name, attributes = tree.names[number], len(tree.attributes[number])
        rows = IndexedRows(name, schema, attributes, parts.budget, parts.space, parts.split.width)
        return parts.side(number, name, schema, rows, self._definition.algorithm.partitions)

    def bind(self, number: int, schemas: Schemas) -> None:
        """Set the schema of one input, and create the output once all schemas are known."""
        schema, tree = schemas[number], self._definition.tree
        assert schema is not None
        tree.check(number, schema)
        whole = [each for each in schemas if each is not None]
        output = None
        if len(whole) == len(schemas):
            columns = self._definition.output_schema(whole)
            output = CombinationOutput(tree, whole, columns, self._parts.metrics, self._parts.output_rows)
        steps = tree.steps_from(number)
        for step in steps:
            try:
                self.inputs.matchings[step.edge].check(step.side, schema)
            except SchemaError as error:
                raise SchemaError(f"on {tree.edges[step.edge].text}: {error}") from error
        for step in steps:
            self.inputs.matchings[step.edge].bind(step.side, schema)
        if output is not None:
            self.inputs.set_output(output)
        self.inputs.sides[number].close()
        self.inputs.set_side(number, self._new_side(number, schema))

    def take(self, number: int, batch: pa.RecordBatch) -> Batches:
        """Process new rows of one input, and yield output batches."""
        return self._arriving.take(number, batch)

    def check_complete(self, schemas: Schemas) -> None:
        """Do nothing: if an input has no rows, there is no result."""

    def unmatched(self) -> Batches:
        """Yield nothing: all joins of several inputs are inner."""
        return iter(())


def _conditions(pair: PairSpec, band: Band | None) -> list[tuple[Any, ...]]:
    """Return the key columns of a join of two inputs as a list of conditions."""
    ends = [(f"left.{left}", f"right.{right}") for left, right in zip(*pair.keys, strict=True)]
    return [*ends] if band is None else [(*ends[0], band)]
