"""An ordered index of rows by key code, and the allocation of slots for rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.adaptive.array_types import Bits, Codes, Stamps
from millrace.core.space import Space
from millrace.kernels import ordered_map as ordered
from millrace.kernels.ordered_map import HIGH, LAST, LIVE, SPARE, USED, Ordered
from millrace.rows.arena import Slots

ENTRY_BYTES = 8 + 4
_CHUNK = 4 + 4 + 8 + 4


class MatchedPairs(NamedTuple):
    """Pairs of matching rows: positions of the rows looked up, and slots and key codes of the rows found for them."""

    rows: npt.NDArray[np.int32]
    slots: Slots
    keys: Codes


class Workspace:
    """Arrays that pairs of matching rows are written to, a limited number at a time."""

    bytes_per_pair = 4 + 4 + 8

    def __init__(self, pairs: int) -> None:
        self.rows = np.empty(pairs, np.int32)
        self.slots = np.empty(pairs, np.int32)
        self.keys = np.empty(pairs, np.int64)


class RowIndex:
    """The sorted key codes of rows, with the slots of the rows, stored in chunks.

    Parameters
    ----------
    name
        Prefix of the names of the arrays that hold the index.
    nbytes
        Maximum number of bytes that the index may take.
    width
        Number of entries in a chunk.
    """

    def __init__(self, space: Space, name: str, nbytes: int, width: int) -> None:
        self.chunk_bytes = RowIndex.bytes_per_chunk(width)
        self.most_chunks = nbytes // self.chunk_bytes + 2
        self.width = width
        self._space = space
        self._arrays = _ordered_arrays(space, name, self.most_chunks, width)

    @staticmethod
    def bytes_per_chunk(width: int) -> int:
        """Return the bytes of a chunk of ``width`` entries."""
        return width * ENTRY_BYTES + _CHUNK

    @staticmethod
    def least_bytes(rows: int, width: int) -> int:
        """Return the bytes to reserve for an index of ``rows`` rows, with ``width`` entries in a chunk."""
        return (rows // max(1, width // 2) + 2) * RowIndex.bytes_per_chunk(width)

    def __len__(self) -> int:
        return int(self._arrays.state[LIVE])

    @property
    def used_chunks(self) -> int:
        """Number of chunks that hold rows."""
        return int(self._arrays.state[USED])

    @property
    def touched_chunks(self) -> int:
        """Number of chunks that take memory: all up to the last one used since the index was packed."""
        return int(self._arrays.state[HIGH])

    def chunks_for(self, codes: Codes, charged: int) -> int:
        """Return how many chunks to reserve in total to add sorted codes; ``charged`` chunks are reserved already."""
        free = int(self._arrays.state[SPARE]) + charged - self.touched_chunks
        return charged + max(0, ordered.chunks_needed(self._arrays, codes) - free)

    # look-up

    def entries(self) -> tuple[Codes, Slots]:
        """Return codes and slots of all rows, in the order of the codes."""
        keys, slots = np.empty(len(self), np.int64), np.empty(len(self), np.int32)
        ordered.entries(self._arrays, keys, slots)
        return keys, slots

    def matches(self, lows: Codes, highs: Codes, work: Workspace) -> Iterator[MatchedPairs]:
        """Yield pairs (i, row) in batches, for all rows with a code from ``lows[i]`` to ``highs[i]``; both ascend."""
        cursor = np.array([0, 0, 0, -1], np.int64)
        while cursor[0] < len(lows):
            made = ordered.matches(self._arrays, lows, highs, cursor, work.rows, work.slots, work.keys)
            if made:
                yield MatchedPairs(work.rows[:made], work.slots[:made], work.keys[:made])

    def below(self, key: int, equal: bool = False) -> int:
        """Return the number of rows with a code below ``key``; with ``equal``, also count the rows with that code."""
        return int(ordered.below(self._arrays, np.int64(key), equal))

    def key_at(self, rank: int) -> int:
        """Return the code of the row at position ``rank`` in the order of codes, counted from 0."""
        return int(ordered.key_at(self._arrays, rank))

    # change

    def insert(self, codes: Codes, slots: Slots) -> None:
        """Add rows, given by ascending codes and the slot of each."""
        ordered.insert(self._arrays, codes, slots)

    def take(
        self, low: int, high: int, limit: int, stamps: Stamps, skip: int = 0, latest: int = int(LAST)
    ) -> tuple[Codes, Slots]:
        """Remove up to ``limit`` entries with codes from ``low`` to ``high``, in order; return their codes and slots.

        Parameters
        ----------
        stamps
            Arrival times of rows, by slot.
        skip
            Number of entries to leave in place at the start of the range.
        latest
            Latest arrival time of rows to remove.
        """
        limit = min(limit, len(self))
        keys, slots = np.empty(limit, np.int64), np.empty(limit, np.int32)
        made = ordered.take(
            self._arrays, np.int64(low), np.int64(high), skip, limit, stamps, np.int64(latest), keys, slots
        )
        return keys[:made], slots[:made]

    def sweep(
        self, low: int, high: int, hand: npt.NDArray[np.int64], limit: int, stamps: Stamps, bits: Bits
    ) -> tuple[Codes, Slots]:
        """Remove up to ``limit`` entries with codes from ``low`` to ``high``, chosen by the clock algorithm.

        Return their codes and slots. Entries whose ``JOINED`` flag is set in ``bits`` stay; the flag is cleared.
        ``hand`` is the (code, arrival time) of the entry visited last, and is updated.
        """
        limit = min(limit, len(self))
        keys, slots = np.empty(limit, np.int64), np.empty(limit, np.int32)
        made = ordered.sweep(self._arrays, np.int64(low), np.int64(high), hand, limit, stamps, bits, keys, slots)
        return keys[:made], slots[:made]

    def drop(self, codes: Codes, bits: Bits, mask: np.uint8) -> None:
        """Remove the rows that have a bit of ``mask`` in ``bits``, by slot; ``codes`` are their codes, sorted."""
        ordered.drop(self._arrays, codes, bits, mask)

    def tidy(self) -> None:
        """Free chunks that removals have emptied."""
        ordered.tidy(self._arrays)

    def rename(self, names: Slots) -> None:
        """Renumber slots: slot ``i`` is now ``names[i]``."""
        ordered.rename(self._arrays, names)

    def pack(self) -> None:
        """Move all chunks in use to the start of the arrays, so that the memory behind them can be released."""
        ordered.pack(self._arrays)

    def clear(self) -> None:
        """Remove all entries."""
        self._arrays.state[:] = 0

    def release(self, chunks: int) -> None:
        """Return the memory of all chunks beyond the first ``chunks`` to the operating system."""
        for array in (self._arrays.keys.reshape(-1), self._arrays.slots.reshape(-1)):
            self._space.release(array, chunks * self.width)

    def broken_rule(self, stamps: Stamps) -> int:
        """Return the number of an invariant of the index that does not hold, or 0 if all hold."""
        return int(ordered.check(self._arrays, stamps))


class FreeSlots:
    """Allocates slots for rows: freed slots first, then slots that have never been used."""

    def __init__(self, space: Space, name: str, capacity: int) -> None:
        self._space = space
        self._stack: npt.NDArray[Any] = space.array(f"{name}.free", np.int32, capacity)
        self._count = 0
        self.high = 0
        """Number of slots that have been used since the last :meth:`reset`, freed ones included."""

    def __len__(self) -> int:
        return self._count

    @property
    def free(self) -> Slots:
        """Slots that have been used and are free now."""
        free: Slots = self._stack[: self._count]
        return free

    def take(self, count: int) -> Slots:
        """Allocate ``count`` slots, freed ones first."""
        slots = np.empty(count, np.int32)
        reused = min(count, self._count)
        slots[:reused] = self._stack[self._count - reused : self._count]
        slots[reused:] = np.arange(self.high, self.high + count - reused, dtype=np.int32)
        self._count -= reused
        self.high += count - reused
        return slots

    def give(self, slots: Slots) -> None:
        """Free slots, so that they can be allocated again."""
        self._stack[self._count : self._count + len(slots)] = slots
        self._count += len(slots)

    def reset(self, high: int) -> None:
        """Mark the slots below ``high`` as used, and no others."""
        self._count, self.high = 0, high

    def release(self, slots: int) -> None:
        """Return the memory for all slots beyond the first ``slots`` to the operating system."""
        self._space.release(self._stack, slots)


def _ordered_arrays(space: Space, name: str, chunks: int, width: int) -> Ordered:
    """Return an empty index with room for ``chunks`` chunks."""
    keys: npt.NDArray[Any] = space.array(f"{name}.keys", np.int64, chunks * width)
    slots: npt.NDArray[Any] = space.array(f"{name}.slots", np.int32, chunks * width)
    counts: npt.NDArray[Any] = space.array(f"{name}.counts", np.int32, chunks)
    order: npt.NDArray[Any] = space.array(f"{name}.order", np.int32, chunks)
    spare: npt.NDArray[Any] = space.array(f"{name}.spare", np.int32, chunks)
    lows: npt.NDArray[Any] = space.array(f"{name}.lows", np.int64, chunks)
    grid = (chunks, width)
    return Ordered(keys.reshape(grid), slots.reshape(grid), counts, order, lows, spare, np.zeros(4, np.int64))
