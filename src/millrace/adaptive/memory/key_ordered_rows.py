"""The rows of one input in memory, in the order of their keys, under one memory reservation.

Each row has a slot in an arena, and an ordered index finds it by key. Memory is reserved before it is used: for slots,
chunks of the index, and strings (the *heap*).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.array_types import Bits, Codes, Order, Stamps
from millrace.adaptive.memory.row_index import ENTRY_BYTES, FreeSlots, MatchedPairs, RowIndex, Workspace
from millrace.core.budget import MemoryBudget
from millrace.core.space import Space
from millrace.kernels.ordered_map import FIRST, LAST
from millrace.rows.arena import Arena, Slots, run_of
from millrace.rows.columns import output_columns

__all__ = ["FIRST", "JOINED", "LAST", "MATCHED", "KeyOrderedRows"]

JOINED = np.uint8(1)
"""Flag of a row, set by every match and cleared by the clock algorithm."""
MATCHED = np.uint8(2)
"""Flag of a row that has matched at least one row of the other input."""

_MARKS = 8 + 1 + 4  # arrival stamp, bits, place on the stack of free slots


class KeyOrderedRows:
    """Rows of one input in memory, each in one slot, with an index that finds them by key or range of keys.

    Parameters
    ----------
    name
        Name of this part in the budget, and prefix of the names of its arrays.
    schema
        Columns of the rows.
    width
        Number of entries in a chunk of the index.
    more_bytes
        Additional bytes per row that a subclass needs.
    """

    def __init__(
        self, name: str, schema: pa.Schema, budget: MemoryBudget, space: Space, width: int, more_bytes: int = 0
    ) -> None:
        self._name, self._space, self.schema = name, space, schema
        own_bytes = Arena.bytes_per_slot(schema) + _MARKS
        self.slot_bytes = own_bytes + more_bytes
        self.capacity = max(1, min(budget.total // own_bytes, 2**31 - 2))
        self.arena = Arena(schema, self.capacity, budget.total, space, name)
        self.stamps: npt.NDArray[Any] = space.array(f"{name}.stamps", np.int64, self.capacity)
        self.bits: npt.NDArray[Any] = space.array(f"{name}.bits", np.uint8, self.capacity)
        self._slots = FreeSlots(space, name, self.capacity)
        self.index = RowIndex(space, name, budget.total, width)
        self._charged_slots = self._charged_chunks = self._heap_limit = 0
        self._budget, self._reservation = budget, budget.reserve(name)
        self.lacking = 0
        """Bytes that were missing in the budget at the last :meth:`make_room`, or 0."""

    @staticmethod
    def least_bytes(schema: pa.Schema, rows: int, width: int) -> int:
        """Return the bytes to reserve for ``rows`` rows without strings, and for their index.

        ``width`` is the number of entries in a chunk of the index.
        """
        return rows * (Arena.bytes_per_slot(schema) + _MARKS) + RowIndex.least_bytes(rows, width)

    # size

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Bytes reserved for this part."""
        return self._reservation.nbytes

    @property
    def row_bytes(self) -> float:
        """Bytes that a row takes on average, index and strings included."""
        rows = len(self)
        heap = (self.arena.heap_bytes - self.arena.heap.dead) / rows if rows else 0.0
        return self.slot_bytes + 4 / 3 * ENTRY_BYTES + heap

    @property
    def idle_bytes(self) -> int:
        """Bytes that are reserved but not used by any row; :meth:`pack` releases them."""
        slots = self._charged_slots - len(self)
        chunks = self._charged_chunks - self.index.used_chunks
        return self._cost(slots, chunks, self._heap_limit - self.arena.heap_bytes + self.arena.heap.dead)

    def _cost(self, slots: int, chunks: int, heap: int) -> int:
        return slots * self.slot_bytes + chunks * self.index.chunk_bytes + heap

    def make_room(self, codes: Codes, heap_bytes: int) -> bool:
        """Reserve memory for new rows, or return False if it exceeds the budget.

        ``codes`` holds the sorted key codes of the rows; their strings take ``heap_bytes`` bytes.
        """
        arena = self.arena
        slots = max(self._charged_slots, len(self) + len(codes))
        chunks = self.index.chunks_for(codes, self._charged_chunks)
        if slots > self.capacity or chunks > self.index.most_chunks:
            return False
        heap = max(self._heap_limit, arena.heap_bytes + heap_bytes)
        if heap > self._heap_limit and arena.heap.dead >= max(heap_bytes, arena.heap_bytes // 8):
            arena.compact_heap(self.live())
            heap = max(self._heap_limit, arena.heap_bytes + heap_bytes)
        if self._reserve(slots, chunks, heap):
            return True
        if arena.heap.dead >= heap_bytes > 0:
            arena.compact_heap(self.live())
            return self._reserve(slots, chunks, max(self._heap_limit, arena.heap_bytes + heap_bytes))
        return False

    def _reserve(self, slots: int, chunks: int, heap: int) -> bool:
        cost = self._cost(slots, chunks, heap)
        if not self._reservation.try_resize(cost):
            self.lacking = cost - self.nbytes - self._budget.available
            return False
        self.lacking = 0
        self._charged_slots, self._charged_chunks, self._heap_limit = slots, chunks, heap
        return True

    def pack(self) -> None:
        """Compact rows and index, and release unused memory. Rows may move to other slots."""
        rows, free, used = len(self), self._slots.free, self._slots.high
        low = free[free < rows]
        if len(low):
            held = np.ones(used - rows, np.bool_)
            held[free[free >= rows] - rows] = False
            high = (np.flatnonzero(held) + rows).astype(np.int32)
            self.arena.move(high, low)
            self.stamps[low] = self.stamps[high]
            self.bits[low] = self.bits[high]
            names = np.arange(used, dtype=np.int32)
            names[high] = low
            self._rename(names)
        self._slots.reset(rows)
        if self.arena.heap.dead:
            self.arena.compact_heap(np.arange(rows, dtype=np.int32))
        self.index.pack()
        self._charged_slots, self._charged_chunks = rows, self.index.used_chunks
        self._heap_limit = self.arena.heap_bytes
        self._reservation.resize(self._cost(rows, self._charged_chunks, self._heap_limit))
        self._release()

    def _rename(self, names: Slots) -> None:
        """Renumber slots after rows have moved: slot ``i`` is now ``names[i]``."""
        self.index.rename(names)

    def _release(self) -> None:
        self.arena.release(self._charged_slots)
        for array in (self.stamps, self.bits):
            self._space.release(array, self._charged_slots)
        self._slots.release(self._charged_slots)
        self.index.release(self._charged_chunks)

    def clear(self) -> None:
        """Remove all rows and release their memory."""
        self.index.clear()
        self._slots.reset(0)
        self.arena.clear()
        self.pack()

    def close(self) -> None:
        """Release the memory reservation."""
        self._reservation.release()

    # rows

    def live(self) -> Slots:
        """Return all slots that hold a row, in ascending order."""
        slots: Slots = self.entries()[1]
        slots.sort()
        return slots

    def entries(self) -> tuple[Codes, Slots]:
        """Return keys and slots of all rows, in the order of the keys."""
        return self.index.entries()

    def insert(self, codes: Codes, order: Order, columns: Sequence[pa.Array], stamps: Stamps, bits: Bits) -> Slots:
        """Store rows for which memory has been reserved, and return their slots.

        ``codes`` holds the key codes of the rows, sorted; ``order[i]`` is the number of the row with ``codes[i]``.
        """
        count = len(codes)
        assert len(self) + count <= self._charged_slots, "no memory is reserved for these rows"
        slots = self._slots.take(count)
        self.arena.store(slots, columns)
        where = run_of(slots)
        self.stamps[where] = stamps
        self.bits[where] = bits
        self.index.insert(codes, slots[order])
        assert self.arena.heap_bytes <= self._heap_limit, "no memory is reserved for these strings"
        return slots

    def matches(self, lows: Codes, highs: Codes, work: Workspace) -> Iterator[MatchedPairs]:
        """Yield pairs (i, row) in batches: row has a key from ``lows[i]`` to ``highs[i]``. Both arrays are sorted."""
        return self.index.matches(lows, highs, work)

    def forget(self, slots: Slots) -> None:
        """Free the slots of rows that have been removed from the index."""
        self.arena.drop(slots)
        self._slots.give(slots)
        self.index.tidy()

    def take_out(self, low: int, high: int, limit: int, skip: int = 0, latest: int = int(LAST)) -> tuple[Codes, Slots]:
        """Remove up to ``limit`` rows with keys from ``low`` to ``high`` from the index; return their keys and slots.

        The slots stay in use until :meth:`forget` frees them. See :meth:`RowIndex.take` for ``skip`` and ``latest``.
        """
        return self.index.take(low, high, limit, self.stamps, skip, latest)

    def sweep(self, low: int, high: int, hand: npt.NDArray[np.int64], limit: int) -> tuple[Codes, Slots]:
        """Remove up to ``limit`` rows that the clock algorithm chooses, as :meth:`RowIndex.sweep` does."""
        return self.index.sweep(low, high, hand, limit, self.stamps, self.bits)

    def below(self, key: int, equal: bool = False) -> int:
        """Return the number of rows with a key below ``key``; with ``equal``, also count the rows with that key."""
        return self.index.below(key, equal)

    def key_at(self, rank: int) -> int:
        """Return the key of the row at position ``rank`` in key order, counted from 0."""
        return self.index.key_at(rank)

    def stamps_between(self, low: int, high: int) -> Stamps:
        """Return the arrival times of the rows with a key from ``low`` to ``high``."""
        keys, slots = self.entries()
        start, stop = np.searchsorted(keys, low), np.searchsorted(keys, high, side="right")
        stamps: Stamps = self.stamps[slots[start:stop]]
        return stamps

    def between(self, low: int, high: int) -> int:
        """Count the rows with a key from ``low`` to ``high``."""
        return self.below(high, True) - self.below(low)

    def batch(self, slots: Slots) -> pa.RecordBatch:
        """Return the rows in the given slots as a record batch."""
        outputs = output_columns(self.schema, len(slots))
        for task in self.arena.gather(range(len(self.schema)), slots, outputs):
            task()
        return pa.RecordBatch.from_arrays([output.finish() for output in outputs], schema=self.schema)

    def check_invariants(self) -> None:
        broken = self.index.broken_rule(self.stamps)
        assert broken == 0, f"{self._name}: rule {broken} of the ordered index is broken"
        assert len(self) + len(self._slots) == self._slots.high <= self._charged_slots, (
            f"{self._name}: slots do not add up"
        )
        assert self.index.touched_chunks <= self._charged_chunks, f"{self._name}: chunks used but not reserved"
        assert self.arena.heap_bytes <= self._heap_limit, f"{self._name}: bytes used but not reserved"
        assert self.nbytes == self._cost(self._charged_slots, self._charged_chunks, self._heap_limit)
