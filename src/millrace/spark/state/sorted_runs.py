"""One input's rows in the state store, as sorted runs. Runs are merged so that their number stays small.

::

    runs       ▇▇▇▇▇▇▇▇▇▇▇▇   ▇▇▇▇   ▇   ▇        a run is a sequence of rows, sorted by key code and cut into chunks
    micro-batch ──────────────────────────► ▇     the last four runs are merged unless the oldest of them is larger
                                                  than the other three together

A chunk is one value of a map state. The head of the shard's state records the number of each chunk, its least and
greatest key code, and its size in rows and bytes. So a chunk that cannot contain the codes looked for is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.spark.state.keyed_runs import RestoreRows, RunRows
from millrace.spark.transport.batch_bytes import from_blob, to_blob

_MERGED_RUNS = 4


class RunChunk(NamedTuple):
    """Entry of a shard's state for a chunk of sorted rows, whose key codes are from ``least`` to ``most``."""

    number: int
    least: int
    most: int
    rows: int
    nbytes: int


Run = list[RunChunk]


class SortedRuns:
    """The rows of one input in the state store.

    Parameters
    ----------
    restore
        Function that converts the rows in a chunk to :class:`RunRows`.
    side
        Number of the input.
    chunk_bytes
        Size of a chunk, in bytes.
    state
        Spark's map state that contains the chunks, as bytes in Arrow's format, by number.
    known
        The chunks in the state after the last micro-batch, as the head of the state records them: a list of runs, each
        a list of chunks, each a list of the values of a :class:`RunChunk`.
    """

    def __init__(
        self, restore: RestoreRows, side: int, chunk_bytes: int, state: Any, known: list[list[list[int]]]
    ) -> None:
        self._restore, self._side, self._chunk_bytes, self._state = restore, side, chunk_bytes, state
        self._runs: list[Run] = [[RunChunk(*chunk) for chunk in run] for run in known]
        self._next = 1 + max((chunk.number for run in self._runs for chunk in run), default=-1)
        self._read_count = self._skipped_count = self._written_count = 0

    @property
    def known(self) -> list[Run]:
        """The chunks of each run, as they are recorded in the head of the shard's state."""
        return self._runs

    @property
    def rows(self) -> int:
        """Number of rows in the state; with a band, a left row counts once for every bucket that it was copied to."""
        return sum(chunk.rows for run in self._runs for chunk in run)

    @property
    def nbytes(self) -> int:
        """Size of all chunks, in bytes."""
        return sum(map(_nbytes, self._runs))

    @property
    def chunks_read(self) -> int:
        """Number of chunk reads so far in this micro-batch."""
        return self._read_count

    @property
    def chunks_skipped(self) -> int:
        """Number of chunk reads avoided in this micro-batch so far because a chunk cannot contain the wanted codes."""
        return self._skipped_count

    @property
    def chunks_written(self) -> int:
        """Number of chunks written so far in this micro-batch."""
        return self._written_count

    def overlapping(self, codes: npt.NDArray[np.int64]) -> Iterator[RunRows]:
        """Yield the chunks that may contain any of these sorted codes. Only one chunk is in memory at a time."""
        for run in self._runs:
            for chunk in run:
                place = int(np.searchsorted(codes, chunk.least, "left"))
                if place < len(codes) and codes[place] <= chunk.most:
                    yield self._read(chunk)
                else:
                    self._skipped_count += 1

    def all(self) -> Iterator[RunRows]:
        """Yield every chunk. Only one chunk is in memory at a time."""
        return (self._read(chunk) for run in self._runs for chunk in run)

    def add(self, rows: RunRows) -> None:
        """Write new rows as a run, and merge the last runs if there are too many."""
        if not len(rows.rows):
            return
        self._runs.append(self._write(iter([rows])))
        while len(self._runs) >= _MERGED_RUNS:
            last = self._runs[-_MERGED_RUNS:]
            if _nbytes(last[0]) > sum(map(_nbytes, last[1:])):
                break
            merged = partial(_merged, self._restore, self._side)
            self._runs[-_MERGED_RUNS:] = [self._write(reduce(merged, map(self._removed, last)))]

    def _removed(self, run: Run) -> Iterator[RunRows]:
        """Yield a run's chunks; remove each from the state once it is read."""
        for chunk in run:
            rows = self._read(chunk)
            self._state.removeKey((chunk.number,))
            yield rows

    def _read(self, chunk: RunChunk) -> RunRows:
        self._read_count += 1
        rows = from_blob(bytes(self._state.getValue((chunk.number,))[0]))
        return self._restore(rows, self._side, sort=False)

    def _write(self, pieces: Iterator[RunRows]) -> Run:
        """Write rows, given in pieces with ascending codes, as chunks of ``chunk_bytes``; return them as a run."""
        run: Run = []
        pending: list[pa.RecordBatch] = []
        size = 0
        for piece in pieces:
            pending.append(piece.rows)
            size += piece.rows.nbytes
            if size >= self._chunk_bytes:
                rows = self._combined(pending)
                each = max(1, len(rows.rows) * self._chunk_bytes // size)
                whole = len(rows.rows) - len(rows.rows) % each
                run += [self._put(rows.cut(start, start + each)) for start in range(0, whole, each)]
                pending = [rows.rows.slice(whole)] if whole < len(rows.rows) else []
                size = sum(rest.nbytes for rest in pending)
        if pending:
            run.append(self._put(self._combined(pending)))
        return run

    def _combined(self, pieces: list[pa.RecordBatch]) -> RunRows:
        if len(pieces) == 1:
            return self._restore(pieces[0], self._side, sort=False)
        return self._restore(pa.concat_batches(pieces), self._side)

    def _put(self, rows: RunRows) -> RunChunk:
        blob = to_blob(rows.rows)
        chunk = RunChunk(self._next, int(rows.codes[0]), int(rows.codes[-1]), len(rows.codes), len(blob))
        self._state.updateValue((chunk.number,), (blob,))
        self._next += 1
        self._written_count += 1
        return chunk


def _nbytes(run: Run) -> int:
    return sum(chunk.nbytes for chunk in run)


def _merged(restore: RestoreRows, side: int, one: Iterator[RunRows], other: Iterator[RunRows]) -> Iterator[RunRows]:
    """Merge two sequences of pieces with ascending codes into one; one piece of each is in memory at a time."""
    ours, theirs = next(one, None), next(other, None)
    while ours is not None and theirs is not None:
        edge = min(ours.codes[-1], theirs.codes[-1])
        here, there = (int(np.searchsorted(rows.codes, edge, "right")) for rows in (ours, theirs))
        yield restore(pa.concat_batches([ours.cut(0, here).rows, theirs.cut(0, there).rows]), side)
        ours = ours.cut(here, len(ours.codes)) if here < len(ours.codes) else next(one, None)
        theirs = theirs.cut(there, len(theirs.codes)) if there < len(theirs.codes) else next(other, None)
    for rest, more in ((ours, one), (theirs, other)):
        if rest is not None:
            yield rest
            yield from more
