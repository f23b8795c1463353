"""One input of a join: its rows in memory, its blocks on disk, and how many rows have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.array_types import Bits, Codes, Counts, Stamps
from millrace.adaptive.disk.blocks import STAMP_BYTES, DiskBlocks, DiskState
from millrace.adaptive.memory.key_ordered_rows import KeyOrderedRows
from millrace.adaptive.memory.row_sources import SlotRows
from millrace.rows.arena import Slots
from millrace.rows.batch_builder import fixed_width

R = TypeVar("R", bound=KeyOrderedRows)


@dataclass(frozen=True)
class MemoryState:
    """Rows of one input in memory, as they are stored in a snapshot."""

    codes: Codes
    stamps: Stamps
    bits: Bits
    rows: pa.RecordBatch


@dataclass(frozen=True)
class SideState:
    """One input, as it is stored in a snapshot."""

    ended: bool
    arrived: int
    """Rows that have arrived, without those whose key is null."""
    arrived_by_partition: list[int]
    memory: MemoryState | None
    """Rows in memory; None if there are none."""
    disk: DiskState


class InputSide(Generic[R]):
    """One input of a join, with its rows in memory and on disk.

    Parameters
    ----------
    number
        Position of the input in the join. Of two inputs, the left is 0 and the right is 1.
    block
        Bytes of a block on disk.
    partitions
        Number of key-code ranges that rows on disk are divided into.
    """

    def __init__(
        self, number: int, name: str, schema: pa.Schema, memory: R, disk: DiskBlocks, block: int, partitions: int
    ) -> None:
        self.number, self.name = number, name
        self.schema, self.memory, self.disk = schema, memory, disk
        self.source = SlotRows(memory)
        self._block = block
        self._width = fixed_width(schema) + STAMP_BYTES
        self.arrived = 0
        """Rows that have arrived, without those whose key is null."""
        self.arrived_by_partition: Counts = np.zeros(partitions, np.int64)
        """Rows that have arrived per partition, without those whose key is null."""
        self.ended = False

    def count_arrived(self, rows: int, by_partition: Counts) -> None:
        """Count rows that have arrived, in total and per partition."""
        self.arrived += rows
        self.arrived_by_partition += by_partition

    def end(self) -> None:
        """Mark the input as ended: no more rows will arrive."""
        self.ended = True

    @property
    def block_rows(self) -> int:
        """Number of rows that fill a block, estimated from the average size of the rows in memory."""
        rows = len(self.memory)
        heap = self.memory.arena.heap
        held = (self.memory.arena.heap_bytes - heap.dead) / rows if rows else 0
        return max(1, int(self._block / (self._width + held)))

    def too_long(self, slots: Slots) -> bool:
        """Return whether rows take more than twice the bytes of a block; a single row never counts as too long."""
        held = self.memory.arena.bytes_of(range(len(self.schema)), slots)
        return len(slots) > 1 and len(slots) * self._width + held > 2 * self._block

    def spill(self, codes: Codes, slots: Slots, ends: list[int], departures: list[int], partition: int = 0) -> None:
        """Write rows to disk, in the given order, and free their memory; the index must not contain them any more.

        Block i ends before row ``ends[i]``, and its rows get the departure time ``departures[i]``.
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
        """Remove all rows from memory and from disk."""
        self.memory.clear()
        self.disk.clear()

    def close(self) -> None:
        """Release all memory reservations of the input."""
        self.memory.close()
        self.disk.close()

    def state(self) -> SideState:
        """Return the input's state for a snapshot: all of its rows, and how many rows have arrived."""
        codes, slots = self.memory.entries()
        memory = None
        if len(codes):
            memory = MemoryState(codes, self.memory.stamps[slots], self.memory.bits[slots], self.memory.batch(slots))
        by_partition = self.arrived_by_partition.tolist()
        return SideState(self.ended, self.arrived, by_partition, memory, self.disk.state())

    def restore(self, state: SideState) -> None:
        """Restore the input from a snapshot, except for its rows in memory, which the caller must insert."""
        self.ended, self.arrived = state.ended, state.arrived
        self.arrived_by_partition[:] = state.arrived_by_partition
        self.disk.restore(state.disk)

    def check_invariants(self) -> None:
        self.memory.check_invariants()
        self.disk.check_invariants()
        assert self.arrived == len(self.memory) + self.disk.rows, f"{self.name}: a row is not accounted for"
