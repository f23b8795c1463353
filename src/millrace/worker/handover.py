"""Rows that one step of a task hands to the next through a local file.

A file belongs to one task, on one machine. It is unlinked before its first row is read; what was never read, because
somebody was killed or asked for nothing, is removed after a while, and all of it with Spark's local directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pyarrow as pa

from millrace.core.errors import SpillError, StateError
from millrace.worker.scratch import local_directory

ROLE, READER = "MILLRACE_ROLE", "reader"
"""The environment of workers that only read what others have written."""

_FOLDER = "millrace-leaving"

_LONG_SECONDS = 900.0
"""After this time a file that was written will not be read any more: that happens at once."""
_TIDY_SECONDS = 60.0

_numbers = count()
_tidied: dict[Path, float] = {}


def write_down(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> str:
    """Write rows to a file; its path."""
    path = _new_file()
    try:
        _write(path, batches, schema)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return str(path)


def read_again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that were written down."""
    for batch in batches:
        opened = [_opened(path) for path in batch.column(0).to_pylist() if path is not None]
        for source in opened:
            yield from pa.ipc.open_stream(source)


def _opened(path: str) -> pa.MemoryMappedFile:
    """A file that nobody else will need."""
    try:
        source = pa.memory_map(path)
        os.unlink(path)
    except FileNotFoundError:
        raise StateError(
            f"{path}: the rows that a step of this task has written are gone: somebody clears Spark's local directory "
            "while it is in use. Start the query again: it goes on from its checkpoint"
        ) from None
    return source


def _new_file() -> Path:
    """A file in a directory of the executor, from which files that nobody will read are removed now and then."""
    folder = local_directory() / _FOLDER
    with _room(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = time.time()
    if _tidied.get(folder, 0.0) < now - _TIDY_SECONDS:
        _tidied[folder] = now
        for left in folder.glob("*.arrow"):
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < now - _LONG_SECONDS:
                    left.unlink()
    return folder / f"{os.getpid()}-{next(_numbers)}.arrow"


def _write(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    with _room(path):
        sink = pa.OSFile(str(path), "wb")
        writer = pa.ipc.new_stream(sink, schema)
    for batch in batches:
        with _room(path):
            writer.write_batch(batch)
    with _room(path):
        writer.close()
        sink.close()


@contextmanager
def _room(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpillError(
            f"{path}: output rows cannot be written there: {error}. A stream needs as much of Spark's local disk "
            "as the rows of a micro-batch take: make room, name a larger one in spark.local.dir, or have smaller "
            "micro-batches. The query goes on from its checkpoint then"
        ) from error
