"""The engine of a join of two inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.adaptive.adaptive_algorithm import AdaptiveAlgorithm
from millrace.adaptive.array_types import Batches
from millrace.adaptive.conditions.key_matching import Band, KeyMatching
from millrace.adaptive.conditions.pair_spec import SIDES, On, PairSpec
from millrace.adaptive.inputs.pair_inputs import PairInputs, PairSide
from millrace.adaptive.join_engine import NO_COLUMNS, EngineParts, Schemas
from millrace.adaptive.memory.code_ranges import CodeRanges
from millrace.adaptive.memory.key_ordered_rows import MATCHED, KeyOrderedRows
from millrace.adaptive.memory.row_index import Workspace
from millrace.adaptive.memory.row_sources import BatchRows
from millrace.adaptive.memory_split import MemorySplit
from millrace.adaptive.output.pair_output import PairOutput
from millrace.adaptive.pair.pair_algorithms import check_band, pair_algorithm
from millrace.adaptive.pair.pair_arriving import PairArrivingPhase
from millrace.core.errors import SchemaError


@dataclass(frozen=True)
class PairDefinition:
    """What a join of two inputs computes, and its algorithm."""

    spec: PairSpec
    band: Band | None
    algorithm: AdaptiveAlgorithm
    inputs: tuple[str, ...] = SIDES

    @staticmethod
    def of(
        on: On, algorithm: str | AdaptiveAlgorithm, band: Band | None, how: str, suffix: str | None
    ) -> PairDefinition:
        """Create the definition from a join's arguments, after checking them."""
        spec = PairSpec.of(on, how, band is not None, suffix)
        chosen = pair_algorithm(algorithm)
        if band is not None:
            check_band(chosen)
        return PairDefinition(spec, band, chosen)

    @property
    def condition(self) -> str:
        """The kind of join and its conditions, as text."""
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in zip(*self.spec.keys, strict=True))
        return f"{self.spec.how} join on {keys}" + ("" if self.band is None else f" within {self.band}")

    def split(self, total: int, block: int | None, outer_blocks: int) -> MemorySplit:
        """Return how a budget of ``total`` bytes is divided among the parts of the join."""
        algorithm = self.algorithm
        return MemorySplit.of(total, block, outer_blocks, spills=algorithm.spills, partitions=algorithm.partitions)

    def least_row_bytes(self, number: int, schema: pa.Schema) -> int:
        """Return the minimum bytes to reserve for the rows of one input in memory."""
        return KeyOrderedRows.least_bytes(schema, 2, MemorySplit.LEAST_WIDTH)

    def engine(self, parts: EngineParts) -> PairEngine:
        """Create the engine of one join from its parts."""
        return PairEngine(self, parts)


class PairEngine:
    """The engine of a join of two inputs."""

    def __init__(self, definition: PairDefinition, parts: EngineParts) -> None:
        self._definition, self._parts = definition, parts
        spec, algorithm = definition.spec, definition.algorithm
        buffers = parts.buffers()
        self.inputs = PairInputs(
            [self._new_side(number, NO_COLUMNS) for number in (0, 1)],
            KeyMatching(spec, definition.band, not algorithm.ordered),
            Workspace(parts.split.pairs),
            (spec.keeps(0), spec.keeps(1)),
            parts.budget,
            parts.metrics,
            buffers,
            CodeRanges(algorithm.partitions),
            parts.seed,
        )
        self.flushing, self.reactive = algorithm.policies(self.inputs, parts.options)
        self._arriving = PairArrivingPhase(self.inputs, self.flushing, parts.split, algorithm.probes)

    @property
    def output(self) -> PairOutput | None:
        """The builder of output batches; None until the output columns are known."""
        return self.inputs.output

    def _new_side(self, number: int, schema: pa.Schema) -> PairSide:
        parts, spec, name = self._parts, self._definition.spec, self._definition.inputs[number]
        rows = KeyOrderedRows(name, schema, parts.budget, parts.space, parts.split.width)
        tracks = spec.keeps(number) or spec.how == "semi"
        return parts.side(number, name, schema, rows, self._definition.algorithm.partitions, tracks)

    def bind(self, number: int, schemas: Schemas) -> None:
        """Set the schema of one input, and create the output once the schemas that it needs are known."""
        schema, spec = schemas[number], self._definition.spec
        assert schema is not None
        left, right = schemas
        output = None
        if left is not None and (right is not None or not spec.emits_right):
            output = PairOutput(spec, left, right, self._parts.metrics, self._parts.output_rows)
        self.inputs.matching.bind(number, schema)
        if output is not None:
            self.inputs.set_output(output)
        self.inputs.sides[number].close()
        self.inputs.set_side(number, self._new_side(number, schema))

    def take(self, number: int, batch: pa.RecordBatch) -> Batches:
        """Process new rows of one side, and yield output batches."""
        return self._arriving.take(number, batch)

    def check_complete(self, schemas: Schemas) -> None:
        """Raise an error if there are unmatched rows to output, but the output columns are not known."""
        spec = self._definition.spec
        for number, schema in enumerate(schemas):
            other = schemas[1 - number]
            if schema is None and other is not None and spec.keeps(1 - number) and self.output is None:
                name = self._definition.inputs[number]
                raise SchemaError(
                    f"{name}: no rows have arrived, so its columns are not known; set them with bind({name}=schema)"
                )

    def unmatched(self) -> Batches:
        """Yield unmatched rows of one or both sides, as the kind of join requires."""
        for side in self.inputs.sides:
            if self._definition.spec.keeps(side.number):
                yield from self._unmatched_of(side)

    def _unmatched_of(self, side: PairSide) -> Batches:
        output = self.output
        assert output is not None
        _, slots = side.memory.entries()
        alone = slots[(side.memory.bits[slots] & MATCHED) == 0]
        yield from output.unmatched(side.number, side.source, alone)
        for number, partition in enumerate(side.disk.partitions):
            for at in range(len(partition)):
                read = side.disk.load(number, [at])
                rows = np.flatnonzero((read.bits & MATCHED) == 0).astype(np.int32)
                yield from output.unmatched(side.number, read.source, rows)
        for batch in side.disk.null_keys():
            source = BatchRows(batch, np.zeros(len(batch), np.uint8))
            yield from output.unmatched(side.number, source, np.arange(len(batch), dtype=np.int32))
