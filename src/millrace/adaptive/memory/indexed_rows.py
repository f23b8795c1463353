"""The rows of one input of a multiway join in memory, with an index for each attribute that the input is joined on.

Each row is in one slot. Each attribute has its own ordered index. A row is in all indexes or in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.array_types import Bits, Codes, Stamps
from millrace.adaptive.memory.key_ordered_rows import LAST, KeyOrderedRows
from millrace.adaptive.memory.row_index import MatchedPairs, RowIndex, Workspace
from millrace.core.budget import MemoryBudget
from millrace.core.space import Space
from millrace.rows.arena import Slots

_LEAVING = np.uint8(4)


class AttributeIndex:
    """The ordered index of one input's rows by one attribute."""

    def __init__(self, rows: IndexedRows, number: int, index: RowIndex) -> None:
        self._rows, self._number, self.index = rows, number, index

    def __len__(self) -> int:
        return len(self.index)

    def matches(self, lows: Codes, highs: Codes, work: Workspace) -> Iterator[MatchedPairs]:
        """Yield pairs (i, row) in batches: row has a key from ``lows[i]`` to ``highs[i]``. Both arrays are sorted."""
        return self.index.matches(lows, highs, work)

    def below(self, key: int, equal: bool = False) -> int:
        """Return the number of rows with a key below ``key``; with ``equal``, also count the rows with that key."""
        return self.index.below(key, equal)

    def key_at(self, rank: int) -> int:
        """Return the key of the row at position ``rank`` in key order, counted from 0."""
        return self.index.key_at(rank)

    def take_out(self, low: int, high: int, limit: int, skip: int = 0, latest: int = int(LAST)) -> tuple[Codes, Slots]:
        """Remove up to ``limit`` rows with keys from ``low`` to ``high`` from all indexes; return their keys and slots.

        The slots stay in use until ``forget`` frees them. See :meth:`RowIndex.take` for ``skip`` and ``latest``.
        """
        return self._drop_elsewhere(*self.index.take(low, high, limit, self._rows.stamps, skip, latest))

    def sweep(self, low: int, high: int, hand: npt.NDArray[np.int64], limit: int) -> tuple[Codes, Slots]:
        """Remove up to ``limit`` rows that the clock algorithm chooses from all indexes; see :meth:`RowIndex.sweep`."""
        taken = self.index.sweep(low, high, hand, limit, self._rows.stamps, self._rows.bits)
        return self._drop_elsewhere(*taken)

    def _drop_elsewhere(self, keys: Codes, slots: Slots) -> tuple[Codes, Slots]:
        self.index.tidy()
        self._rows.drop_from_others(self._number, slots)
        return keys, slots


