"""Measure one cell, an engine in one setting: ``python -m millrace_bench.rivals.cell_worker '{…}'`` prints JSON."""

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

from millrace_bench.engines.batch_engine import BatchEngine, MasterFiles
from millrace_bench.engines.engine_list import ENGINES
from millrace_bench.rivals.cell import Cell, CellResult
from millrace_bench.shared import data
from millrace_bench.shared.memory import PeakMemory
from millrace_bench.shared.row_checksum import RowChecksum

MOST_MEMORY = 18_000_000_000
"""Bytes that a process may allocate: more than any of the engines needs, and less than the machine has."""

_STREAM_BATCH = 1_000_000
_PATIENCE = 4  # an engine that has not settled gets up to this many times the usual warm-up
_READ = 1 << 24


@dataclass(frozen=True)
class Limits:
    """Limits on the time of a measurement and on the length of its stream."""

    warm: float = 1.5
    """Seconds of warm-up. An engine that is still filling its cache, for example, gets up to four times as long."""
    seconds: float = 2.0
    batches: int = 1_000
    """A measurement ends after ``seconds``, or after this number of batches if that is earlier."""
    longest: float = 60.0
    """A batch that takes longer than this many seconds ends the measurement."""
    tuples: int = 6_000_000
    """Number of tuples in the stream; an engine that has read all of them starts over."""


def main() -> None:
    """Prepare or measure the cells that the first command-line argument gives as JSON."""
    request = json.loads(sys.argv[1])
    directory, limits = Path(request["directory"]), Limits(**request["limits"])
    for plain in request.get("prepare", ()):
        _prepare(Cell(**plain), directory, limits)
    if "cell" in request:
        print(json.dumps(asdict(_measure_or_fail(Cell(**request["cell"]), directory, limits))))


def _prepare(cell: Cell, directory: Path, limits: Limits) -> None:
    """Write the master in the engine's format, and the stream, where they are missing."""
    engine = _engine(cell, directory)
    engine.prepare()
    _stream(engine.files, cell, limits)


def _engine(cell: Cell, directory: Path) -> BatchEngine:
    return ENGINES[cell.engine](MasterFiles(directory, cell.rows, cell.memory))


def _measure_or_fail(cell: Cell, directory: Path, limits: Limits) -> CellResult:
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    try:
        return measure(_engine(cell, directory), cell, limits)
    except Exception as error:
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            return CellResult(failed="out of memory")
        raise


def measure(engine: BatchEngine, cell: Cell, limits: Limits) -> CellResult:
    """Warm an engine up, measure it, and compute the checksum of its rows for the first batch.

    The files are read once beforehand, so that no engine waits for the disk. The growth of memory includes opening the
    master.
    """
    for path in engine.prepare():
        _read_through(path)
    stream = data.open_stream(_stream(engine.files, cell, limits))
    engine.load()
    feed = batches(stream, cell.batch_rows)
    with PeakMemory() as memory:
        engine.open()
        slow = _warm(engine, feed, limits)
        durations = [] if slow > limits.longest else _timed(engine, feed, limits)
    if not durations:
        return CellResult(failed=f"{slow:.0f} s for a batch", settings=engine.settings, memory_growth=memory.growth)
    checksum = RowChecksum()
    for rows in engine.whole(next(batches(stream, cell.batch_rows))):
        checksum.add(rows)
    return CellResult(
        rate=cell.batch_rows * len(durations) / sum(durations),
        p50=engine.latency(durations, 0.5),
        p99=engine.latency(durations, 0.99),
        batches=len(durations),
        memory_growth=memory.growth,
        checksum=str(checksum),
        settings=engine.settings,
    )


def batches(stream: pa.ipc.RecordBatchFileReader, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of ``rows`` tuples without end; the stream starts over when it has been read."""
    while True:
        for number in range(stream.num_record_batches):
            batch = stream.get_batch(number)
            for at in range(0, len(batch) - rows + 1, rows):
                yield batch.slice(at, rows)


def _stream(files: MasterFiles, cell: Cell, limits: Limits) -> Path:
    of = max(cell.batch_rows, min(_STREAM_BATCH, limits.tuples))
    return data.stream(files.directory, cell.rows, cell.skew, max(of, limits.tuples // of * of), of)


def _warm(engine: BatchEngine, feed: Iterator[pa.RecordBatch], limits: Limits) -> float:
    """Join batches until the engine has settled or a limit is reached; return the seconds of the slowest batch."""
    began, longest, number = time.perf_counter(), 0.0, 0
    while True:
        start = time.perf_counter()
        _count(engine.join(next(feed)))
        now = time.perf_counter()
        longest, number = max(longest, now - start), number + 1
        settled, spent = engine.settled(), now - began
        if longest > limits.longest or spent > _PATIENCE * limits.warm + limits.longest:
            return longest
        if spent >= limits.warm and (settled or (spent >= _PATIENCE * limits.warm and number > 1)):
            return longest


def _timed(engine: BatchEngine, feed: Iterator[pa.RecordBatch], limits: Limits) -> list[float]:
    durations: list[float] = []
    while sum(durations) < limits.seconds and len(durations) < limits.batches:
        batch = next(feed)
        start = time.perf_counter()
        _count(engine.join(batch))
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
