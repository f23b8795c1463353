"""One input of the join: its rows in memory, its blocks on disk, and how far it has come."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.disk.blocks import STAMP_BYTES, Disk
from millrace.adaptive.memory.pair_output import MemorySource
from millrace.adaptive.memory.sorted_rows import Codes, SortedRows, Stamps
from millrace.adaptive.pair.pair_spec import SIDES
from millrace.rows.arena import Slots
from millrace.rows.batch_builder import fixed_width


class Side:
    """Everything the join knows of one of its inputs.

    Parameters
    ----------
    number
        0 for the left input, 1 for the right one.
    block
        Bytes of a block on disk.
    """

    def __init__(
        self,
        number: int,
        schema: pa.Schema,
        memory: SortedRows,
        disk: Disk,
        block: int,
        partitions: int,
        name: str | None = None,
    ) -> None:
        self.number, self.name = number, SIDES[number] if name is None else name
        self.schema, self.memory, self.disk = schema, memory, disk
        self.source = MemorySource(memory)
        self._block = block
        self._width = fixed_width(schema) + STAMP_BYTES
        self.arrived = 0
        """Rows that have come, without those whose key is null."""
        self.came = np.zeros(partitions, np.int64)
        """The same by partition."""
        self.ended = False

    @property
    def block_rows(self) -> int:
        """Rows that make a block, by what a row holds on average."""
        rows = len(self.memory)
        heap = self.memory.arena.heap
        held = (self.memory.arena.heap_bytes - heap.dead) / rows if rows else 0
        return max(1, int(self._block / (self._width + held)))

    def too_long(self, slots: Slots) -> bool:
        """Whether rows, more than one, hold far more than a block should."""
        held = self.memory.arena.bytes_of(range(len(self.schema)), slots)
        return len(slots) > 1 and len(slots) * self._width + held > 2 * self._block

    def spill(self, codes: Codes, slots: Slots, ends: list[int], departures: list[int], partition: int = 0) -> None:
        """Write rows, which the index has given out, in this order; they are gone from memory.

        Blocks end before the rows ``ends``, and each has its own time of departure.
        """
        memory, home = self.memory, self.disk.partitions[partition]
        counts = np.diff(ends, prepend=0)
        stamps: Stamps = np.empty((2, len(codes)), np.int64)
        stamps[0], stamps[1] = memory.stamps[slots], np.repeat(departures, counts)
        bits: npt.NDArray[Any] = memory.bits[slots]
        rows = memory.batch(slots)
        for end, count in zip(ends, counts.tolist(), strict=True):
            block = slice(end - count, end)
            self.disk.write(home, codes[block], stamps[:, block], rows.slice(block.start, count), bits[block])
        memory.forget(slots)

    def clear(self) -> None:
        """Forget everything."""
        self.memory.clear()
        self.disk.clear()

    def close(self) -> None:
        """Give the reservations back."""
        self.memory.close()
        self.disk.close()

    def check_invariants(self) -> None:
        self.memory.check_invariants()
        self.disk.check_invariants()
        assert self.arrived == len(self.memory) + self.disk.rows, f"{self.name}: a row is not accounted for"