class IndexedRows(KeyOrderedRows):
    """Rows of one input in memory, each in one slot, with an index for each attribute.

    Parameters
    ----------
    attributes
        Number of attributes.
    """

    def __init__(
        self, name: str, schema: pa.Schema, attributes: int, budget: MemoryBudget, space: Space, width: int
    ) -> None:
        super().__init__(name, schema, budget, space, width, 8 * attributes)
        codes: npt.NDArray[Any] = space.array(f"{name}.codes", np.int64, attributes * self.capacity)
        self.codes: Codes = codes.reshape(attributes, self.capacity)
        """Key codes by attribute and slot."""
        more = [RowIndex(space, f"{name}.{i}", budget.total, width) for i in range(1, attributes)]
        self.views = [AttributeIndex(self, i, index) for i, index in enumerate((self.index, *more))]
        self._charges = [budget.reserve(name) for _ in more]
        self._charged = [0] * len(more)

    @staticmethod
    def least_of(schema: pa.Schema, attributes: int, rows: int, width: int) -> int:
        """Return the bytes to reserve for ``rows`` rows and their ``attributes`` indexes, without strings.

        ``width`` is the number of entries in a chunk of an index.
        """
        indexes = attributes * KeyOrderedRows.least_bytes(pa.schema([]), rows, width)
        return indexes + KeyOrderedRows.least_bytes(schema, rows, width) + rows * 8 * attributes

    @property
    def nbytes(self) -> int:
        return self._reservation.nbytes + sum(charge.nbytes for charge in self._charges)

    @property
    def idle_bytes(self) -> int:
        used = sum(view.index.used_chunks for view in self.views[1:])
        return super().idle_bytes + (sum(self._charged) - used) * self.index.chunk_bytes

    def make_rooms(self, codes: Sequence[Codes], heap_bytes: int) -> bool:
        """Reserve memory for new rows, or return False if it exceeds the budget.

        ``codes`` holds the sorted key codes of each attribute; the strings take ``heap_bytes`` bytes.
        """
        before = list(self._charged)
        if self._more_chunks(codes[1:]) and self.make_room(codes[0], heap_bytes):
            return True
        self._charge(before)
        return False

    def _more_chunks(self, codes: Sequence[Codes]) -> bool:
        for i, (view, each) in enumerate(zip(self.views[1:], codes, strict=True)):
            chunks, nbytes = view.index.chunks_for(each, self._charged[i]), view.index.chunk_bytes
            if chunks > view.index.most_chunks or not self._charges[i].try_resize(chunks * nbytes):
                return False
            self._charged[i] = chunks
        return True

    def _charge(self, chunks: list[int]) -> None:
        for charge, count in zip(self._charges, chunks, strict=True):
            charge.resize(count * self.index.chunk_bytes)
        self._charged = chunks

    def put(self, codes: Codes, columns: Sequence[pa.Array], stamps: Stamps, bits: Bits) -> None:
        """Store rows, given their codes by attribute and row. :meth:`make_rooms` must have reserved memory for them."""
        order = np.argsort(codes[0], kind="stable")
        slots = self.insert(codes[0][order], order, columns, stamps, bits)
        self.codes[:, slots] = codes
        for view, each in zip(self.views[1:], codes[1:], strict=True):
            order = np.argsort(each, kind="stable")
            view.index.insert(each[order], slots[order])

    def take_out(self, low: int, high: int, limit: int, skip: int = 0, latest: int = int(LAST)) -> tuple[Codes, Slots]:
        return self.views[0].take_out(low, high, limit, skip, latest)

    def drop_from_others(self, number: int, slots: Slots) -> None:
        """Remove rows from all indexes except number ``number``, from which they have been removed already."""
        if len(self.views) == 1 or not len(slots):
            return
        self.bits[slots] |= _LEAVING
        for i, view in enumerate(self.views):
            if i != number:
                view.index.drop(np.sort(self.codes[i][slots]), self.bits, _LEAVING)
                view.index.tidy()
        self.bits[slots] &= ~_LEAVING

    def _rename(self, names: Slots) -> None:
        super()._rename(names)
        moved = np.flatnonzero(names != np.arange(len(names)))
        self.codes[:, names[moved]] = self.codes[:, moved]
        for view in self.views[1:]:
            view.index.rename(names)

    def pack(self) -> None:
        super().pack()
        for view in self.views[1:]:
            view.index.pack()
        self._charge([view.index.used_chunks for view in self.views[1:]])

    def clear(self) -> None:
        for view in self.views[1:]:
            view.index.clear()
        super().clear()

    def close(self) -> None:
        super().close()
        for charge in self._charges:
            charge.release()

    def check_invariants(self) -> None:
        broken = self.index.broken_rule(self.stamps)
        assert broken == 0, f"{self._name}: rule {broken} of the ordered index is broken"
        _, slots = self.entries()
        for i, view in enumerate(self.views):
            assert view.index.broken_rule(self.stamps) == 0, f"{self._name}: index {i} is broken"
            assert len(view) == len(self), f"{self._name}: a row is in one index and not in another"
            keys, own = view.index.entries()
            assert (self.codes[i][own] == keys).all(), f"{self._name}: a row is in an index under a wrong key"
            assert (np.sort(own) == np.sort(slots)).all(), f"{self._name}: a row is in one index and not in another"
        for view, charged in zip(self.views[1:], self._charged, strict=True):
            assert view.index.touched_chunks <= charged, f"{self._name}: chunks used but not reserved"
