"""The waiting room: stream tuples that have to meet every master row before they may leave.

Tuples enter in chunks. A chunk remembers where the wheel stood when it entered, and leaves when the wheel has passed
the same place again; chunks therefore leave in the order they came. Tuples are found by key through a multimap with a
bit filter in front, for most master rows match nobody::

    admit ─► [chunk 7][chunk 6] … [chunk 2][chunk 1] ─► expire          queue, by age
                  └───────────┬────────────────┘
            load ─► filter ─► multimap ─► pairs (slot, row)             index, by key
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.space import Space
from millrace.kernels import bitfilter, groups, multimap
from millrace.rows.arena import Arena, Slots
from millrace.rows.columns import Indices
from millrace.rows.keyed import Codes, KeyedRows

MARKS = {"chunk": np.int32, "tally": np.uint8}
QUEUE_BYTES = 8  # a chunk's pointers: to a tuple that waits, and to one that has left before its chunk
CHUNK_BYTES = 256  # a chunk's own record
_MATCHED = 128


@dataclass
class Chunk:
    """Tuples that entered together."""

    number: int
    start: int
    """Where the wheel stood: rows it had turned by then."""
    step: int
    pieces: list[Slots] = field(default_factory=list)
    size: int = 0

    def add(self, slots: Slots) -> None:
        self.pieces.append(slots)
        self.size += len(slots)
        if len(self.pieces) > 32:
            self.pieces = [np.concatenate(self.pieces)]

    @property
    def slots(self) -> Slots:
        return np.concatenate(self.pieces) if self.pieces else np.empty(0, np.int32)


class WaitingRoom:
    """Stream tuples by key and by age.

    Parameters
    ----------
    schema
        The stream's columns.
    cycle_rows
        Master rows a tuple has to meet before it may leave.
    pairs
        Index pairs made at a time.
    leave_early
        Whether a tuple leaves with its first match, because there can be no other that matters.
    """

    def __init__(
        self,
        schema: pa.Schema,
        budget: MemoryBudget,
        space: Space,
        cycle_rows: int,
        pairs: int,
        code_column: int | None,
        leave_early: bool,
    ) -> None:
        self.rows = KeyedRows("waiting", schema, budget, space, MARKS, code_column, QUEUE_BYTES)
        self.chunks: deque[Chunk] = deque()
        self._cycle_rows = cycle_rows
        self.leave_early = leave_early
        self._next_number = 0
        self._queue = budget.reserve("queue")
        self._filter = budget.reserve("filter")
        self._bits: npt.NDArray[np.uint64] = np.zeros(1, np.uint64)
        self._filter.resize(self._bits.nbytes)
        self._set_since = 0
        self._slots = np.empty(pairs, np.int32)
        self._positions = np.empty(pairs, np.int32)
        self._cursor = np.zeros(2, np.int64)
        self.removal_shifts = 0

    @staticmethod
    def least_bytes(schema: pa.Schema, code_column: int | None) -> int:
        """What a room for a few tuples costs."""
        slot = KeyedRows.bytes_per_slot(schema, MARKS, code_column, QUEUE_BYTES)
        return 4 * (slot + 8) + 64 + 4 * CHUNK_BYTES

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def stay(self) -> float:
        """How much of a turn a tuple with a match stays, on average."""
        return 0.5 if self.leave_early else 1.0

    @property
    def tuple_bytes(self) -> float:
        """What a waiting tuple costs on average: row, index entry, queue entry, filter bits."""
        return self.rows.row_bytes + 2.0

    # entering

    def fits(self, columns: Sequence[pa.Array]) -> bool:
        """Whether these rows can be let in now; if so, room is reserved for them."""
        return self.rows.make_room(len(columns[0]), Arena.heap_bytes_of(columns)) and self._queue.try_resize(
            (len(self.chunks) + 1) * CHUNK_BYTES
        )

    def admit(
        self, codes: Codes, columns: Sequence[pa.Array], turned: int, step: int
    ) -> tuple[Slots, npt.NDArray[np.int32]]:
        """Let tuples in that :meth:`fits` has said yes to; return their slots and how many wait for the same key."""
        slots, counts = self.rows.insert(codes, columns)
        if not self.chunks or self.chunks[-1].start != turned:
            self.chunks.append(Chunk(self._next_number, turned, step))
            self._next_number += 1
        chunk = self.chunks[-1]
        chunk.add(slots)
        self.rows.marks["chunk"][slots] = chunk.number
        self.rows.marks["tally"][slots] = 0
        self.watch(codes)
        return slots, counts

    def newest_chunk_size(self, turned: int) -> int:
        """Tuples that entered since the wheel last moved."""
        return self.chunks[-1].size if self.chunks and self.chunks[-1].start == turned else 0

    # meeting master rows

    def watch(self, codes: Codes) -> None:
        """Let these codes through the filter from now on."""
        bitfilter.fill(self._bits, codes)
        self._set_since += len(codes)

    def refresh_filter(self, also: Codes) -> None:
        """Forget the bits of tuples that have left; keep those of the waiting ones and of ``also``."""
        live = len(self.rows)
        if self._set_since <= live // 4 + 64:
            return
        words = bitfilter.filter_words(live + len(also) + live // 4)
        if words != len(self._bits) and self._filter.try_resize(words * 8):
            self._bits = np.zeros(words, np.uint64)
        else:
            self._bits[:] = 0
        bitfilter.fill(self._bits, self.rows.map.code[self.rows.live()])
        bitfilter.fill(self._bits, also)
        self._set_since = 0

    def candidates(self, codes: Codes, out: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Positions of the master rows that the filter lets through."""
        return out[: bitfilter.candidates(self._bits, codes, out)]

    def meet(self, codes: Codes, among: npt.NDArray[np.int32]) -> Iterator[tuple[Slots, npt.NDArray[np.int32]]]:
        """Pairs of a waiting tuple's slot and a position in ``codes``, in pieces of bounded size.

        Each pair adds one to the tuple's tally of master rows with its code.
        """
        self._cursor[:] = (0, -1)
        while self._cursor[0] < len(among):
            made = multimap.probe(self.rows.map, codes, among, self._cursor, self._slots, self._positions)
            if made:
                slots = self._slots[:made]
                groups.count_up(self.rows.marks["tally"], slots)
                yield slots, self._positions[:made]

    def mark_matched(self, slots: Slots) -> Slots:
        """Note that these tuples have a true match; return those that had none before."""
        fresh = np.empty(len(slots), np.int32)
        return fresh[: groups.mark_matched(self.rows.marks["tally"], slots, fresh)]

    def waited(self, slots: Slots, step: int) -> Indices:
        """Steps since each of these tuples entered."""
        if not len(slots):
            return np.empty(0, np.int64)
        first = self.chunks[0].number
        entered = np.fromiter((chunk.step for chunk in self.chunks), np.int64, len(self.chunks))
        waited: Indices = step - entered[self.rows.marks["chunk"][slots] - first]
        return waited

    def seen_rows(self, slots: Slots) -> npt.NDArray[np.uint8]:
        """Master rows with their code that each tuple has met so far, up to 127."""
        seen: npt.NDArray[np.uint8] = self.rows.marks["tally"][slots] & np.uint8(127)
        return seen

    # leaving

    def expired(self, turned: int) -> Slots | None:
        """The slots of the oldest chunk if it has met every master row, else None."""
        if not self.chunks or self.chunks[0].start + self._cycle_rows > turned:
            return None
        return self._present(self.chunks[0])

    def _present(self, chunk: Chunk) -> Slots:
        """The tuples of a chunk that are still here."""
        slots = chunk.slots
        return slots[self.rows.marks["chunk"][slots] == chunk.number] if self.leave_early else slots

    def dismiss(self, slots: Slots) -> int:
        """Remove tuples before their turn is over; return how many left."""
        self.rows.marks["chunk"][slots] = -1
        self.removal_shifts += groups.shifts(self.rows.map, slots)
        self.rows.remove(slots)
        return len(slots)

    def matched(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which of these tuples have had a true match."""
        matched: npt.NDArray[np.bool_] = self.rows.marks["tally"][slots] >= _MATCHED
        return matched

    def dismiss_oldest(self) -> int:
        """Remove the oldest chunk; return how many tuples left."""
        slots = self._present(self.chunks.popleft())
        self.removal_shifts += groups.shifts(self.rows.map, slots)
        self.rows.remove(slots)
        self._queue.resize((len(self.chunks) + 1) * CHUNK_BYTES)
        return len(slots)

    def queue(self) -> list[tuple[int, int, Slots]]:
        """The chunks, oldest first: where the wheel stood, the step, and the tuples still here."""
        return [(chunk.start, chunk.step, self._present(chunk)) for chunk in self.chunks]

    def rows_until_expiry(self, turned: int) -> int:
        """Master rows the oldest chunk still has to meet."""
        return self.chunks[0].start + self._cycle_rows - turned if self.chunks else self._cycle_rows

    # the rest

    def groups(self) -> tuple[Codes, npt.NDArray[np.int32]]:
        """All keys that tuples wait for, and how many do."""
        heads = np.empty(self.rows.keys, np.int32)
        sizes = np.empty(self.rows.keys, np.int32)
        groups.all_groups(self.rows.map, heads, sizes)
        return self.rows.map.code[heads], sizes

    def check_invariants(self) -> None:
        self.rows.check_invariants()
        members = [self._present(chunk) for chunk in self.chunks]
        assert sum(len(m) for m in members) == len(self), "queue and index hold different numbers of tuples"
        for chunk, slots in zip(self.chunks, members, strict=True):
            assert (self.rows.marks["chunk"][slots] == chunk.number).all(), "a queue entry points elsewhere"
            assert chunk.size >= len(slots)
        starts = [chunk.start for chunk in self.chunks]
        assert starts == sorted(set(starts)), "chunks are out of order"
        live = self.rows.live()
        out = np.empty(max(1, len(live)), np.int32)
        found = self.candidates(self.rows.map.code[live], out)
        assert len(found) == len(live), "the filter hides a waiting tuple"
