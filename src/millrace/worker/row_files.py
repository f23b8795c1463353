"""Local files through which one step of a task passes rows to the next.

A file belongs to one task, on one machine. It is unlinked before its first row is read. A file that is never read,
because its reader was killed or stopped early, is removed when new files are written at least 15 minutes later, or with
Spark's local directory.
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
from millrace.core.files.leftovers import remove_unused
from millrace.worker.scratch import local_directory

ROLE, READER = "MILLRACE_ROLE", "reader"
"""The name and the value of the environment variable of workers that only read rows from files."""

_FOLDER = "millrace-output"

_LEFTOVER_SECONDS = 900.0
"""Age at which a file that was not read is removed, in seconds; files are normally read at once."""
_TIDY_SECONDS = 60.0
"""Least time between two searches for files that were not read, in seconds."""

_numbers = count()
_tidied: dict[Path, float] = {}
"""The time at which each folder was last searched for files that were not read, in seconds since 1970."""


def write_rows(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> str:
    """Write rows to a new file, and return its path."""
    path = _new_file()
    try:
        _write(path, batches, schema)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return str(path)


def read_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files whose paths are in the first column, and remove the files."""
    for batch in batches:
        opened = [_open_once(path) for path in batch.column(0).to_pylist() if path is not None]
        for source in opened:
            yield from pa.ipc.open_stream(source)


def _open_once(path: str) -> pa.MemoryMappedFile:
    """Open a file, and unlink it: no other reader needs it."""
    try:
        source = pa.memory_map(path)
        os.unlink(path)
    except FileNotFoundError:
        raise StateError(
            f"{path}: the rows that the previous step of this task wrote are gone: something deletes files from "
            "Spark's local directory while it is in use. Start the query again: it continues from its checkpoint"
        ) from None
    return source


def _new_file() -> Path:
    """Return the path for a new file; at most once a minute, remove old files from its folder."""
    folder = local_directory() / _FOLDER
    with _space_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = time.time()
    if _tidied.get(folder, 0.0) < now - _TIDY_SECONDS:
        _tidied[folder] = now
        remove_unused(folder, "*.arrow", _LEFTOVER_SECONDS)
    return folder / f"{os.getpid()}-{next(_numbers)}.arrow"


def _write(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write batches in Arrow's stream format. Disk errors become :class:`SpillError`; others are raised unchanged."""
    with _space_errors(path):
        sink = pa.OSFile(str(path), "wb")
        writer = pa.ipc.new_stream(sink, schema)
    for batch in batches:
        with _space_errors(path):
            writer.write_batch(batch)
    with _space_errors(path):
        writer.close()
        sink.close()


@contextmanager
def _space_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a :class:`SpillError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise SpillError(
            f"{path}: output rows cannot be written there: {error}. A stream needs as much space on Spark's local disk "
            "as the rows of a micro-batch take: free some, set spark.local.dir to a larger disk, or make the "
            "micro-batches smaller. Then start the query again: it continues from its checkpoint"
        ) from error
