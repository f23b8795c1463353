"""One input's rows in the state store: sorted runs, each a row of chunks, merged before they become many.

::

    runs       ▇▇▇▇▇▇▇▇▇▇▇▇   ▇▇▇▇   ▇   ▇        a run's chunks cover ranges of codes that follow each other
    micro-batch ──────────────────────────► ▇     the last four become one when the oldest of them is not the bulk

A chunk is one value of a map state; what is known of it (its number, least and greatest code, rows and bytes) is in the
shard's head, so a chunk with no code of interest is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.spark.plans.stream_join_plan import OperatorPlan, SortedRows
from millrace.spark.transport.batch_bytes import from_blob, to_blob

_TOGETHER = 4


class Chunk(NamedTuple):
    """What is known of a chunk without reading it."""

    number: int
    least: int
    most: int
    rows: int
    nbytes: int


Run = list[Chunk]


class Runs:
    """The rows of one input.

    Parameters
    ----------
    state
        A map state from numbers to blobs.
    known
        What :meth:`known` said after the last micro-batch.
    """

    def __init__(self, plan: OperatorPlan, side: int, state: Any, known: list[list[list[int]]]) -> None:
        self._plan, self._side, self._state = plan, side, state
        self._runs: list[Run] = [[Chunk(*chunk) for chunk in run] for run in known]
        self._next = 1 + max((chunk.number for run in self._runs for chunk in run), default=-1)
        self.read = self.skipped = self.written = 0

    def known(self) -> list[Run]:
        """What is to be remembered of the chunks."""
        return self._runs

    @property
    def rows(self) -> int:
        """Rows in the state; with a band, a left row counts once for every bucket."""
        return sum(chunk.rows for run in self._runs for chunk in run)

    @property
    def nbytes(self) -> int:
        """Bytes of all blobs."""
        return sum(map(_nbytes, self._runs))

    def facing(self, codes: npt.NDArray[np.int64]) -> Iterator[SortedRows]:
        """The chunks that may have one of these codes, which are sorted; one in memory at a time."""
        for run in self._runs:
            for chunk in run:
                place = int(np.searchsorted(codes, chunk.least, "left"))
                if place < len(codes) and codes[place] <= chunk.most:
                    yield self._read(chunk)
                else:
                    self.skipped += 1

    def all(self) -> Iterator[SortedRows]:
        """Every chunk, one in memory at a time."""
        return (self._read(chunk) for run in self._runs for chunk in run)

    def add(self, rows: SortedRows) -> None:
        """Write new rows down, and merge runs if there are too many."""
        if not len(rows.rows):
            return
        self._runs.append(self._write(iter([rows])))
        while len(self._runs) >= _TOGETHER:
            last = self._runs[-_TOGETHER:]
            if _nbytes(last[0]) > sum(map(_nbytes, last[1:])):
                break
            merged = partial(_merged, self._plan, self._side)
            self._runs[-_TOGETHER:] = [self._write(reduce(merged, map(self._taken, last)))]

    def _taken(self, run: Run) -> Iterator[SortedRows]:
        """A run's chunks, each gone from the state when it was read."""
        for chunk in run:
            rows = self._read(chunk)
            self._state.removeKey((chunk.number,))
            yield rows

    def _read(self, chunk: Chunk) -> SortedRows:
        self.read += 1
        rows = from_blob(bytes(self._state.getValue((chunk.number,))[0]))
        return self._plan.again(rows, self._side, sort=False)

    def _write(self, pieces: Iterator[SortedRows]) -> Run:
        """Pieces whose codes follow each other as chunks of the right size."""
        run: Run = []
        held: list[pa.RecordBatch] = []
        size = 0
        for piece in pieces:
            held.append(piece.rows)
            size += piece.rows.nbytes
            if size >= self._plan.chunk_bytes:
                rows = self._in_one(held)
                each = max(1, len(rows.rows) * self._plan.chunk_bytes // size)
                whole = len(rows.rows) - len(rows.rows) % each
                run += [self._put(rows.cut(start, start + each)) for start in range(0, whole, each)]
                held = [rows.rows.slice(whole)] if whole < len(rows.rows) else []
                size = sum(rest.nbytes for rest in held)
        if held:
            run.append(self._put(self._in_one(held)))
        return run

    def _in_one(self, held: list[pa.RecordBatch]) -> SortedRows:
        if len(held) == 1:
            return self._plan.again(held[0], self._side, sort=False)
        return self._plan.again(pa.concat_batches(held), self._side)

    def _put(self, rows: SortedRows) -> Chunk:
        blob = to_blob(rows.rows)
        chunk = Chunk(self._next, int(rows.codes[0]), int(rows.codes[-1]), len(rows.codes), len(blob))
        self._state.updateValue((chunk.number,), (blob,))
        self._next += 1
        self.written += 1
        return chunk


def _nbytes(run: Run) -> int:
    return sum(chunk.nbytes for chunk in run)


def _merged(
    plan: OperatorPlan, side: int, one: Iterator[SortedRows], other: Iterator[SortedRows]
) -> Iterator[SortedRows]:
    """Two sequences of rows with ascending codes as one, with a piece of each in memory."""
    ours, theirs = next(one, None), next(other, None)
    while ours is not None and theirs is not None:
        edge = min(ours.codes[-1], theirs.codes[-1])
        here, there = (int(np.searchsorted(rows.codes, edge, "right")) for rows in (ours, theirs))
        yield plan.again(pa.concat_batches([ours.cut(0, here).rows, theirs.cut(0, there).rows]), side)
        ours = ours.cut(here, len(ours.codes)) if here < len(ours.codes) else next(one, None)
        theirs = theirs.cut(there, len(theirs.codes)) if there < len(theirs.codes) else next(other, None)
    for rest, more in ((ours, one), (theirs, other)):
        if rest is not None:
            yield rest
            yield from more
