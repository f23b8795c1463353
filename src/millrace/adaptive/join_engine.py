"""What a ``StreamJoin`` is given: a definition of what is joined, and the engine that is made from it.

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
"""Columns of an input of which none are known yet."""

Schemas = Sequence[pa.Schema | None]
"""By input, its columns; None as long as they are not known."""


class JoinEngine(Protocol):
    """Joins rows of the inputs: in memory as they come, on disk while nothing comes, and the rest at the end."""

    @property
    def inputs(self) -> JoinInputs[Any]:
        """Rows in memory and on disk."""
        ...

    @property
    def flushing(self) -> FlushPolicy:
        """Writes rows to disk when memory is full."""
        ...

    @property
    def reactive(self) -> ReactivePolicy:
        """Joins rows on disk."""
        ...

    @property
    def output(self) -> ResultBatches | None:
        """The result; None until its columns are known."""
        ...

    def bind(self, number: int, schemas: Schemas) -> None:
        """Set the columns of one input, or raise an error if they do not fit.

        ``schemas`` are those of all inputs, this one's included. The result is made once all it needs are known.
        """
        ...

    def take(self, number: int, batch: pa.RecordBatch) -> Batches:
        """Take in rows of one input."""
        ...

    def check_complete(self, schemas: Schemas) -> None:
        """Check that the columns of the result are known, if there are rows to put out."""
        ...

    def unmatched(self) -> Batches:
        """Yield rows without a partner, after all pairs have come out."""
        ...


class JoinDefinition(Protocol):
    """What is joined, and by which algorithm, before any memory is reserved."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        ...

    @property
    def condition(self) -> str:
        """The join in words."""
        ...

    @property
    def algorithm(self) -> AdaptiveAlgorithm:
        """The policies."""
        ...

    def split(self, total: int, block: int | None, outer_blocks: int) -> MemorySplit:
        """Divide a budget."""
        ...

    def least_row_bytes(self, number: int, schema: pa.Schema) -> int:
        """Return the least bytes that rows of one input take in memory."""
        ...

    def engine(self, parts: EngineParts) -> JoinEngine:
        """Make the engine of one join."""
        ...


@dataclass(frozen=True)
class EngineParts:
    """What an engine is made with."""

    budget: MemoryBudget
    split: MemorySplit
    area: SpillArea
    space: Space
    metrics: AdaptiveMetrics
    output_rows: int
    """Most rows of an output batch."""
    seed: int
    """Of the random generator."""
    options: Mapping[str, Any]
    """Options of the policies."""

    def buffers(self) -> BlockBuffers:
        """Reserve memory for blocks, and for rows on their way in."""
        buffers = BlockBuffers(self.budget, self.split.transfer, self.split.block)
        self.budget.reserve("work", self.split.work)
        return buffers

    def side(
        self, number: int, name: str, schema: pa.Schema, rows: R, partitions: int, tracks: bool = False
    ) -> InputSide[R]:
        """Make one input without rows.

        Parameters
        ----------
        rows
            Its memory.
        partitions
            Ranges of codes that rows on disk are divided into.
        tracks
            Whether the disk keeps which rows have found a partner.
        """
        disk = DiskBlocks(name, schema, self.area, self.budget, tracks)
        side = InputSide(number, name, schema, rows, disk, self.split.block, partitions)
        if self.split.spills:
            disk.divide(partitions, self.split.page, self.split.fan, side.block_rows)
        else:
            disk.divide(1, 1, 1, 0)
        return side
