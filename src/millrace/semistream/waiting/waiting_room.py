"""The waiting room: stream tuples that have to meet the master rows of their key before they may leave.

Tuples enter in chunks, one per step. Where the master is scanned over and over (by the wheel), a chunk records where
the wheel was when it entered, and leaves when the wheel is back there; chunks therefore leave in the order they came.
Where pages are chosen, tuples leave one by one, and the chunks keep them in order of age. Tuples are found by key
through a multimap with a bit filter in front of it, because most master rows match no waiting tuple::

    admit ─► [chunk 7][chunk 6] … [chunk 2][chunk 1] ─► expire          queue, by age
                  └───────────┬────────────────┘
            load ─► filter ─► multimap ─► pairs (slot, row)             index, by key

Where only one match of a tuple matters, the tuple leaves with that match, before its chunk does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.core.lanes import Lanes
from millrace.core.space import Space
from millrace.kernels import groups, multimap
from millrace.master.read.wheel import Load
from millrace.rows.arena import Arena, Slots
from millrace.rows.code_filter import CodeFilter, FoundCodes
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes, KeyedRows

Positions = npt.NDArray[np.int32]

MARKS = {"entered": np.int32, "tally": np.uint8}
QUEUE_BYTES = 8  # per tuple: its slot number in a chunk, and one more for a tuple that has left before its chunk
CHUNK_BYTES = 256  # of a chunk without its slot numbers
_FILTER_BYTES = 2.0  # a tuple's bits in the filter
_MATCHED = 128


@dataclass
class QueuedChunk:
    """Tuples that entered at the same step."""

    step: int
    start: int
    """Value of :attr:`Access.place` when the tuples entered: how many master rows had been scanned, or steps run."""
    pieces: list[Slots] = field(default_factory=list)
    size: int = 0

    @property
    def tag(self) -> int:
        """Value of the mark ``entered`` at the chunk's slots; never 0, because released memory reads as 0."""
        return self.step + 1

    def add(self, slots: Slots) -> None:
        """Append the slots of tuples."""
        self.pieces.append(slots)
        self.size += len(slots)
        if len(self.pieces) > 32:
            self.pieces = [np.concatenate(self.pieces)]

    @property
    def slots(self) -> Slots:
        """Slots of the chunk's tuples, including those that have left since."""
        if len(self.pieces) > 1:
            self.pieces = [np.concatenate(self.pieces)]
        return self.pieces[0] if self.pieces else np.empty(0, np.int32)


