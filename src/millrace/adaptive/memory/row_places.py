"""Where rows of an input are when they are joined with others: just come, in memory, or loaded from disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.disk.blocks import Chunk
from millrace.adaptive.memory.indexed_rows import IndexedRows
from millrace.adaptive.memory.pair_output import BatchSource, MemorySource, Rows, Source
from millrace.adaptive.memory.sorted_rows import FIRST, LAST, Codes, Pairs, Stamps, Workspace
from millrace.kernels import bands

_NOBODY = np.empty((0, 2), np.int64)


class Place(Protocol):
    """Rows by number, with a code for each attribute."""

    @property
    def source(self) -> Source:
        """Their columns."""
        ...

    def codes(self, attribute: int) -> Codes:
        """Codes by row number."""
        ...

    def matches(self, attribute: int, lows: Codes, highs: Codes, work: Workspace) -> Iterator[Pairs]:
        """Rows with a code from ``lows[i]`` to ``highs[i]``, which ascend, some pairs at a time."""
        ...


class InMemory:
    """The rows an input has in memory, by slot."""

    def __init__(self, rows: IndexedRows) -> None:
        self._rows = rows
        self.source = MemorySource(rows)

    def codes(self, attribute: int) -> Codes:
        codes: Codes = self._rows.codes[attribute]
        return codes

    def matches(self, attribute: int, lows: Codes, highs: Codes, work: Workspace) -> Iterator[Pairs]:
        return self._rows.views[attribute].matches(lows, highs, work)


class Loose:
    """Rows of a batch, with their codes by attribute and row."""

    def __init__(self, batch: pa.RecordBatch, codes: Codes) -> None:
        self._codes = codes
        self.source = BatchSource(batch, np.zeros(len(batch), np.uint8))
        self._sorted: dict[int, tuple[Codes, Rows]] = {}

    def __len__(self) -> int:
        return int(self._codes.shape[1])

    def codes(self, attribute: int) -> Codes:
        codes: Codes = self._codes[attribute]
        return codes

    def _by(self, attribute: int) -> tuple[Codes, Rows]:
        if attribute not in self._sorted:
            order = np.argsort(self._codes[attribute], kind="stable").astype(np.int32)
            self._sorted[attribute] = self._codes[attribute][order], order
        return self._sorted[attribute]

    def matches(self, attribute: int, lows: Codes, highs: Codes, work: Workspace) -> Iterator[Pairs]:
        keys, order = self._by(attribute)
        never = np.empty((2, 1), np.int64)
        never[0], never[1] = LAST, FIRST  # nobody has met anybody: that is asked of whole combinations
        ours, theirs = (np.broadcast_to(never, (2, max(1, len(each)))) for each in (lows, keys))
        cursor = np.array([0, 0, -1], np.int64)
        while cursor[0] < len(lows):
            made = bands.merge(
                lows, highs, ours.copy(), keys, theirs.copy(), _NOBODY, _NOBODY, _NOBODY, cursor, work.rows, work.slots
            )
            if made:
                at = work.slots[:made]
                yield Pairs(work.rows[:made], order[at], keys[at])

    def near(self, attribute: int, lows: Codes, highs: Codes) -> npt.NDArray[np.bool_]:
        """Which rows have a code in one of the ranges; both ends ascend."""
        codes = self._codes[attribute]
        first = np.searchsorted(highs, codes)
        inside: npt.NDArray[np.bool_] = first < len(lows)
        inside[inside] = lows[first[inside]] <= codes[inside]
        return inside


class Loaded(Loose):
    """Rows from disk: when each came and left, and in which block of its input it is."""

    def __init__(self, batch: pa.RecordBatch, codes: Codes, stamps: Stamps, blocks: npt.NDArray[np.int64]) -> None:
        super().__init__(batch, codes)
        self.stamps, self.blocks = stamps, blocks

    @staticmethod
    def of(chunk: Chunk, codes: Sequence[Codes]) -> Loaded:
        """Rows of a chunk; the codes of its attributes but the first are given, by row."""
        rows = len(chunk.codes)
        first, stamps = np.empty(rows, np.int64), np.empty((2, rows), np.int64)
        first[chunk.order], stamps[:, chunk.order] = chunk.codes, chunk.stamps
        places, counts = [at for at, _, _ in chunk.parts], [count for _, _, count in chunk.parts]
        blocks = np.repeat(np.array(places, np.int64), counts)
        return Loaded(chunk.source.batch, np.stack([first, *codes]), stamps, blocks)

    def only(self, kept: npt.NDArray[np.bool_]) -> Loaded:
        """Some of the rows."""
        if kept.all():
            return self
        batch = self.source.batch.filter(pa.array(kept))
        return Loaded(batch, self._codes[:, kept], self.stamps[:, kept], self.blocks[kept])

    @staticmethod
    def together(parts: Sequence[Loaded]) -> Loaded:
        """Rows of several as one."""
        if len(parts) == 1:
            return parts[0]
        return Loaded(
            pa.concat_batches([part.source.batch for part in parts]),
            np.concatenate([part._codes for part in parts], axis=1),
            np.concatenate([part.stamps for part in parts], axis=1),
            np.concatenate([part.blocks for part in parts]),
        )

    @property
    def nbytes(self) -> int:
        return int(self.source.batch.nbytes) + self._codes.nbytes + self.stamps.nbytes + self.blocks.nbytes
