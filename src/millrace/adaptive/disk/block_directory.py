"""The directory of the blocks on disk: lists of entries, one entry per block.

The directory is mostly on disk itself; of each list, two pages of entries are in memory. This memory is reserved at the
start, and does not grow with the number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.adaptive.disk.spill_files import BlockId, SpillArea
from millrace.core.errors import BudgetExceededError

Spans = npt.NDArray[np.int64]

ENTRY_BYTES = 96
"""Bytes that an entry takes in memory, without the match bits of its rows."""

_FIELDS = ("id", "rows", "nbytes", "low", "high", "left")


@dataclass(slots=True)
class BlockEntry:
    """Directory entry of a block: its number on disk, number of rows, bytes, and lowest and highest key code."""

    id: BlockId
    rows: int
    nbytes: int
    low: int
    high: int
    left: int
    """Time on the logical clock at which the last row of the block left memory."""
    matched: npt.NDArray[np.uint8]
    """One bit per row, set if the row has matched; empty if matches are not tracked."""


class BlockIds:
    """A list of block numbers in constant memory: full pages are on disk, and a second list locates them."""

    LEVELS = 4

    def __init__(self, area: SpillArea, page: int, levels: int = LEVELS) -> None:
        self._area, self._page, self._levels = area, page, levels
        self._tail: list[int] = []
        self._pages = 0
        self._above: BlockIds | None = None

    @staticmethod
    def least_bytes(page: int) -> int:
        """Return the bytes to reserve for a list of any length that stores ``page`` block numbers in a page."""
        return BlockIds.LEVELS * 2 * page * 8

    def __len__(self) -> int:
        return self._pages * self._page + len(self._tail)

    def __getitem__(self, at: int) -> BlockId:
        number, inside = divmod(at, self._page)
        return BlockId(self._tail[inside] if number == self._pages else self._read(number)[inside])

    def __setitem__(self, at: int, block: BlockId) -> None:
        number, inside = divmod(at, self._page)
        if number == self._pages:
            self._tail[inside] = block
            return
        assert self._above is not None
        numbers = self._read(number)
        numbers[inside] = block
        old = self._above[number]
        self._above[number] = self._write(numbers)
        self._area.free(old)

    def append(self, block: BlockId) -> None:
        """Append the number of a block."""
        if len(self._tail) == self._page:
            if self._above is None:
                if self._levels == 1:
                    raise BudgetExceededError(
                        "directory: there are more blocks on disk than the directory can list; set larger blocks with "
                        "block="
                    )
                self._above = BlockIds(self._area, self._page, self._levels - 1)
            self._above.append(self._write(self._tail))
            self._pages += 1
            self._tail = []
        self._tail.append(block)

    def clear(self) -> None:
        """Remove all block numbers from the list, and free the pages on disk that held them."""
        if self._above is not None:
            for at in range(len(self._above)):
                self._area.free(self._above[at])
            self._above.clear()
        self._tail, self._pages, self._above = [], 0, None

    def _write(self, numbers: list[int]) -> BlockId:
        return self._area.write("directory", [np.array(numbers, np.int64)])

    def _read(self, number: int) -> list[int]:
        assert self._above is not None
        numbers: list[int] = np.frombuffer(self._area.read(self._above[number]), np.int64).tolist()
        return numbers


class BlockList:
    """Directory entries of blocks, in the order in which the blocks were written.

    Parameters
    ----------
    page
        Number of entries in a page.
    fan
        Number of block numbers in a page of the list that locates the pages of entries.
    tracks
        Whether entries record which rows of the block have matched.
    """

    def __init__(self, area: SpillArea, page: int, fan: int, tracks: bool) -> None:
        self._area, self._page, self._fan, self.tracks = area, page, fan, tracks
        self._table = BlockIds(area, fan)
        self._pages = 0
        self._tail: list[BlockEntry] = []
        self._cached: list[BlockEntry] = []
        self._number = -1
        self._changed = False
        self.rows = 0
        """Number of rows in all blocks."""

    @staticmethod
    def least_bytes(page: int, fan: int, block_rows: int) -> int:
        """Return the bytes to reserve for a list: two pages of entries, and the list that locates the pages on disk.

        ``page`` and ``fan`` are those of the class. ``block_rows`` is the largest number of rows in a block, each with
        a match bit; 0 if matches are not tracked.
        """
        return 2 * page * (ENTRY_BYTES + -(-block_rows // 8)) + BlockIds.least_bytes(fan)

    def fresh(self) -> BlockList:
        """Return an empty list with the same page sizes."""
        return BlockList(self._area, self._page, self._fan, self.tracks)

    def __len__(self) -> int:
        return self._pages * self._page + len(self._tail)

    def __getitem__(self, at: int) -> BlockEntry:
        number, inside = divmod(at, self._page)
        if number == self._pages:
            return self._tail[inside]
        if number != self._number:
            self._write_back()
            self._cached, self._number = self._read(number), number
        return self._cached[inside]

    def __iter__(self) -> Iterator[BlockEntry]:
        for at in range(len(self)):
            yield self[at]

    def append(self, block: BlockEntry) -> None:
        """Add the entry of a block that has been written."""
        if len(self._tail) == self._page:
            self._table.append(self._area.write("directory", self._packed(self._tail)))
            self._pages += 1
            self._tail = []
        self._tail.append(block)
        self.rows += block.rows

    def spans(self, since: int = 0, until: int = 2**63 - 1) -> Spans:
        """Return an array with one row for each block that left memory after ``since`` and no later than ``until``.

        The columns are lowest code, highest code, bytes, block number, rows, and position in this list.
        """
        known = [
            (block.low, block.high, block.nbytes, block.id, block.rows, at)
            for at, block in enumerate(self)
            if since < block.left <= until
        ]
        return np.array(known, np.int64).reshape(-1, 6)

    def change(self, at: int, block: BlockEntry) -> None:
        """Replace the entry at position ``at`` in the list."""
        number, inside = divmod(at, self._page)
        if number == self._pages:
            self._tail[inside] = block
        else:
            self[at]  # reads the entry's page into the cache
            self._cached[inside] = block
            self._changed = True

    def clear(self) -> None:
        """Remove all entries. The blocks themselves are freed by the caller."""
        for at in range(self._pages):
            self._area.free(self._table[at])
        self._table.clear()
        self._pages, self._tail, self._cached = 0, [], []
        self._number, self._changed, self.rows = -1, False, 0

    def _write_back(self) -> None:
        if self._changed:
            page = self._area.write("directory", self._packed(self._cached))
            old = self._table[self._number]
            self._table[self._number] = page
            self._area.free(old)
            self._changed = False

    def _packed(self, blocks: list[BlockEntry]) -> list[Any]:
        fields = np.array([[getattr(block, name) for name in _FIELDS] for block in blocks], np.int64)
        return [fields, np.concatenate([block.matched for block in blocks])]

    def _read(self, number: int) -> list[BlockEntry]:
        data = self._area.read(self._table[number])
        size = self._page * len(_FIELDS) * 8
        fields = np.frombuffer(data, np.int64, size // 8).reshape(-1, len(_FIELDS))
        bits = np.frombuffer(data, np.uint8, offset=size)
        blocks, start = [], 0
        for values in fields.tolist():
            length = -(-values[1] // 8) if self.tracks else 0
            blocks.append(_block(values, bits[start : start + length]))
            start += length
        return blocks


def _block(values: list[int], bits: npt.NDArray[np.uint8]) -> BlockEntry:
    made, rows, nbytes, low, high, left = values
    return BlockEntry(BlockId(made), rows, nbytes, low, high, left, bits)
