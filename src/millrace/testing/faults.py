"""Injects faults into tests: sources that fail midway, damaged files and full disks.

For tests that need a fake clock, the module also exports :class:`millrace.core.clock.VirtualClock`, which a
:class:`~millrace.master.device.Device` advances.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.adaptive.disk import spill_files as spill
from millrace.core.clock import VirtualClock
from millrace.master.write.build_store import ShardWriter

__all__ = [
    "Interrupting",
    "VirtualClock",
    "failing",
    "files_of",
    "flip_byte",
    "full_disk",
    "in_child",
    "largest_file",
    "spill_room",
    "truncate",
]


_PATIENCE = 60


class Interrupting:
    """A source that yields the first ``after`` batches and then raises an error, as a lost connection or Ctrl-C does.

    >>> batches = [pa.record_batch({"a": [1]})] * 3
    >>> list(Interrupting(batches, after=1, error=OSError("gone")))
    Traceback (most recent call last):
    OSError: gone
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], after: int, error: BaseException | None = None) -> None:
        self._batches = batches
        self._after = after
        self._error = KeyboardInterrupt() if error is None else error

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(self._batches):
            if number == self._after:
                raise self._error
            yield batch


def failing(batches: Iterable[pa.RecordBatch], after: int) -> Iterator[pa.RecordBatch]:
    """Yield the first ``after`` batches, then raise an ``OSError``."""
    return iter(Interrupting(batches, after, OSError(errno.ECONNRESET, "the source went away")))


def truncate(path: Path, by: int = 1) -> None:
    """Cut ``by`` bytes off the end of a file."""
    os.truncate(path, max(0, path.stat().st_size - by))


def flip_byte(path: Path, at: int) -> None:
    """Invert all bits of one byte of a file; a negative ``at`` counts from the end."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def files_of(store: Path) -> list[Path]:
    """Return the paths of all files of a store."""
    return sorted(path for path in store.rglob("*") if path.is_file())


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """Raise "no space left" in the ``with`` block when a shard gets its ``after``-th batch, and for later batches."""
    append = ShardWriter.append

    def full(self: ShardWriter, batch: pa.RecordBatch, codes: np.typing.NDArray[np.int64]) -> None:
        count = self.__dict__["appended"] = self.__dict__.get("appended", 0) + 1
        if count >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, batch, codes)

    ShardWriter.append = full  # type: ignore[method-assign]
    try:
        yield
    finally:
        ShardWriter.append = append  # type: ignore[method-assign]


@contextmanager
def spill_room(nbytes: int) -> Iterator[None]:
    """Raise "no space left" when the writes to spill files in the ``with`` block exceed ``nbytes`` bytes in all."""
    write = spill.SpillFile.write
    left = nbytes

    def limited(self: spill.SpillFile, offset: int, data: memoryview) -> None:
        nonlocal left
        write(self, offset, data[:left])
        if data.nbytes > left:
            left = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= data.nbytes

    spill.SpillFile.write = limited  # type: ignore[method-assign]
    try:
        yield
    finally:
        spill.SpillFile.write = write  # type: ignore[method-assign]


def largest_file(nbytes: int) -> None:
    """Limit each file that this process writes to ``nbytes`` bytes: writing more fails with ``EFBIG``.

    Most processes cannot raise the limit again; call this in a child process (:func:`in_child`).
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def in_child(work: Callable[..., Any], *arguments: Any) -> int:
    """Run a module's function in a new process; return its exit code: 0, 1 after an error, or minus a signal number.

    The process is spawned, not forked: Arrow and Millrace have threads, which a forked process would lack.
    """
    child = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    child.start()
    child.join(_PATIENCE)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError(f"the child process did not end within {_PATIENCE} s")
    return child.exitcode
