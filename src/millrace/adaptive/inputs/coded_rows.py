"""Classes for the rows of one input of a multiway join and their key codes: just arrived, in memory, or from disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from millrace.adaptive.array_types import Codes, Counts, Mask, Rows, Stamps
from millrace.adaptive.disk.blocks import BlockRows
from millrace.adaptive.memory.indexed_rows import IndexedRows
from millrace.adaptive.memory.key_ordered_rows import FIRST, LAST
from millrace.adaptive.memory.row_index import MatchedPairs, Workspace
from millrace.adaptive.memory.row_sources import BatchRows, RowSource, SlotRows
from millrace.kernels import bands

_NO_MOMENTS = np.empty((0, 2), np.int64)


class CodedRows(Protocol):
    """Numbered rows, each with a key code for every attribute."""

    @property
    def source(self) -> RowSource:
        """The columns of the rows."""
        ...

    def codes(self, attribute: int) -> Codes:
        """Return the key codes of one attribute, indexed by row number."""
        ...

    def matches(self, attribute: int, lows: Codes, highs: Codes, work: Workspace) -> Iterator[MatchedPairs]:
        """Yield pairs (i, row) in batches: row has a code from ``lows[i]`` to ``highs[i]``. Both arrays are sorted."""
        ...


class MemoryRows:
    """Rows of one input in memory, numbered by slot."""

    def __init__(self, rows: IndexedRows) -> None:
        self._rows = rows
        self.source = SlotRows(rows)

    def codes(self, attribute: int) -> Codes:
        codes: Codes = self._rows.codes[attribute]
        return codes

    def matches(self, attribute: int, lows: Codes, highs: Codes, work: Workspace) -> Iterator[MatchedPairs]:
        return self._rows.views[attribute].matches(lows, highs, work)


class ArrivedRows:
    """Rows of a batch, with key codes indexed by attribute and row."""

    def __init__(self, batch: pa.RecordBatch, codes: Codes) -> None:
        self._codes = codes
        self.source = BatchRows(batch, np.zeros(len(batch), np.uint8))
        self._sorted: dict[int, tuple[Codes, Rows]] = {}

    def __len__(self) -> int:
        return int(self._codes.shape[1])

    def codes(self, attribute: int) -> Codes:
        codes: Codes = self._codes[attribute]
        return codes

    def _sorted_by(self, attribute: int) -> tuple[Codes, Rows]:
        if attribute not in self._sorted:
            order = np.argsort(self._codes[attribute], kind="stable").astype(np.int32)
            self._sorted[attribute] = self._codes[attribute][order], order
        return self._sorted[attribute]

    def matches(self, attribute: int, lows: Codes, highs: Codes, work: Workspace) -> Iterator[MatchedPairs]:
        keys, order = self._sorted_by(attribute)
        never = np.empty((2, 1), np.int64)
        never[0], never[1] = LAST, FIRST  # as if no pair had been joined before: that is checked for whole combinations
        ours, theirs = (np.broadcast_to(never, (2, max(1, len(each)))) for each in (lows, keys))
        cursor = np.array([0, 0, -1], np.int64)
        while cursor[0] < len(lows):
            made = bands.merge(
                lows,
                highs,
                ours.copy(),
                keys,
                theirs.copy(),
                _NO_MOMENTS,
                _NO_MOMENTS,
                _NO_MOMENTS,
                cursor,
                work.rows,
                work.slots,
            )
            if made:
                at = work.slots[:made]
                yield MatchedPairs(work.rows[:made], order[at], keys[at])

    def near(self, attribute: int, lows: Codes, highs: Codes) -> Mask:
        """Return a mask of the rows with a code from ``lows[i]`` to ``highs[i]`` for any i. Both arrays are sorted."""
        codes = self._codes[attribute]
        first = np.searchsorted(highs, codes)
        inside: Mask = first < len(lows)
        inside[inside] = lows[first[inside]] <= codes[inside]
        return inside


class LoadedRows(ArrivedRows):
    """Rows read from disk, each with its arrival and departure time and the position of its block in the block list."""

    def __init__(self, batch: pa.RecordBatch, codes: Codes, stamps: Stamps, blocks: Counts) -> None:
        super().__init__(batch, codes)
        self.stamps, self.blocks = stamps, blocks

    @staticmethod
    def of(read: BlockRows, codes: Sequence[Codes]) -> LoadedRows:
        """Create the rows from blocks; ``codes`` holds the key codes of each attribute except the first."""
        rows = len(read.codes)
        first, stamps = np.empty(rows, np.int64), np.empty((2, rows), np.int64)
        first[read.order], stamps[:, read.order] = read.codes, read.stamps
        places, counts = [at for at, _, _ in read.parts], [count for _, _, count in read.parts]
        blocks = np.repeat(np.array(places, np.int64), counts)
        return LoadedRows(read.source.batch, np.stack([first, *codes]), stamps, blocks)

    def only(self, kept: Mask) -> LoadedRows:
        """Return the rows that a mask selects."""
        if kept.all():
            return self
        batch = self.source.batch.filter(pa.array(kept))
        return LoadedRows(batch, self._codes[:, kept], self.stamps[:, kept], self.blocks[kept])

    @staticmethod
    def concat(parts: Sequence[LoadedRows]) -> LoadedRows:
        """Combine the rows of several reads."""
        if len(parts) == 1:
            return parts[0]
        return LoadedRows(
            pa.concat_batches([part.source.batch for part in parts]),
            np.concatenate([part._codes for part in parts], axis=1),
            np.concatenate([part.stamps for part in parts], axis=1),
            np.concatenate([part.blocks for part in parts]),
        )

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory."""
        return int(self.source.batch.nbytes) + self._codes.nbytes + self.stamps.nbytes + self.blocks.nbytes