class WaitingRoom:
    """Holds stream tuples while they wait, and finds them by key and by age.

    Parameters
    ----------
    schema
        The stream's columns.
    cycle_rows
        Master rows that a tuple has to meet before it may leave.
    matches, pairs
        Largest number of matching master rows, and of index pairs, that are handled at a time.
    leave_early
        Whether a tuple leaves with its first match, because no other match matters.
    beside
        Additional bytes per tuple that a subclass needs; they are reserved together with the tuple.
    """

    def __init__(
        self,
        schema: pa.Schema,
        budget: MemoryBudget,
        space: Space,
        lanes: Lanes,
        cycle_rows: int,
        matches: int,
        pairs: int,
        code_column: int | None,
        leave_early: bool,
        beside: int = 0,
    ) -> None:
        self.rows = KeyedRows("waiting", schema, budget, space, MARKS, code_column, QUEUE_BYTES + beside)
        self.chunks: deque[QueuedChunk] = deque()
        self.leave_early = leave_early
        self.removal_shifts = 0
        self._entries = 0
        self._cycle_rows = cycle_rows
        self._queue = budget.reserve("queue")
        self._filter = CodeFilter("filter", self.rows, budget, lanes, matches)
        self._slots = np.empty(pairs, np.int32)
        self._index = np.empty(pairs, np.int32)

    @staticmethod
    def least_bytes(schema: pa.Schema, code_column: int | None, beside: int = 0) -> int:
        """Return the bytes of the smallest waiting room, which holds a few tuples; ``beside`` is as in the class."""
        slot = KeyedRows.bytes_per_slot(schema, MARKS, code_column, QUEUE_BYTES + beside)
        return 4 * (slot + 8) + 64 + 4 * CHUNK_BYTES

    @staticmethod
    def empty_tuple_bytes(schema: pa.Schema, code_column: int | None) -> float:
        """Return the bytes of a waiting tuple without its strings and binary values."""
        return KeyedRows.fixed_bytes_per_row(schema, MARKS, code_column, QUEUE_BYTES) + _FILTER_BYTES

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def mean_stay(self) -> float:
        """Share of a full scan of the master that a tuple with a match waits on average."""
        return 0.5 if self.leave_early else 1.0

    @property
    def tuple_bytes(self) -> float:
        """Average bytes that a waiting tuple takes: row, index entry, queue entry, filter bits."""
        return self.rows.row_bytes + _FILTER_BYTES

    # entering

    def fits(self, columns: Sequence[pa.Array], exact: bool = False) -> bool:
        """Reserve memory for tuples with these columns; return False if there is too little.

        Unless ``exact``, some more is reserved for later tuples.
        """
        queue = max(self._queue.nbytes, (len(self.chunks) + 1) * CHUNK_BYTES)
        if not self._queue.try_resize(queue):
            self.rows.trim()  # slots may have been reserved ahead
            if not self._queue.try_resize(queue):
                return False
        return self.rows.make_room(len(columns[0]), Arena.heap_bytes_of(columns), exact=exact)

    def admit(self, codes: Codes, columns: Sequence[pa.Array], turned: int, step: int) -> Positions:
        """Let in tuples for which :meth:`fits` has reserved room; return for each how many tuples wait for its key."""
        slots, counts = self.rows.insert(codes, columns)
        if not self.chunks or self.chunks[-1].start != turned:
            self.chunks.append(QueuedChunk(step, turned))
        chunk = self.chunks[-1]
        chunk.add(slots)
        self._entries += len(slots)
        groups.set_all(self.rows.marks["entered"], slots, chunk.tag)
        self.rows.marks["tally"][slots] = 0
        self._filter.watch(codes)
        return counts

    def newest_chunk_size(self, turned: int) -> int:
        """Return how many tuples have entered since the last step; ``turned`` is the access policy's ``place``."""
        return self.chunks[-1].size if self.chunks and self.chunks[-1].start == turned else 0

    # meeting master rows

    def meet(self, load: Load) -> Iterator[FoundCodes]:
        """Yield the rows of a load that have the key code of a waiting tuple, in pieces of bounded size."""
        if not len(self):
            return
        if self._filter.stale(len(self)):
            self._filter.refresh(self.rows.map.code[self.rows.live()])
        yield from self._filter.search(load.codes)

    def pairs(self, load: Load, met: FoundCodes) -> Iterator[tuple[Slots, Indices]]:
        """Yield pairs of a waiting tuple's slot and a master row's position in the load, in pieces of bounded size.

        Each pair adds one to the tuple's tally of master rows with its code.
        """
        cursor = np.array([0, -1], np.int64)
        while cursor[0] < len(met.newest):
            made = multimap.expand(self.rows.map, met.newest, cursor, self._index, self._slots)
            slots = self._slots[:made]
            groups.count_up(self.rows.marks["tally"], slots)
            yield slots, met.positions[self._index[:made]].astype(np.int64)

    def mark_matched(self, slots: Slots) -> Slots:
        """Mark tuples as matched; return those that had not been marked before."""
        fresh = np.empty(len(slots), np.int32)
        return fresh[: groups.mark_matched(self.rows.marks["tally"], slots, fresh)]

    def waited(self, slots: Slots, step: int) -> Positions:
        """Return the number of steps since each of these tuples entered."""
        waited = np.empty(len(slots), np.int32)
        groups.since(self.rows.marks["entered"], slots, step + 1, waited)
        return waited

    def rows_met(self, slots: Slots) -> npt.NDArray[np.uint8]:
        """Return how many master rows with its code each tuple has met so far, up to 127."""
        met: npt.NDArray[np.uint8] = self.rows.marks["tally"][slots] & np.uint8(127)
        return met

    # leaving

    def expired(self, turned: int) -> Slots | None:
        """Take out the oldest chunk if it has met every master row; return its tuples that still wait, else None.

        ``turned`` is the number of master rows that have been read since the join began, over all turns.
        """
        if not self.chunks or self.chunks[0].start + self._cycle_rows > turned:
            return None
        chunk = self.chunks.popleft()
        self._entries -= chunk.size
        return self._present(chunk)

    def _present(self, chunk: QueuedChunk) -> Slots:
        """Return the tuples of a chunk that still wait."""
        slots = chunk.slots
        present: Slots = slots[self.rows.marks["entered"][slots] == chunk.tag]
        return present

    def matched(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return which of these tuples have a match."""
        matched: npt.NDArray[np.bool_] = self.rows.marks["tally"][slots] >= _MATCHED
        return matched

    def dismiss(self, slots: Slots) -> int:
        """Remove tuples from the waiting room; return how many were removed."""
        groups.set_all(self.rows.marks["entered"], slots, 0)
        self.removal_shifts += self.rows.remove(slots)
        if not len(self):
            self.chunks.clear()  # their tuples have all left
            self._entries = 0
            self._queue.resize(CHUNK_BYTES)
        return len(slots)

    def rows_until_expiry(self, turned: int) -> int:
        """Return how many master rows the oldest chunk still has to meet; a full scan if no tuple waits.

        ``turned`` is the number of master rows scanned so far.
        """
        return self.chunks[0].start + self._cycle_rows - turned if self.chunks else self._cycle_rows

    # by age

    def oldest(self, count: int) -> Slots:
        """Return the tuples that have waited longest, at most ``count``."""
        while self.chunks and not len(self._present(self.chunks[0])):
            self._entries -= self.chunks.popleft().size
        return self._some(iter(self.chunks), count, newest_first=False)

    def older_than(self, share: float, count: int) -> Slots:
        """Return at most ``count`` tuples, from younger to older, after skipping the youngest ``share`` of all."""
        skip = min(int(share * len(self)), max(0, len(self) - 1))
        return self._some(reversed(self.chunks), count, skip=skip, newest_first=True)

    def _some(self, chunks: Iterator[QueuedChunk], count: int, skip: int = 0, *, newest_first: bool) -> Slots:
        found: list[Slots] = []
        for chunk in chunks:
            slots = self._present(chunk)
            slots = slots[::-1] if newest_first else slots
            if skip >= len(slots):
                skip -= len(slots)
                continue
            found.append(slots[skip : skip + count])
            skip, count = 0, count - len(found[-1])
            if not count:
                break
        return np.concatenate(found) if found else np.empty(0, np.int32)

    def sweep(self) -> None:
        """Drop queue entries of tuples that have left, once there are more of them than tuples that wait."""
        if self._entries <= 2 * len(self):
            return
        for chunk in self.chunks:
            chunk.pieces = [self._present(chunk)]
            chunk.size = len(chunk.pieces[0])
        self.chunks = deque(chunk for chunk in self.chunks if chunk.size)
        self._entries = len(self)
        self._queue.resize(max(1, len(self.chunks)) * CHUNK_BYTES)

    # the rest

    def queue(self) -> list[tuple[int, int, Slots]]:
        """Return for each chunk, oldest first, the place and step at which it entered and the tuples still waiting."""
        return [(chunk.start, chunk.step, self._present(chunk)) for chunk in self.chunks]

    def groups(self) -> tuple[Codes, Positions]:
        """Return the distinct key codes of all waiting tuples, and how many tuples wait for each."""
        heads, sizes = self.rows.groups()
        return self.rows.map.code[heads], sizes

    def check_invariants(self) -> None:
        self.rows.check_invariants()
        members = [self._present(chunk) for chunk in self.chunks]
        assert sum(len(m) for m in members) == len(self), "queue and index hold different numbers of tuples"
        for chunk, slots in zip(self.chunks, members, strict=True):
            assert (self.rows.marks["entered"][slots] == chunk.tag).all(), "a queue entry has the slot of another tuple"
            assert chunk.size >= len(slots)
        starts = [chunk.start for chunk in self.chunks]
        assert starts == sorted(set(starts)), "chunks are out of order"
        codes = self.rows.map.code[self.rows.live()]
        assert self._filter.lets_through(codes), "the filter hides a waiting tuple"
