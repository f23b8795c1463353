"""Rows in memory by key: a multimap and an arena over the same slots, inside one reservation.

The waiting room keeps stream rows in one :class:`KeyedRows`, a cache keeps master rows in another. All memory is
reserved before it is used: slots up to the high-water mark, the directory of the multimap, the heap of the arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.lanes import Task
from millrace.core.space import Space
from millrace.kernels import groups, multimap
from millrace.kernels.multimap import HIGH, LIVE, RINGS, SLOT, Multimap
from millrace.rows.arena import Arena, Slots
from millrace.rows.columns import FixedColumn, OutputColumn, output_column

Codes = npt.NDArray[np.int64]

_DIRECTORY_BYTES = 4
_LOAD = 2.0  # directory places per slot; removal searches for the next empty place


def _places(slots: int) -> int:
    return int(slots * _LOAD) + 2


class KeyedRows:
    """Rows at slots, found by key code; several rows may share a code.

    Parameters
    ----------
    name
        The part's name in the budget, and of its arrays in the space.
    schema
        Columns of the rows.
    marks
        Further values that the owner keeps for each slot: their names and dtypes. The arrays are in :attr:`marks`.
    code_column
        A column of ``schema`` whose 64-bit values are the key codes themselves; it is not stored twice.
    beside
        Bytes per slot that the owner keeps elsewhere and that are charged to this reservation.
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        budget: MemoryBudget,
        space: Space,
        marks: Mapping[str, npt.DTypeLike],
        code_column: int | None = None,
        beside: int = 0,
    ) -> None:
        self._name = name
        self._space = space
        self._code_column = code_column
        self._stored = [i for i in range(len(schema)) if i != code_column]
        self._place = {column: place for place, column in enumerate(self._stored)}
        self._schema = schema
        kept = pa.schema([schema.field(i) for i in self._stored])
        self.slot_bytes = self.bytes_per_slot(schema, marks, code_column, beside)
        """Bytes that a row takes, without its bytes in the heap and its share of the directory."""
        self.capacity = max(1, min(budget.total // self.slot_bytes, 2**31 - 2))
        self.arena = Arena(kept, self.capacity, budget.total, space, name)
        self.marks: dict[str, npt.NDArray[Any]] = {
            mark: space.array(f"{name}.{mark}", dtype, self.capacity) for mark, dtype in marks.items()
        }
        self._directory: npt.NDArray[Any] = space.array(f"{name}.directory", np.int32, _places(self.capacity))
        self._arrays: tuple[npt.NDArray[Any], ...] = (
            space.array(f"{name}.slots", SLOT, self.capacity),
            np.zeros(4, np.int64),
        )
        self._charged_slots = 0
        self._heap_limit = 0
        self._reservation = budget.reserve(name)
        self._budget = budget
        self._aim(_places(0))
        multimap.clear(self.map)
        self._reservation.resize(self._cost(0, 0))

    @staticmethod
    def bytes_per_slot(
        schema: pa.Schema, marks: Mapping[str, npt.DTypeLike], code_column: int | None = None, beside: int = 0
    ) -> int:
        """Return the bytes of a slot, which holds one row of this schema.

        Bytes of strings in the heap, and places in the multimap's directory, are not included.
        """
        kept = pa.schema([field for i, field in enumerate(schema) if i != code_column])
        extra = sum(np.dtype(dtype).itemsize for dtype in marks.values())
        return SLOT.itemsize + beside + extra + Arena.bytes_per_slot(kept)

    @staticmethod
    def fixed_bytes_per_row(
        schema: pa.Schema, marks: Mapping[str, npt.DTypeLike], code_column: int | None = None, beside: int = 0
    ) -> float:
        """Return the bytes that a row of this schema takes, not counting those in the heap."""
        return KeyedRows.bytes_per_slot(schema, marks, code_column, beside) + _LOAD * _DIRECTORY_BYTES

    def _aim(self, places: int) -> None:
        """Use the first ``places`` places of the directory from now on."""
        self.map = Multimap(self._directory[:places], *self._arrays)

    def _cost(self, slots: int, heap: int) -> int:
        return slots * self.slot_bytes + _places(slots) * _DIRECTORY_BYTES + heap

    # size

    def __len__(self) -> int:
        return int(self.map.state[LIVE])

    @property
    def keys(self) -> int:
        """Number of distinct key codes."""
        return int(self.map.state[RINGS])

    @property
    def nbytes(self) -> int:
        """Bytes reserved for these rows."""
        return self._reservation.nbytes

    @property
    def row_bytes(self) -> float:
        """Bytes that a row takes on average, including heap and directory."""
        rows = len(self)
        heap = (self.arena.heap_bytes - self.arena.heap.dead) / rows if rows else 0.0
        return self.fixed_row_bytes + heap

    @property
    def fixed_row_bytes(self) -> float:
        """Bytes that a row takes, without the contents of its strings, binary values and nested values."""
        return self.slot_bytes + _LOAD * _DIRECTORY_BYTES

    def make_room(self, rows: int, heap_bytes: int = 0, *, exact: bool = False, slack: int = 0) -> bool:
        """Reserve memory for ``rows`` more rows; return False if the budget has too little left. No rows are removed.

        If not ``exact``, memory for some later rows is reserved too, if the budget has enough. If the heap has to grow,
        it may be compacted instead, provided that removed rows take ``slack`` bytes or more in it. If the budget has
        too little left, the heap is always compacted.
        """
        arena = self.arena
        slots = max(self._charged_slots, len(self) + rows)
        if slots > self.capacity:
            return False
        if arena.heap.dead >= max(heap_bytes, slack) and arena.heap_bytes + heap_bytes > self._heap_limit:
            arena.compact_heap(self.live())
        ample = min(slots + slots // 8 + 16, self.capacity) if slots > self._charged_slots and not exact else slots
        for wanted in (ample, slots):
            if self._reserve(wanted, max(self._heap_limit, arena.heap_bytes + heap_bytes)):
                return True
        if arena.heap.dead:
            arena.compact_heap(self.live())
            return self._reserve(slots, max(self._heap_limit, arena.heap_bytes + heap_bytes))
        return False

    def _reserve(self, slots: int, heap: int) -> bool:
        """Set the reservation to this many slots and heap bytes; return False if the budget has too little left."""
        if slots == self._charged_slots and heap == self._heap_limit:
            return True
        if not self._reservation.try_resize(self._cost(slots, heap)):
            return False
        self._charge(slots, heap)
        return True

    def _charge(self, slots: int, heap: int) -> None:
        self._charged_slots, self._heap_limit = slots, heap
        if _places(slots) != len(self.map.directory):
            self._aim(_places(slots))
            multimap.rebuild(self.map)

    def trim(self) -> None:
        """Give back memory that no row uses; later rows take the lowest free slots first. O(slots)."""
        if self.arena.heap.dead:
            self.arena.compact_heap(self.live())
        high = multimap.trim(self.map)
        heap = self.arena.heap_bytes
        if high < self._charged_slots or heap < self._heap_limit:
            self._charge(high, heap)
            self._reservation.resize(self._cost(high, heap))
            self._release(high)

    def _release(self, start: int) -> None:
        self.arena.release(start)
        self._space.release(self._directory, len(self.map.directory))
        for array in (self._arrays[0], *self.marks.values()):
            self._space.release(array, start)

    def clear(self) -> None:
        """Remove all rows and give their memory back."""
        multimap.clear(self.map)
        self.arena.clear()
        self.trim()

    def longest(self, columns: Sequence[int]) -> int:
        """Return an upper bound of the bytes that any row so far takes in the given string and binary columns."""
        return self.arena.longest([self._place[i] for i in columns if i != self._code_column])

    def bytes_of(self, columns: Sequence[int], slots: Slots) -> int:
        """Return the total bytes of the strings and binary values in the given columns of the rows at ``slots``."""
        return self.arena.bytes_of([self._place[i] for i in columns if i != self._code_column], slots)

    def pack(self) -> None:
        """Move rows from high slots into free low ones and trim. Slot numbers held elsewhere are invalid afterwards."""
        rows = len(self)
        live = self.live()
        high = live[live >= rows]
        if len(high):
            low = np.setdiff1d(np.arange(rows, dtype=np.int32), live[live < rows], assume_unique=True)
            low = low.astype(np.int32)
            self.arena.move(high, low)
            for mark in self.marks.values():
                mark[low] = mark[high]
            slots = self.map.slots
            slots[low] = slots[high]
            goes_to = np.arange(int(self.map.state[HIGH]), dtype=np.int32)
            goes_to[high] = low
            slots["next"][:rows] = goes_to[slots["next"][:rows]]
            slots["count"][high] = 0
            multimap.trim(self.map)
            multimap.rebuild(self.map)
        self.trim()

    # rows

    def live(self) -> Slots:
        """Return all slots with a row, ascending."""
        out = np.empty(len(self), np.int32)
        multimap.live_slots(self.map, out)
        return out

    def insert(self, codes: Codes, columns: Sequence[pa.Array]) -> tuple[Slots, npt.NDArray[np.int32]]:
        """Store rows; return the slot of each, and how many rows its code has now. Call :meth:`make_room` first."""
        assert len(self) + len(codes) <= self._charged_slots, "insert: call make_room for these rows first"
        slots, counts = self._take_slots(codes)
        self.arena.store(slots, [columns[i] for i in self._stored])
        assert self.arena.heap_bytes <= self._heap_limit, "insert: call make_room for these heap bytes first"
        return slots, counts

    def insert_codes(self, codes: Codes) -> tuple[Slots, npt.NDArray[np.int32]]:
        """Take a slot for each code, to :meth:`fill` later; return the slots, and how many rows each code has now."""
        slots, counts = self._take_slots(codes)
        self.arena.blank(slots)
        return slots, counts

    def _take_slots(self, codes: Codes) -> tuple[Slots, npt.NDArray[np.int32]]:
        slots = np.empty(len(codes), np.int32)
        counts = np.empty(len(codes), np.int32)
        multimap.insert(self.map, codes, slots, counts)
        return slots, counts

    def fill(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        """Write rows to slots that :meth:`insert_codes` has taken."""
        self.arena.store(slots, [columns[i] for i in self._stored])

    def remove(self, slots: Slots) -> int:
        """Remove the rows at ``slots``. O(1) for the oldest row of a code.

        Return the sum, over all removed rows, of the number of rows that had the same code just before the removal.
        """
        self.arena.drop(slots)
        return multimap.remove(self.map, slots)

    def oldest(self, codes: Codes) -> Slots:
        """Return the oldest slot of each code, or -1 if it has none."""
        out = np.empty(len(codes), np.int32)
        multimap.oldest(self.map, codes, out)
        return out

    def newest(self, codes: Codes) -> Slots:
        """Return the newest slot of each code, or -1 if it has none."""
        out = np.empty(len(codes), np.int32)
        multimap.newest(self.map, codes, out)
        return out

    def slots_of(self, codes: Codes) -> Slots:
        """Return all slots of the given codes, which must be distinct; the slots of a code come oldest first."""
        slots = np.empty(int(self.counts(codes).sum()), np.int32)
        cursor = np.array([0, -1], np.int64)
        multimap.expand(self.map, self.newest(codes), cursor, np.empty_like(slots), slots)
        return slots

    def groups(self) -> tuple[Slots, npt.NDArray[np.int32]]:
        """Return the oldest slot of every code, and how many rows the code has."""
        heads, sizes = np.empty(self.keys, np.int32), np.empty(self.keys, np.int32)
        groups.all_groups(self.map, heads, sizes)
        return heads, sizes

    def counts(self, codes: Codes) -> npt.NDArray[np.int32]:
        """Return how many rows each of the given codes has."""
        out = np.empty(len(codes), np.int32)
        multimap.ring_sizes(self.map, codes, out)
        return out

    def gather(self, columns: Sequence[int], slots: Slots, outputs: Sequence[OutputColumn]) -> list[Task]:
        """Return tasks that append the given columns of the rows at ``slots`` to output columns."""
        tasks: list[Task] = []
        stored: list[int] = []
        stored_outputs: list[OutputColumn] = []
        for column, output in zip(columns, outputs, strict=True):
            if column == self._code_column:
                assert isinstance(output, FixedColumn)
                tasks.append(partial(output.take, self.map.slots["code"].view(np.uint64), slots, None))
            else:
                stored.append(self._place[column])
                stored_outputs.append(output)
        return tasks + self.arena.gather(stored, slots, stored_outputs)

    def take(self, columns: Sequence[int], slots: Slots) -> list[pa.Array]:
        """Return the given columns of the rows at ``slots`` as Arrow arrays."""
        outputs = [output_column(self._schema.field(i).type, len(slots)) for i in columns]
        for task in self.gather(columns, slots, outputs):
            task()
        return [output.finish() for output in outputs]

    # saving and restoring

    @property
    def keepable(self) -> bool:
        """Whether the rows can be saved with :meth:`arrays` and :meth:`facts`; not if they have nested values."""
        return self.arena.keepable

    def facts(self) -> dict[str, Any]:
        """Return the numbers that are needed besides :meth:`arrays` to restore the rows."""
        state = [int(number) for number in self.map.state]
        return {"state": state, "places": len(self.map.directory), "arena": self.arena.facts()}

    def arrays(self, facts: dict[str, Any]) -> list[npt.NDArray[Any]]:
        """Return the parts of all arrays that are in use according to ``facts``, always in the same order."""
        high, heap = facts["state"][HIGH], facts["arena"]["end"]
        slots: list[npt.NDArray[Any]] = [self._directory[: facts["places"]], self.map.slots[:high]]
        return [*slots, *(mark[:high] for mark in self.marks.values()), *self.arena.arrays(high, heap)]

    def make_room_for(self, facts: dict[str, Any]) -> bool:
        """Remove all rows and reserve memory for rows with these ``facts``; return False if they do not fit."""
        self.clear()
        high, heap = facts["state"][HIGH], facts["arena"]["end"]
        if high > self.capacity or facts["places"] != _places(high):
            return False
        return self._reserve(high, heap)

    def accept(self, facts: dict[str, Any]) -> None:
        """Accept the rows that the caller has put into :meth:`arrays`, with the ``facts`` that were saved with them."""
        self.map.state[:] = facts["state"]
        self.arena.accept(facts["arena"])

    def close(self) -> None:
        """Give all reserved bytes back to the budget."""
        self._reservation.release()

    def check_invariants(self) -> None:
        broken = multimap.check(self.map)
        assert broken == 0, f"{self._name}: rule {broken} of the multimap is broken"
        assert int(self.map.state[HIGH]) <= self._charged_slots, f"{self._name}: slots used but not reserved"
        assert self.arena.heap_bytes <= self._heap_limit, f"{self._name}: bytes used but not reserved"
        assert self.nbytes == self._cost(self._charged_slots, self._heap_limit)


def holds_its_code(type_: pa.DataType, exact: bool) -> bool:
    """Return whether the key codes of a column of this type have the same bits as its values.

    ``exact`` says that the codes are the keys' own values, not hashes.
    """
    return exact and (pa.types.is_int64(type_) or type_ == pa.timestamp("us", getattr(type_, "tz", None)))
