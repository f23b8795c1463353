"""How the memory budget is divided before any rows arrive, and the minimum budget for given columns.

::

    budget = rows and their index | buffers for blocks | work: new rows, pairs of rows | block directory | input buffer

The minimum budget is the sum of the minimum sizes that the parts declare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from millrace.adaptive.disk.block_directory import ENTRY_BYTES, BlockIds, BlockList
from millrace.adaptive.disk.blocks import STAMP_BYTES
from millrace.adaptive.memory.row_index import Workspace
from millrace.core.errors import ConfigError
from millrace.core.sizes import format_size
from millrace.rows.arena import Arena

INPUT_BUFFER_SHARE = 16
"""Divisor of the budget: a sixteenth of it is for rows that have arrived and wait to be processed."""
LONG_ROW_BUFFERS = 6
"""Number of buffers that must each hold the longest row, if it is larger than a block."""

_PIECE_SHARE = 16  # divisor: rows processed together take at most a sixteenth of the budget
_LEAST_ROW = 16  # minimum bytes of a row on disk
_ROW_WORK = 64  # bytes of codes, order, stamps, ranges and bits of a row being processed


@dataclass(frozen=True)
class MemorySplit:
    """Sizes of the parts of the budget that do not hold rows, and how many rows are processed at a time."""

    LEAST_WIDTH: ClassVar[int] = 8
    LEAST_BLOCK: ClassVar[int] = 256
    LEAST_PAIRS: ClassVar[int] = 16
    LEAST_PAGE: ClassVar[int] = 2
    LEAST_FAN: ClassVar[int] = 8

    total: int
    """The budget, in bytes."""
    spills: bool
    """Whether rows go to disk when memory is full."""
    width: int
    """Number of entries in a chunk of the index."""
    block: int
    """Bytes of a block on disk."""
    transfer: int
    """Bytes for blocks that are being read from disk or written to it."""
    pairs: int
    """Maximum number of pairs of rows that are processed together."""
    piece: int
    """Maximum number of new rows that are processed together."""
    page: int
    """Number of entries in a page of the block directory."""
    fan: int
    """Number of block numbers in a page of the list that locates the directory's pages."""
    least_fixed: int
    """Minimum total bytes of all parts whose size does not depend on the columns."""
    pair_bytes: int = Workspace.bytes_per_pair
    """Bytes of working memory for each pair of rows that is processed."""

    @staticmethod
    def of(
        total: int, block: int | None, outer_blocks: int, *, spills: bool = True, partitions: int = 1, inputs: int = 2
    ) -> MemorySplit:
        """Return the split of a budget of ``total`` bytes.

        Parameters
        ----------
        block
            Bytes in a block, or None for the default.
        outer_blocks
            Maximum number of blocks that are read into memory at a time, to join other blocks with them.
        spills
            Whether rows go to disk when memory is full.
        partitions
            Number of key-code ranges that rows on disk are divided into.
        inputs
            Number of inputs of the join.

        Examples
        --------
        >>> split = MemorySplit.of(5_000_000, None, 19)
        >>> split.block, split.transfer / split.total < 0.1
        (39062, True)
        """
        if block is not None and block < MemorySplit.LEAST_BLOCK:
            raise ConfigError(f"block: expected at least {MemorySplit.LEAST_BLOCK} bytes; got {format_size(block)}")
        lists = inputs * partitions
        given = MemorySplit.LEAST_BLOCK if block is None else block
        usual = max(MemorySplit.LEAST_BLOCK, min(4096, total // 16 // inputs), min(1_000_000, total // 128))
        size = usual if block is None else block
        outer = max(1, min(outer_blocks, total // 32 // size))
        transfer = (2 * outer + 2 * inputs) * size if spills else 0
        rest = total if block is None else max(0, total - transfer)  # large block= sizes may leave nothing
        page = max(MemorySplit.LEAST_PAGE, min(64, rest // 16 // lists // (2 * ENTRY_BYTES)))
        fan = max(MemorySplit.LEAST_FAN, min(64, rest // 64 // BlockIds.least_bytes(1) // lists))
        rows = max(64, given // _LEAST_ROW)
        directory = lists * BlockList.least_bytes(MemorySplit.LEAST_PAGE, MemorySplit.LEAST_FAN, rows) if spills else 0
        work = _ROW_WORK + MemorySplit.LEAST_PAIRS * Workspace.bytes_per_pair
        return MemorySplit(
            total=total,
            spills=spills,
            width=max(MemorySplit.LEAST_WIDTH, min(256, total // 16_384)),
            block=size,
            transfer=transfer,
            pairs=max(MemorySplit.LEAST_PAIRS, min(65_536, rest // 32 // Workspace.bytes_per_pair)),
            piece=max(1, min(65_536, rest // 32 // _ROW_WORK)),
            page=page,
            fan=fan,
            least_fixed=((2 + 2 * inputs) * given if spills else 0) + directory + work + 1024,
        )

    def of_combinations(self, inputs: int) -> MemorySplit:
        """Return the split for a multiway join, which extends combinations of rows by one input at a time.

        A result needs rows of all inputs in memory together, so rows get more memory than with two inputs.

        >>> split = MemorySplit.of(224_400, 1_000, 19, inputs=4).of_combinations(4)
        >>> (split.transfer + split.work) / split.total < 0.09
        True
        """
        each = (inputs - 1) * (Workspace.bytes_per_pair + 48 + 4 * inputs)
        outer = (self.transfer // self.block - 2 * inputs) // 2
        spare = 2 * max(0, outer - max(1, self.total // 128 // self.block)) * self.block
        return replace(
            self,
            transfer=self.transfer - spare,
            pairs=max(MemorySplit.LEAST_PAIRS, min(65_536, self.total // 32 // each)),
            pair_bytes=each,
            piece=max(1, min(16_384, self.total // 128 // _ROW_WORK)),
            least_fixed=self.least_fixed + MemorySplit.LEAST_PAIRS * each,
        )

    @property
    def work(self) -> int:
        """Bytes for new rows while they are being joined, and for the pairs that they form."""
        return self.piece * _ROW_WORK + self.pairs * self.pair_bytes

    @property
    def input_buffer(self) -> int:
        """Bytes for rows that have arrived and wait to be processed."""
        return self.total // INPUT_BUFFER_SHARE

    def least_bytes(self, rows: Sequence[int], schemas: Sequence[pa.Schema], buffered: bool) -> int:
        """Return the minimum budget in bytes.

        Parameters
        ----------
        rows
            Minimum bytes for the rows of each input in memory.
        schemas
            Schema of each input. The schema of an input whose columns are not known yet is empty.
        buffered
            Whether the budget also covers a buffer for rows that wait to be processed.
        """
        least = self.least_fixed + sum(rows)
        if self.spills:
            least += sum(_block_buffers(schema) for schema in schemas)
        return least + least // (INPUT_BUFFER_SHARE - 1) + 1 if buffered else least

    def piece_rows(self, batch: pa.RecordBatch, at: int, slot_bytes: int) -> int:
        """Return how many rows of a batch, from position ``at`` on, are processed together; at least one.

        Several rows are processed together only if they take at most a sixteenth of the budget. Each row takes
        ``slot_bytes`` bytes and the bytes of its strings.
        """
        most = self.total // _PIECE_SHARE
        fixed = slot_bytes + 16
        left = len(batch) - at
        rows = max(1, min(left, self.piece, most // fixed))
        rows = -(-left // -(-left // rows))  # equal pieces, so that the last is not a small one
        while rows > 1 and Arena.heap_bytes_of(batch.slice(at, rows).columns) + rows * fixed > most:
            rows //= 2
        return rows


def _block_buffers(schema: pa.Schema) -> int:
    """Return the bytes that block buffers of one input take beyond the blocks, such as overhead of record batches."""
    return 4 * (256 + 96 * len(schema) + Arena.bytes_per_slot(schema) + STAMP_BYTES)
