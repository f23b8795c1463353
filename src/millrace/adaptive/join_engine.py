"""The interfaces behind ``StreamJoin``: a definition of what is joined, and the engine that is created from it.

::

    arguments ─► JoinDefinition ──engine(parts)──► JoinEngine: inputs, flush policy, reactive policy, arriving phase
                 PairDefinition                    PairEngine
                 MultiwayDefinition                MultiwayEngine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from millrace.adaptive.adaptive_algorithm import AdaptiveAlgorithm
from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.array_types import Batches
from millrace.adaptive.disk.blocks import DiskBlocks
from millrace.adaptive.disk.spill_files import SpillArea
from millrace.adaptive.flush.flush_policy import FlushPolicy
from millrace.adaptive.inputs.block_buffers import BlockBuffers
from millrace.adaptive.inputs.input_side import InputSide, R
from millrace.adaptive.inputs.join_inputs import JoinInputs
from millrace.adaptive.memory_split import MemorySplit
from millrace.adaptive.output.result_batches import ResultBatches
from millrace.adaptive.reactive.reactive_policy import ReactivePolicy
from millrace.core.budget import MemoryBudget
from millrace.core.space import Space

NO_COLUMNS = pa.schema([])
"""Placeholder schema of an input whose columns are not known yet."""

Schemas = Sequence[pa.Schema | None]
"""Schema of each input, or None while it is not known."""


class JoinEngine(Protocol):
    """Part of a join that joins rows: in memory on arrival, on disk while no rows arrive, and the rest at the end."""

    @property
    def inputs(self) -> JoinInputs[Any]:
        """The inputs, with their rows in memory and on disk."""
        ...

    @property
    def flushing(self) -> FlushPolicy:
        """The policy that writes rows to disk when memory is full."""
        ...

    @property
    def reactive(self) -> ReactivePolicy:
        """The policy that joins rows on disk."""
        ...

    @property
    def output(self) -> ResultBatches | None:
        """The builder of output batches; None until the output columns are known."""
        ...

    def bind(self, number: int, schemas: Schemas) -> None:
        """Set the schema of one input, or raise an error if it does not fit the join.

        ``schemas`` are the schemas of all inputs, this one included. The output is created once all schemas it needs
        are known.
        """
        ...

    def take(self, number: int, batch: pa.RecordBatch) -> Batches:
        """Process new rows of one input, and yield output batches."""
        ...

    def check_complete(self, schemas: Schemas) -> None:
        """Raise an error if there are rows to output, but the output columns are not known."""
        ...

    def unmatched(self) -> Batches:
        """Yield unmatched rows, after all matches have been output."""
        ...


class JoinDefinition(Protocol):
    """What is joined, and by which algorithm, before any memory is reserved."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        ...

    @property
    def condition(self) -> str:
        """The kind of join and its conditions, as text."""
        ...

    @property
    def algorithm(self) -> AdaptiveAlgorithm:
        """The algorithm, with its policies."""
        ...

    def split(self, total: int, block: int | None, outer_blocks: int) -> MemorySplit:
        """Return how a budget of ``total`` bytes is divided among the parts of the join."""
        ...

    def least_row_bytes(self, number: int, schema: pa.Schema) -> int:
        """Return the minimum bytes to reserve for the rows of one input in memory."""
        ...

    def engine(self, parts: EngineParts) -> JoinEngine:
        """Create the engine of one join from its parts."""
        ...


@dataclass(frozen=True)
class EngineParts:
    """The shared parts and the settings that an engine is created with."""

    budget: MemoryBudget
    split: MemorySplit
    area: SpillArea
    space: Space
    metrics: AdaptiveMetrics
    output_rows: int
    """Maximum number of rows in an output batch."""
    seed: int
    """Seed of the random generator."""
    options: Mapping[str, Any]
    """Options of the policies, by name."""

    def buffers(self) -> BlockBuffers:
        """Reserve memory for blocks and for rows being processed, and return the block buffers."""
        buffers = BlockBuffers(self.budget, self.split.transfer, self.split.block)
        self.budget.reserve("work", self.split.work)
        return buffers

    def side(
        self, number: int, name: str, schema: pa.Schema, rows: R, partitions: int, tracks: bool = False
    ) -> InputSide[R]:
        """Create one input, which has no rows yet.

        Parameters
        ----------
        rows
            The data structure that holds the input's rows in memory.
        partitions
            Number of key-code ranges that rows on disk are divided into.
        tracks
            Whether the block directory records which rows have matched.
        """
        disk = DiskBlocks(name, schema, self.area, self.budget, tracks)
        side = InputSide(number, name, schema, rows, disk, self.split.block, partitions)
        if self.split.spills:
            disk.divide(partitions, self.split.page, self.split.fan, side.block_rows)
        else:
            disk.divide(1, 1, 1, 0)
        return side
