"""The rows of one input that are in memory, in the order of their keys, inside one reservation.

Rows are in slots of an arena; an ordered index finds them by key. Every byte that can be touched is reserved first:
slots up to the high-water mark, chunks of the index, heap bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.array_types import Bits, Codes, Order, Stamps
from millrace.core.budget import MemoryBudget
from millrace.core.lanes import Task
from millrace.core.space import Space
from millrace.kernels import ordered_map as ordered
from millrace.kernels.ordered_map import FIRST, HIGH, LAST, LIVE, SPARE, USED, Ordered
from millrace.rows.arena import Arena, Slots, run_of
from millrace.rows.columns import OutputColumn, output_columns

JOINED = np.uint8(1)
"""The join bit: the clock clears it, a match sets it."""
MATCHED = np.uint8(2)
"""The row has come out in a pair, or is known to have a partner."""

_MARKS = 8 + 1 + 4  # arrival stamp, bits, place on the stack of free slots
_ENTRY = 8 + 4
_CHUNK = 4 + 4 + 8 + 4


class MatchedPairs(NamedTuple):
    """Rows that match rows in memory: positions in the batch, slots, and the keys at the slots."""

    rows: npt.NDArray[np.int32]
    slots: Slots
    keys: Codes


class Workspace:
    """Arrays that matches are written to, a few at a time."""

    bytes_per_pair = 4 + 4 + 8

    def __init__(self, pairs: int) -> None:
        self.rows = np.empty(pairs, np.int32)
        self.slots = np.empty(pairs, np.int32)
        self.keys = np.empty(pairs, np.int64)


def ordered_arrays(space: Space, name: str, chunks: int, width: int) -> Ordered:
    """Return an empty index with room for so many chunks."""
    keys: npt.NDArray[Any] = space.array(f"{name}.keys", np.int64, chunks * width)
    slots: npt.NDArray[Any] = space.array(f"{name}.slots", np.int32, chunks * width)
    counts: npt.NDArray[Any] = space.array(f"{name}.counts", np.int32, chunks)
    order: npt.NDArray[Any] = space.array(f"{name}.order", np.int32, chunks)
    spare: npt.NDArray[Any] = space.array(f"{name}.spare", np.int32, chunks)
    lows: npt.NDArray[Any] = space.array(f"{name}.lows", np.int64, chunks)
    grid = (chunks, width)
    return Ordered(keys.reshape(grid), slots.reshape(grid), counts, order, lows, spare, np.zeros(4, np.int64))


class KeyOrderedRows:
    """Rows in slots, found by key and by range of keys.

    Parameters
    ----------
    name
        The part's name in the budget, and of its arrays in the space.
    schema
        Columns kept per row.
    width
        Entries of a chunk of the index.
    """

    def __init__(self, name: str, schema: pa.Schema, budget: MemoryBudget, space: Space, width: int) -> None:
        self._name, self._space, self.schema, self.width = name, space, schema, width
        self.slot_bytes = Arena.bytes_per_slot(schema) + _MARKS
        self._chunk_bytes = width * _ENTRY + _CHUNK
        self.capacity = max(1, min(budget.total // self.slot_bytes, 2**31 - 2))
        chunks = budget.total // self._chunk_bytes + 2
        self.arena = Arena(schema, self.capacity, budget.total, space, name)
        self.stamps: npt.NDArray[Any] = space.array(f"{name}.stamps", np.int64, self.capacity)
        self.bits: npt.NDArray[Any] = space.array(f"{name}.bits", np.uint8, self.capacity)
        self._free: npt.NDArray[Any] = space.array(f"{name}.free", np.int32, self.capacity)
        self._frees = self._high = 0
        self.index = ordered_arrays(space, name, chunks, width)
        self._chunks = chunks
        self._charged_slots = self._charged_chunks = self._heap_limit = 0
        self._budget, self._reservation = budget, budget.reserve(name)
        self.lacking = 0
        """Bytes that the last :meth:`make_room` did not get."""

    @staticmethod
    def least_bytes(schema: pa.Schema, rows: int, width: int) -> int:
        """Return the bytes that a few rows without strings take."""
        chunks = rows // max(1, width // 2) + 2
        return rows * (Arena.bytes_per_slot(schema) + _MARKS) + chunks * (width * _ENTRY + _CHUNK)

    # size

    def __len__(self) -> int:
        return int(self.index.state[LIVE])

    @property
    def nbytes(self) -> int:
        """Bytes reserved for this part."""
        return self._reservation.nbytes

    @property
    def row_bytes(self) -> float:
        """Bytes that a row takes on average, index and strings included."""
        rows = len(self)
        heap = (self.arena.heap_bytes - self.arena.heap.dead) / rows if rows else 0.0
        return self.slot_bytes + 4 / 3 * _ENTRY + heap

    @property
    def idle_bytes(self) -> int:
        """Reserved bytes that no row uses: :meth:`pack` gives them back."""
        slots = self._charged_slots - len(self)
        chunks = self._charged_chunks - int(self.index.state[USED])
        heap = self._heap_limit - self.arena.heap_bytes + self.arena.heap.dead
        return slots * self.slot_bytes + chunks * self._chunk_bytes + heap

    def _cost(self, slots: int, chunks: int, heap: int) -> int:
        return slots * self.slot_bytes + chunks * self._chunk_bytes + heap

    def make_room(self, codes: Codes, heap_bytes: int) -> bool:
        """Reserve memory for rows of these sorted codes; return False if the budget does not allow it."""
        arena, index = self.arena, self.index
        slots = max(self._charged_slots, len(self) + len(codes))
        free = int(index.state[SPARE]) + self._charged_chunks - int(index.state[HIGH])
        chunks = self._charged_chunks + max(0, ordered.chunks_needed(index, codes) - free)
        if slots > self.capacity or chunks > self._chunks:
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
        """Move rows and chunks together and release the rest. Slot numbers held elsewhere are void afterwards."""
        rows, index = len(self), self.index
        free = self._free[: self._frees]
        low = free[free < rows]
        if len(low):
            held = np.ones(self._high - rows, np.bool_)
            held[free[free >= rows] - rows] = False
            high = (np.flatnonzero(held) + rows).astype(np.int32)
            self.arena.move(high, low)
            self.stamps[low] = self.stamps[high]
            self.bits[low] = self.bits[high]
            names = np.arange(self._high, dtype=np.int32)
            names[high] = low
            self._rename(names)
        self._frees, self._high = 0, rows
        if self.arena.heap.dead:
            self.arena.compact_heap(np.arange(rows, dtype=np.int32))
        ordered.pack(index)
        self._charged_slots, self._charged_chunks = rows, int(index.state[USED])
        self._heap_limit = self.arena.heap_bytes
        self._reservation.resize(self._cost(rows, self._charged_chunks, self._heap_limit))
        self._release()

    def _rename(self, names: Slots) -> None:
        """Renumber slots after rows have moved: slot ``i`` is ``names[i]`` now."""
        ordered.rename(self.index, names)

    def _release(self) -> None:
        self.arena.release(self._charged_slots)
        for array in (self.stamps, self.bits, self._free):
            self._space.release(array, self._charged_slots)
        index = self.index
        for array in (index.keys.reshape(-1), index.slots.reshape(-1)):
            self._space.release(array, self._charged_chunks * self.width)

    def clear(self) -> None:
        """Remove all rows and release their memory."""
        self.index.state[:] = 0
        self._frees = self._high = 0
        self.arena.clear()
        self.pack()

    def close(self) -> None:
        """Release the reservation."""
        self._reservation.release()

    # rows

    def live(self) -> Slots:
        """Return all slots with a row, ascending."""
        slots: Slots = self.entries()[1]
        slots.sort()
        return slots

    def entries(self) -> tuple[Codes, Slots]:
        """Return keys and slots of all rows, in the order of the keys."""
        keys, slots = np.empty(len(self), np.int64), np.empty(len(self), np.int32)
        ordered.entries(self.index, keys, slots)
        return keys, slots

    def insert(self, codes: Codes, order: Order, columns: Sequence[pa.Array], stamps: Stamps, bits: Bits) -> Slots:
        """Store rows whose sorted codes are ``codes``, and return their slots. Room must have been made."""
        count = len(codes)
        assert len(self) + count <= self._charged_slots, "insert without room"
        slots = np.empty(count, np.int32)
        reused = min(count, self._frees)
        slots[:reused] = self._free[self._frees - reused : self._frees]
        slots[reused:] = np.arange(self._high, self._high + count - reused, dtype=np.int32)
        self._frees -= reused
        self._high += count - reused
        self.arena.store(slots, columns)
        where = run_of(slots)
        self.stamps[where] = stamps
        self.bits[where] = bits
        ordered.insert(self.index, codes, slots[order])
        assert self.arena.heap_bytes <= self._heap_limit, "bytes without room"
        return slots

    def matches(self, lows: Codes, highs: Codes, work: Workspace) -> Iterator[MatchedPairs]:
        """Yield rows with a key from ``lows[i]`` to ``highs[i]``, which ascend, a few pairs at a time."""
        cursor = np.array([0, 0, 0, -1], np.int64)
        while cursor[0] < len(lows):
            made = ordered.matches(self.index, lows, highs, cursor, work.rows, work.slots, work.keys)
            if made:
                yield MatchedPairs(work.rows[:made], work.slots[:made], work.keys[:made])

    def forget(self, slots: Slots) -> None:
        """Free the slots of rows that have been taken out of the index."""
        self.arena.drop(slots)
        self._free[self._frees : self._frees + len(slots)] = slots
        self._frees += len(slots)
        ordered.tidy(self.index)

    def take_out(self, low: int, high: int, limit: int, skip: int = 0, latest: int = int(LAST)) -> tuple[Codes, Slots]:
        """Remove entries from ``low`` to ``high`` from the index, in order; their rows stay until :meth:`forget`."""
        limit = min(limit, len(self))
        keys, slots = np.empty(limit, np.int64), np.empty(limit, np.int32)
        made = ordered.take(
            self.index, np.int64(low), np.int64(high), skip, limit, self.stamps, np.int64(latest), keys, slots
        )
        return keys[:made], slots[:made]

    def sweep(self, low: int, high: int, hand: npt.NDArray[np.int64], limit: int) -> tuple[Codes, Slots]:
        """Remove entries as :meth:`take_out` does, but those that the clock algorithm chooses."""
        limit = min(limit, len(self))
        keys, slots = np.empty(limit, np.int64), np.empty(limit, np.int32)
        made = ordered.sweep(
            self.index, np.int64(low), np.int64(high), hand, limit, self.stamps, self.bits, keys, slots
        )
        return keys[:made], slots[:made]

    def below(self, key: int, equal: bool = False) -> int:
        """Count the rows with a key below this one; with ``equal``, those with this key too."""
        return int(ordered.below(self.index, np.int64(key), equal))

    def key_at(self, rank: int) -> int:
        """Return the key of the row of this rank."""
        return int(ordered.key_at(self.index, rank))

    def stamps_between(self, low: int, high: int) -> Stamps:
        """Return when the rows with a key from ``low`` to ``high`` arrived."""
        keys, slots = self.entries()
        start, stop = np.searchsorted(keys, low), np.searchsorted(keys, high, side="right")
        stamps: Stamps = self.stamps[slots[start:stop]]
        return stamps

    def between(self, low: int, high: int) -> int:
        """Count the rows with a key from ``low`` to ``high``."""
        return self.below(high, True) - self.below(low)

    def gather(self, columns: Sequence[int], slots: Slots, outputs: Sequence[OutputColumn]) -> list[Task]:
        """Return tasks, one per column, that append the given columns of rows to output columns."""
        return self.arena.gather(columns, slots, outputs)

    def batch(self, slots: Slots) -> pa.RecordBatch:
        """Return whole rows."""
        outputs = output_columns(self.schema, len(slots))
        for task in self.arena.gather(range(len(self.schema)), slots, outputs):
            task()
        return pa.RecordBatch.from_arrays([output.finish() for output in outputs], schema=self.schema)

    def check_invariants(self) -> None:
        broken = ordered.check(self.index, self.stamps)
        assert broken == 0, f"{self._name}: rule {broken} of the ordered index is broken"
        assert len(self) + self._frees == self._high <= self._charged_slots, f"{self._name}: slots do not add up"
        assert int(self.index.state[HIGH]) <= self._charged_chunks, f"{self._name}: chunks used but not reserved"
        assert self.arena.heap_bytes <= self._heap_limit, f"{self._name}: bytes used but not reserved"
        assert self.nbytes == self._cost(self._charged_slots, self._charged_chunks, self._heap_limit)


__all__ = ["FIRST", "JOINED", "LAST", "MATCHED", "KeyOrderedRows", "MatchedPairs", "Workspace", "ordered_arrays"]
