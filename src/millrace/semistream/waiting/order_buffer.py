"""The order buffer: stream tuples that may not leave yet, in the order they came, with the master rows found for them.

::

    head ──► [ settled ][ waits ][ settled ][ settled ][ waits ] ◄── next
                │                    │
                └─ released at once  └─ held back: an earlier tuple is not settled

A tuple has a sequence number. Its columns are kept here, and only the number waits in the waiting room. Its matches are
kept as numbers of master rows; columns are gathered when the tuple is released. A tuple is *settled* when all of its
matches are known.

Tuples with many matches may find more rows than memory can keep. Then the youngest are *overrun*: they lose the rows
found so far and have to find them again. Rows of the first tuple, the *head*, are output as they are found and need no
memory, so the head always makes progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.space import Space
from millrace.kernels import multimap
from millrace.rows.arena import Arena, Slots
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import KeyedRows
from millrace.semistream.row_numbers import NO_ROW

Sequences = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SETTLED, MATCHED, OVERRUN = np.uint8(1), np.uint8(2), np.uint8(4)
WAITING = pa.schema([pa.field("sequence", pa.int64())])
"""Columns of a tuple in the waiting room if output is ordered: only its sequence number."""

_MARKS: dict[str, npt.DTypeLike] = {"state": np.uint8}
_ROW: dict[str, npt.DTypeLike] = {"row": np.int64}
_FIRST_GUESS = 16  # weight of the estimate ``rows_per_key``: it counts like this many released tuples
_NOTHING = pa.schema([])


class OrderBuffer:
    """Holds stream tuples by sequence number until every earlier one has left.

    Parameters
    ----------
    stream
        The stream's columns.
    rows_per_key
        Estimate of how many master rows are kept for a tuple on average; None if never more than one.
    """

    def __init__(self, stream: pa.Schema, budget: MemoryBudget, space: Space, rows_per_key: float | None) -> None:
        single = rows_per_key is None
        self.schema = stream
        self.tuples = KeyedRows("order", stream, budget, space, _MARKS | (_ROW if single else {}))
        self.found = None if single else KeyedRows("found rows", _NOTHING, budget, space, _ROW)
        """Numbers of the master rows found, by sequence number of the tuple; None if at most one is kept per tuple."""
        self.head = 0
        """Sequence number of the tuple that leaves next."""
        self.next = 0
        """Sequence number for the next tuple that arrives."""
        self._rows_per_key = rows_per_key or 0.0
        self._released = self._rows_released = 0

    @staticmethod
    def least_bytes(stream: pa.Schema) -> int:
        """Return the bytes of the smallest buffer, which holds a few tuples."""
        tuples = KeyedRows.bytes_per_slot(stream, _MARKS | _ROW)
        return 4 * (tuples + 8) + 64 + 4 * (KeyedRows.bytes_per_slot(_NOTHING, _ROW) + 8) + 64

    def __len__(self) -> int:
        return self.next - self.head

    @property
    def nbytes(self) -> int:
        return self.tuples.nbytes + (0 if self.found is None else self.found.nbytes)

    @property
    def tuple_bytes(self) -> float:
        """Average bytes that a tuple takes, including the numbers of the master rows found for it."""
        if self.found is None:
            return self.tuples.row_bytes
        rows = (_FIRST_GUESS * self._rows_per_key + self._rows_released) / (_FIRST_GUESS + self._released)
        return self.tuples.row_bytes + rows * self.found.row_bytes

    # entering

    def fits(self, columns: Sequence[pa.Array], rows: int, exact: bool = False) -> bool:
        """Reserve memory for these tuples and for ``rows`` matches; return False if there is too little.

        Unless ``exact``, some more is reserved for later tuples.
        """
        if self.found is not None and not self.found.make_room(rows, exact=exact):
            return False
        return self.tuples.make_room(len(columns[0]), Arena.heap_bytes_of(columns), exact=exact)

    def append(self, columns: Sequence[pa.Array]) -> Sequences:
        """Append tuples for which :meth:`fits` has reserved room; return their sequence numbers."""
        sequences = np.arange(self.next, self.next + len(columns[0]))
        slots, _ = self.tuples.insert(sequences, columns)
        self.tuples.marks["state"][slots] = 0
        if self.found is None:
            self.tuples.marks["row"][slots] = NO_ROW
        self.next += len(slots)
        return sequences

    # finding

    def slots(self, sequences: Sequences) -> Slots:
        """Return the slots of the tuples with these sequence numbers."""
        return self.tuples.oldest(sequences)

    def add(self, sequences: Sequences, rows: Indices) -> None:
        """Keep the numbers of master rows found for tuples: ``rows[i]`` for the tuple ``sequences[i]``.

        Rows of overrun tuples are not kept. If memory runs out, the youngest of the tuples in ``sequences`` are
        overrun: they lose their rows and have to find them again.
        """
        state = self.tuples.marks["state"]
        slots = self.slots(sequences)
        if self.found is None:
            state[slots] |= MATCHED
            self.tuples.marks["row"][slots] = rows
            return
        keeps = state[slots] & OVERRUN == 0
        sequences, rows = sequences[keeps], rows[keeps]
        while len(sequences) and not self.found.make_room(len(sequences), exact=True):
            finders = np.unique(sequences)
            self._mark_overrun(finders[len(finders) // 2 :])
            keeps = sequences < finders[len(finders) // 2]
            sequences, rows = sequences[keeps], rows[keeps]
        places, _ = self.found.insert_codes(sequences)
        self.found.marks["row"][places] = rows
        state[self.slots(sequences)] |= MATCHED

    def _mark_overrun(self, sequences: Sequences) -> None:
        """Drop the rows found for tuples and mark the tuples as overrun: they have to find their rows again."""
        assert self.found is not None
        self.found.remove(self.found.slots_of(sequences))
        state, slots = self.tuples.marks["state"], self.slots(sequences)
        state[slots] = (state[slots] | OVERRUN) & ~MATCHED

    def mark_matched(self, sequences: Sequences) -> None:
        """Mark tuples as matched, without keeping the rows that match."""
        self.tuples.marks["state"][self.slots(sequences)] |= MATCHED

    def is_overrun(self, sequences: Sequences) -> Flags:
        """Return which tuples are overrun, which means that they lost the rows found for them when memory ran out."""
        lost: Flags = self.tuples.marks["state"][self.slots(sequences)] & OVERRUN > 0
        return lost

    def begin_again(self, sequences: Sequences) -> None:
        """Reset overrun tuples: those whose found rows were dropped, so that all of their rows must be found again."""
        self.tuples.marks["state"][self.slots(sequences)] = 0

    def mark_settled(self, sequences: Sequences) -> None:
        """Mark tuples as settled: all of their matches are known."""
        self.tuples.marks["state"][self.slots(sequences)] |= SETTLED

    # leaving

    def settled_run(self, most: int) -> Sequences:
        """Return the sequence numbers of the tuples before the first that is not settled, ``most`` at most."""
        state, run, size = self.tuples.marks["state"], 0, 1
        while True:
            stop = min(self.next, self.head + most, self.head + run + size)
            settled = state[self.slots(np.arange(self.head + run, stop))] & SETTLED > 0
            run += len(settled) if settled.all() else int(np.argmin(settled))
            if not settled.all() or len(settled) < size:
                return np.arange(self.head, self.head + run)
            size *= 64

    def matched(self, slots: Slots) -> Flags:
        """Return which of the tuples at these slots have a match."""
        matched: Flags = self.tuples.marks["state"][slots] & MATCHED > 0
        return matched

    def pairs(self, sequences: Sequences, most: int) -> Iterator[tuple[Indices, Indices]]:
        """Yield pairs of a place in ``sequences`` and a master row found for it, about ``most`` pairs at a time."""
        if self.found is None:
            rows = self.tuples.marks["row"][self.slots(sequences)]
            places = np.flatnonzero(rows != NO_ROW)
            yield places, rows[places]
            return
        newest = self.found.newest(sequences)
        most = min(most, int(self.found.counts(sequences).sum()))
        cursor = np.array([0, -1], np.int64)
        index, slots = np.empty(most, np.int32), np.empty(most, np.int32)
        while most and cursor[0] < len(newest):
            made = multimap.expand(self.found.map, newest, cursor, index, slots)
            yield index[:made].astype(np.int64), self.found.marks["row"][slots[:made]]

    def drop_rows(self, sequences: Sequences, more: int = 0) -> None:
        """Remove the master rows kept for tuples, after they were output.

        These rows, and ``more`` rows that were output without being kept, count in the average of rows per tuple.
        """
        if self.found is not None:
            slots = self.found.slots_of(sequences)
            self.found.remove(slots)
            self._rows_released += len(slots) + more

    def release(self, sequences: Sequences) -> None:
        """Remove the first tuples of the buffer, given by their sequence numbers, after they were output.

        All of them must be settled: their rows are found, or it is known that they have none.
        """
        self.drop_rows(sequences)
        self.tuples.remove(self.slots(sequences))
        self.head += len(sequences)
        self._released += len(sequences)

    def trim(self) -> None:
        """Give back memory that no tuple uses."""
        self.tuples.trim()
        if self.found is not None:
            self.found.trim()

    # snapshots

    def to_batch(self) -> pa.RecordBatch:
        """Return the whole buffer, one row per tuple: the stream's columns, the state, and the rows found."""
        sequences = np.arange(self.head, self.next)
        slots = self.slots(sequences)
        counts, rows = np.zeros(len(sequences), np.int64), [np.empty(0, np.int64)]
        for places, found in self.pairs(sequences, 65_536):
            counts += np.bincount(places, minlength=len(counts))
            rows.append(found)
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int64())
        arrays = self.tuples.take(range(len(self.schema)), slots)
        arrays.append(pa.array(self.tuples.marks["state"][slots]))
        arrays.append(pa.LargeListArray.from_arrays(offsets, pa.array(np.concatenate(rows))))
        return pa.RecordBatch.from_arrays(arrays, schema=self.saved_schema(self.schema))

    @staticmethod
    def saved_schema(stream: pa.Schema) -> pa.Schema:
        """Return the schema of the batch that :meth:`to_batch` returns."""
        return pa.schema([*stream, pa.field("state", pa.uint8()), pa.field("found", pa.large_list(pa.int64()))])

    def fill_from(self, saved: pa.RecordBatch, columns: Sequence[pa.Array], head: int) -> bool:
        """Fill an empty buffer with the tuples that :meth:`to_batch` returned; return False if they do not fit.

        ``columns`` are the stream's columns of ``saved``; ``head`` is the sequence number of the first tuple.
        """
        state, found = saved.column(saved.num_columns - 2).to_numpy(), saved.column(saved.num_columns - 1)
        rows = found.flatten().to_numpy()
        if not self.fits(columns, len(rows), exact=True):
            return False
        self.head = self.next = head
        sequences = self.append(columns)
        self.add(np.repeat(sequences, np.diff(found.offsets.to_numpy())), rows)
        self.tuples.marks["state"][self.slots(sequences)] = state
        return True

    def check_invariants(self, waiting: Sequences) -> None:
        """Assert that the buffer's invariants hold, given the sequence numbers in the waiting room; for tests."""
        self.tuples.check_invariants()
        assert len(self.tuples) == len(self), "a tuple was lost or is here twice"
        sequences = np.arange(self.head, self.next)
        slots = self.slots(sequences)
        assert (slots >= 0).all(), "a sequence number is missing"
        state = self.tuples.marks["state"][slots]
        unsettled = sequences[state & SETTLED == 0]
        assert np.array_equal(unsettled, np.sort(waiting)), "the waiting room does not hold the unsettled tuples"
        assert not len(self) or not state[0] & SETTLED, "the head is settled but was not released"
        if self.found is not None:
            self.found.check_invariants()
            finders = np.unique(self.found.map.code[self.found.live()])
            assert np.isin(finders, sequences[state & MATCHED > 0]).all(), "rows are kept for tuples without a match"
