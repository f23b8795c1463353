"""What is known of the blocks on disk, itself mostly on disk: pages of entries, of which two are in memory.

However much is spilled, the directory takes the memory that was reserved for it at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.adaptive.spill import BlockId, SpillArea
from millrace.core.errors import BudgetExceededError

ENTRY_BYTES = 96
"""What an entry takes in memory, without the bits of its rows."""

_FIELDS = ("id", "rows", "nbytes", "low", "high", "left")


@dataclass(slots=True)
class Block:
    """What is known of a block without reading it."""

    id: BlockId
    rows: int
    nbytes: int
    low: int
    high: int
    left: int
    """When the last of its rows left memory."""
    matched: npt.NDArray[np.uint8]
    """One bit per row that has found a partner; empty where nobody asks."""


class BlockList:
    """Entries of blocks in the order they were written.

    Parameters
    ----------
    page
        Entries of a page.
    pages
        Most pages there can be.
    tracks
        Whether entries have bits.
    """

    def __init__(self, area: SpillArea, page: int, pages: int, tracks: bool) -> None:
        self._area, self._page, self._pages, self._tracks = area, page, pages, tracks
        self._table: list[BlockId] = []
        self._tail: list[Block] = []
        self._cached: list[Block] = []
        self._number = -1
        self._changed = False
        self.rows = 0
        """Rows of all blocks."""

    @staticmethod
    def least_bytes(page: int, pages: int, block_rows: int) -> int:
        """What a list takes: the last page, one other, and where all are."""
        return 2 * page * (ENTRY_BYTES + -(-block_rows // 8)) + 8 * pages

    def fresh(self) -> BlockList:
        """An empty list of the same kind."""
        return BlockList(self._area, self._page, self._pages, self._tracks)

    def __len__(self) -> int:
        return len(self._table) * self._page + len(self._tail)

    def __getitem__(self, at: int) -> Block:
        number, inside = divmod(at, self._page)
        if number == len(self._table):
            return self._tail[inside]
        if number != self._number:
            self._write_back()
            self._cached, self._number = self._read(number), number
        return self._cached[inside]

    def __iter__(self) -> Iterator[Block]:
        for at in range(len(self)):
            yield self[at]

    def append(self, block: Block) -> None:
        """A block has been written."""
        if len(self._tail) == self._page:
            if len(self._table) >= self._pages:
                raise BudgetExceededError(
                    f"directory: there is no memory to know of more than {len(self):,} blocks; larger ones are fewer: "
                    "block="
                )
            self._table.append(self._area.write("directory", self._packed(self._tail)))
            self._tail = []
        self._tail.append(block)
        self.rows += block.rows

    def spans(self) -> npt.NDArray[np.int64]:
        """Least code, greatest code and bytes of every block, a row each."""
        return np.array([(block.low, block.high, block.nbytes) for block in self], np.int64).reshape(-1, 3)

    def change(self, at: int, block: Block) -> None:
        """Something else is known of a block now."""
        number, inside = divmod(at, self._page)
        if number == len(self._table):
            self._tail[inside] = block
        else:
            self[at]  # its page is the cached one now
            self._cached[inside] = block
            self._changed = True

    def clear(self) -> None:
        """Forget all entries; the blocks themselves are the caller's."""
        for page in self._table:
            self._area.free(page)
        self._table, self._tail, self._cached = [], [], []
        self._number, self._changed, self.rows = -1, False, 0

    def _write_back(self) -> None:
        if self._changed:
            page = self._area.write("directory", self._packed(self._cached))
            self._area.free(self._table[self._number])
            self._table[self._number] = page
            self._changed = False

    def _packed(self, blocks: list[Block]) -> list[Any]:
        fields = np.array([[getattr(block, name) for name in _FIELDS] for block in blocks], np.int64)
        return [fields, np.concatenate([block.matched for block in blocks])]

    def _read(self, number: int) -> list[Block]:
        data = self._area.read(self._table[number])
        size = self._page * len(_FIELDS) * 8
        fields = np.frombuffer(data, np.int64, size // 8).reshape(-1, len(_FIELDS))
        bits = np.frombuffer(data, np.uint8, offset=size)
        blocks, start = [], 0
        for values in fields.tolist():
            length = -(-values[1] // 8) if self._tracks else 0
            blocks.append(_block(values, bits[start : start + length]))
            start += length
        return blocks


def _block(values: list[int], bits: npt.NDArray[np.uint8]) -> Block:
    made, rows, nbytes, low, high, left = values
    return Block(BlockId(made), rows, nbytes, low, high, left, bits)
