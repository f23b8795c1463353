"""One cell in a process of its own: ``python -m millrace_bench.rivals.cell_worker '{…}'`` prints JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace_bench.engines.batch_engine import Place, Rival
from millrace_bench.engines.engine_list import ENGINES
from millrace_bench.rivals.cell import Cell, Found
from millrace_bench.shared import data
from millrace_bench.shared.memory import PeakMemory
from millrace_bench.shared.row_checksum import RowChecksum

MOST_MEMORY = 18_000_000_000
"""Bytes that a process may ask for: enough for anybody here, and the machine survives who asks for more."""

_STREAM_BATCH = 1_000_000
_PATIENCE = 4  # times the warm-up, for engines that are not settled before
_READ = 1 << 24


@dataclass(frozen=True)
class Limits:
    """When a measurement ends."""

    warm: float = 1.5
    """Seconds of warm-up; up to four times as long for caches that are not full."""
    seconds: float = 2.0
    batches: int = 1_000
    """Measure for so many seconds or batches, whichever is less."""
    longest: float = 60.0
    """A batch that takes longer ends it."""
    tuples: int = 6_000_000
    """Length of the stream; who needs more begins again."""


def main() -> None:
    asked = json.loads(sys.argv[1])
    directory, limits = Path(asked["directory"]), Limits(**asked["limits"])
    for plain in asked.get("prepare", ()):
        _prepared(Cell(**plain), directory, limits)
    if "cell" in asked:
        print(json.dumps(asdict(_tried(Cell(**asked["cell"]), directory, limits))))


def _prepared(cell: Cell, directory: Path, limits: Limits) -> None:
    """Make what is not there: the master in the engine's form, and the stream."""
    rival = _rival(cell, directory)
    rival.prepare()
    _stream(rival.place, cell, limits)


def _rival(cell: Cell, directory: Path) -> Rival:
    return ENGINES[cell.engine](Place(directory, cell.rows, cell.memory))


def _tried(cell: Cell, directory: Path, limits: Limits) -> Found:
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    try:
        return measured(_rival(cell, directory), cell, limits)
    except Exception as error:
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            return Found(failed="out of memory")
        raise


def measured(rival: Rival, cell: Cell, limits: Limits) -> Found:
    """Warm an engine up, measure it, and add up what it gives for the first batch.

    Files are read once before, so that nobody waits for the disk. Memory counts from before the master is opened.
    """
    for path in rival.prepare():
        _read_through(path)
    stream = data.open_stream(_stream(rival.place, cell, limits))
    rival.load()
    feed = batches(stream, cell.batch_rows)
    with PeakMemory() as memory:
        rival.open()
        slow = _warm(rival, feed, limits)
        durations = [] if slow > limits.longest else _timed(rival, feed, limits)
    if not durations:
        return Found(failed=f"{slow:.0f} s for a batch", settings=rival.settings, memory_growth=memory.growth)
    checksum = RowChecksum()
    for rows in rival.whole(next(batches(stream, cell.batch_rows))):
        checksum.add(rows)
    return Found(
        rate=cell.batch_rows * len(durations) / sum(durations),
        p50=rival.latency(durations, 0.5),
        p99=rival.latency(durations, 0.99),
        batches=len(durations),
        memory_growth=memory.growth,
        checksum=str(checksum),
        settings=rival.settings,
    )


def batches(stream: pa.ipc.RecordBatchFileReader, rows: int) -> Iterator[pa.RecordBatch]:
    """The stream over and over, so many rows at a time."""
    while True:
        for number in range(stream.num_record_batches):
            batch = stream.get_batch(number)
            for at in range(0, len(batch) - rows + 1, rows):
                yield batch.slice(at, rows)


def _stream(place: Place, cell: Cell, limits: Limits) -> Path:
    of = max(cell.batch_rows, min(_STREAM_BATCH, limits.tuples))
    return data.stream(place.directory, cell.rows, cell.skew, max(of, limits.tuples // of * of), of)


def _warm(rival: Rival, feed: Iterator[pa.RecordBatch], limits: Limits) -> float:
    """Join batches until the engine has settled; the seconds of the longest."""
    began, longest, number = time.perf_counter(), 0.0, 0
    while True:
        start = time.perf_counter()
        _count(rival.join(next(feed)))
        now = time.perf_counter()
        longest, number = max(longest, now - start), number + 1
        settled, spent = rival.settled(), now - began
        if longest > limits.longest or spent > _PATIENCE * limits.warm + limits.longest:
            return longest
        if spent >= limits.warm and (settled or (spent >= _PATIENCE * limits.warm and number > 1)):
            return longest


def _timed(rival: Rival, feed: Iterator[pa.RecordBatch], limits: Limits) -> list[float]:
    durations: list[float] = []
    while sum(durations) < limits.seconds and len(durations) < limits.batches:
        batch = next(feed)
        start = time.perf_counter()
        _count(rival.join(batch))
        durations.append(time.perf_counter() - start)
        if durations[-1] > limits.longest:
            break
    return durations


def _count(outs: Iterable[Any]) -> int:
    return sum(len(out) for out in outs)


def _read_through(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(_READ):
            continue


if __name__ == "__main__":
    main()
