"""How a join divides its budget before it has seen any row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from millrace.adaptive.disk.block_directory import ENTRY_BYTES, BlockIds, BlockList
from millrace.adaptive.disk.blocks import STAMP_BYTES
from millrace.adaptive.memory.sorted_rows import Workspace
from millrace.adaptive.pair.pair_algorithms import Algorithm
from millrace.core.errors import ConfigError
from millrace.core.sizes import format_size
from millrace.rows.arena import Arena

_LEAST_ROW = 16  # bytes of a row on disk, at least
_ROW_WORK = 64  # codes, order, stamps, ranges and bits of a row that is being taken in


@dataclass(frozen=True)
class Sizes:
    """Sizes of the parts that do not hold rows, and how many rows are taken in at a time."""

    LEAST_WIDTH: ClassVar[int] = 8
    LEAST_BLOCK: ClassVar[int] = 256
    LEAST_PAIRS: ClassVar[int] = 16
    LEAST_PAGE: ClassVar[int] = 2
    LEAST_FAN: ClassVar[int] = 8

    total: int
    width: int
    """Entries of a chunk of the index."""
    block: int
    """Bytes of a block on disk."""
    transfer: int
    """Bytes for blocks on their way from and to disk."""
    pairs: int
    """Pairs of rows that are looked at together."""
    piece: int
    """Rows that are taken in at a time."""
    page: int
    """Entries of a page of the directory of blocks."""
    fan: int
    """Numbers of a page that says where those are."""
    least: int
    """The least budget there could be, without what depends on the columns."""
    pair_bytes: int = Workspace.bytes_per_pair
    """Bytes of such a pair."""

    @staticmethod
    def of(total: int, block: int | None, outer_blocks: int, algorithm: Algorithm, inputs: int = 2) -> Sizes:
        """Divide ``total`` bytes.

        >>> from millrace.adaptive.pair.pair_algorithms import ALGORITHMS
        >>> sizes = Sizes.of(5_000_000, None, 19, ALGORITHMS["diner"])
        >>> sizes.block, sizes.transfer / sizes.total < 0.1
        (39062, True)
        """
        if block is not None and block < Sizes.LEAST_BLOCK:
            raise ConfigError(f"block: expected at least {Sizes.LEAST_BLOCK} bytes; got {format_size(block)}")
        spills, lists = algorithm.spills, inputs * algorithm.partitions
        given = Sizes.LEAST_BLOCK if block is None else block
        usual = max(Sizes.LEAST_BLOCK, min(4096, total // 16 // inputs), min(1_000_000, total // 128))
        size = usual if block is None else block
        outer = max(1, min(outer_blocks, total // 32 // size))
        transfer = (2 * outer + 2 * inputs) * size if spills else 0
        rest = total if block is None else max(0, total - transfer)  # a block that was asked for may be most of it
        page = max(Sizes.LEAST_PAGE, min(64, rest // 16 // lists // (2 * ENTRY_BYTES)))
        fan = max(Sizes.LEAST_FAN, min(64, rest // 64 // BlockIds.least_bytes(1) // lists))
        rows = max(64, given // _LEAST_ROW)
        directory = lists * BlockList.least_bytes(Sizes.LEAST_PAGE, Sizes.LEAST_FAN, rows) if spills else 0
        piece = max(1, min(65_536, rest // 32 // _ROW_WORK))
        pairs = max(Sizes.LEAST_PAIRS, min(65_536, rest // 32 // Workspace.bytes_per_pair))
        work = _ROW_WORK + Sizes.LEAST_PAIRS * Workspace.bytes_per_pair
        return Sizes(
            total,
            max(Sizes.LEAST_WIDTH, min(256, total // 16_384)),
            size,
            transfer,
            pairs,
            piece,
            page,
            fan,
            ((2 + 2 * inputs) * given if spills else 0) + directory + work + 1024,
        )

    def of_combinations(self, inputs: int) -> Sizes:
        """The same for combinations of rows that grow by one input at a time: there are some at each step.

        A result needs rows of all inputs in memory together, so more is left to rows than of two inputs.

        >>> from millrace.adaptive.pair.pair_algorithms import ALGORITHMS
        >>> sizes = Sizes.of(224_400, 1_000, 19, ALGORITHMS["diner"], 4).of_combinations(4)
        >>> (sizes.transfer + sizes.work) / sizes.total < 0.09
        True
        """
        each = (inputs - 1) * (Workspace.bytes_per_pair + 48 + 4 * inputs)
        outer = (self.transfer // self.block - 2 * inputs) // 2
        spare = 2 * max(0, outer - max(1, self.total // 128 // self.block)) * self.block
        return replace(
            self,
            transfer=self.transfer - spare,
            pairs=max(Sizes.LEAST_PAIRS, min(65_536, self.total // 32 // each)),
            pair_bytes=each,
            piece=max(1, min(16_384, self.total // 128 // _ROW_WORK)),
            least=self.least + Sizes.LEAST_PAIRS * each,
        )

    @property
    def work(self) -> int:
        """Bytes for rows on their way in, and for pairs."""
        return self.piece * _ROW_WORK + self.pairs * self.pair_bytes

    @staticmethod
    def buffers(schema: pa.Schema, spills: bool) -> int:
        """What a block takes beyond its rows, or for one row that is longer than a block."""
        return 4 * (256 + 96 * len(schema) + Arena.bytes_per_slot(schema) + STAMP_BYTES) if spills else 0
