"""Disk space for blocks of bytes that a join writes and reads again, with a file for each kind of block.

A spill area is a directory with a lock file beside it, which the process keeps locked until the area is closed::

    <directory>/.spill-0123456789ab.lock
    <directory>/.spill-0123456789ab/0-left.spill  1-right.spill  …

If a process is killed, its lock file is no longer locked. The next area created in the same directory then removes the
killed process's area.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
import weakref
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import SpillError, StateError
from millrace.core.files.leftovers import WorkDirectory, remove_leftovers
from millrace.core.sizes import format_size
from millrace.kernels.checksum import checksum

_PREFIX = ".spill-"

Bytes: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[Any] | pa.Buffer"

BlockId: TypeAlias = int

ENTRY_BYTES = 320
"""Upper bound on the bytes of memory that the area itself needs to keep track of a block."""


class SpillEntry(NamedTuple):
    """Where a block is in its file, and the checksum of its bytes."""

    kind: str
    offset: int
    nbytes: int
    checksum: int


@dataclass
class SpillCounts:
    """Counters of a spill area since it was created, and its current contents."""

    blocks: int = 0
    """Number of blocks stored now."""
    nbytes: int = 0
    """Bytes of the blocks stored now."""
    file_bytes: int = 0
    """Total length of the files in bytes: the stored blocks, and freed room that is not reused yet."""
    most_file_bytes: int = 0
    """Largest total length that the files have had, in bytes."""
    blocks_written: int = 0
    """Number of blocks written."""
    blocks_read: int = 0
    """Number of blocks read."""
    blocks_freed: int = 0
    """Number of blocks freed."""
    bytes_written: int = 0
    """Bytes written."""
    bytes_read: int = 0
    """Bytes read."""
    seeks: int = 0
    """Number of reads and writes that did not begin where the previous one ended; used in ``DiskModel.seconds``."""


class SpillArea:
    """Disk space for blocks of bytes. Use as a context manager, or call :meth:`close`.

    Parameters
    ----------
    directory
        Parent of the directory that the area creates for itself; by default the system's directory for temporary files.
        The parent is created if it does not exist.

    Notes
    -----
    A block is written into the room of freed blocks if it fits there, else appended. Free room at the end of a file is
    cut off. Only one thread may use an area at a time. Files are not synced to disk, as blocks need not outlive the
    process.

    Examples
    --------
    >>> with SpillArea() as area:
    ...     block = area.write("left", [b"early ", b"birds"])
    ...     bytes(area.read(block)), area.nbytes, area.blocks
    (b'early birds', 11, 1)
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        parent = Path(os.path.realpath(tempfile.gettempdir() if directory is None else directory))
        self._counts = SpillCounts()
        self._blocks: dict[BlockId, SpillEntry] = {}
        self._files: dict[str, SpillFile] = {}
        self._next = 0
        self._head: tuple[str, int] | None = None
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(parent, _PREFIX)
            work = WorkDirectory(parent, _PREFIX, 0o700)
        except OSError as error:
            raise SpillError(f"{parent}: cannot create a spill area there: {_reason(error)}") from error
        self.directory = work.path
        self._remove = weakref.finalize(self, _remove_area, work, self._files)

    def write(self, kind: str, buffers: Iterable[Bytes]) -> BlockId:
        """Write the bytes of all buffers, one after the other, as one block, and return the number of the block.

        If writing fails, nothing is stored, and all other blocks are intact.
        """
        pieces = [piece for piece in map(as_bytes, buffers) if piece.nbytes]
        data = b"".join(pieces) if len(pieces) != 1 else pieces[0]
        nbytes = len(data)
        sum_ = checksum(np.frombuffer(data, np.uint8))
        file = self._file(kind)
        offset = file.find_room(nbytes)
        try:
            file.write(offset, memoryview(data))
        except OSError as error:
            file.forget_tail()
            raise SpillError(
                f"{self.directory}: {format_size(nbytes)} ({nbytes} bytes) of {kind!r} could not be written: "
                f"{_reason(error)}; the {len(self._blocks)} blocks written before are intact"
            ) from error
        file.take_room(offset, nbytes)
        block, self._next = self._next, self._next + 1
        self._blocks[block] = SpillEntry(kind, offset, nbytes, sum_)
        counts = self._counts
        counts.blocks_written += 1
        counts.bytes_written += nbytes
        self._moved(kind, offset, nbytes)
        counts.most_file_bytes = max(counts.most_file_bytes, self.file_bytes)
        return block

    def read(self, block: BlockId, into: memoryview | None = None) -> memoryview:
        """Return the bytes of a block, after checking that they have not changed.

        If ``into`` is given, the bytes are read into it; it must be large enough.
        """
        kind, offset, nbytes, expected = self._entry(block)
        file = self._file(kind)
        if into is None:
            into = np.empty(nbytes, np.uint8).data
        elif into.nbytes < nbytes:
            raise ValueError(f"block {block}: expected room for {nbytes} bytes; got {into.nbytes}")
        found = into.cast("B")[:nbytes]
        try:
            came = file.read(offset, found)
        except OSError as error:
            raise SpillError(f"{file.path}: block {block} could not be read: {_reason(error)}") from error
        if came < nbytes:
            raise SpillError(
                f"{file.path}: block {block} is cut off: expected {nbytes} bytes at byte {offset}; got {came}"
            )
        if (sum_ := checksum(np.frombuffer(found, np.uint8))) != expected:
            raise SpillError(
                f"{file.path}: block {block} ({nbytes} bytes at byte {offset}) has changed: "
                f"expected checksum {expected:016x}; got {sum_:016x}"
            )
        self._counts.blocks_read += 1
        self._counts.bytes_read += nbytes
        self._moved(kind, offset, nbytes)
        return found.toreadonly()

    def free(self, block: BlockId) -> None:
        """Free a block, so that its room on disk can be reused."""
        kind, offset, nbytes, _ = self._entry(block)
        self._file(kind).give_room(offset, nbytes)
        del self._blocks[block]
        self._counts.blocks_freed += 1

    def size(self, block: BlockId) -> int:
        """Return the length of a block in bytes."""
        return self._entry(block).nbytes

    @property
    def blocks(self) -> int:
        """Number of blocks stored now."""
        return len(self._blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks stored now."""
        return sum(file.used for file in self._files.values())

    @property
    def file_bytes(self) -> int:
        """Total length of the files in bytes."""
        return sum(file.end for file in self._files.values())

    @property
    def bytes_written(self) -> int:
        return self._counts.bytes_written

    @property
    def bytes_read(self) -> int:
        return self._counts.bytes_read

    @property
    def blocks_written(self) -> int:
        return self._counts.blocks_written

    @property
    def blocks_read(self) -> int:
        return self._counts.blocks_read

    @property
    def counts(self) -> SpillCounts:
        """All counters, and how many blocks and bytes are stored at the moment."""
        return replace(self._counts, blocks=self.blocks, nbytes=self.nbytes, file_bytes=self.file_bytes)

    @property
    def closed(self) -> bool:
        return not self._remove.alive

    def close(self) -> None:
        """Remove the files. Further calls do nothing."""
        self._remove()
        self._blocks.clear()
        self._files.clear()

    def __enter__(self) -> SpillArea:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_invariants(self) -> None:
        """Assert that blocks and free room fill the files without gap or overlap; for tests."""
        for kind, file in self._files.items():
            taken = [(b.offset, b.offset + b.nbytes) for b in self._blocks.values() if b.kind == kind and b.nbytes]
            place = 0
            for start, end in sorted(taken + list(zip(file.starts, file.ends, strict=True))):
                assert start == place, f"{kind}: a gap or overlap at byte {place}"
                place = end
            assert place == file.end == os.fstat(file.descriptor).st_size, f"{kind}: ends at {place}, not {file.end}"
            assert file.used == sum(end - start for start, end in taken)
            assert not file.ends or file.ends[-1] < file.end, "there is free room at the end of the file"
            holes = [end - start for start, end in zip(file.starts, file.ends, strict=True)]
            assert max(holes, default=0) <= file.largest, f"{kind}: room of {max(holes)} bytes would not be found"

    def _entry(self, block: BlockId) -> SpillEntry:
        self._check_open()
        try:
            return self._blocks[block]
        except KeyError:
            raise StateError(
                f"{self.directory}: there is no block {block}: it was never written, or has been freed"
            ) from None

    def _file(self, kind: str) -> SpillFile:
        self._check_open()
        if kind not in self._files:
            name = re.sub(r"[^A-Za-z0-9_-]", "_", kind)[:40]
            try:
                self._files[kind] = SpillFile(self.directory / f"{len(self._files)}-{name}.spill")
            except OSError as error:
                raise SpillError(f"{self.directory}: cannot create a file for {kind!r}: {_reason(error)}") from error
        return self._files[kind]

    def _moved(self, kind: str, offset: int, nbytes: int) -> None:
        self._counts.seeks += self._head != (kind, offset)
        self._head = (kind, offset + nbytes)

    def _check_open(self) -> None:
        if self.closed:
            raise StateError(f"{self.directory}: the spill area is closed")


class SpillFile:
    """One file of a spill area, and the sorted list of its free intervals. The file never ends with a free interval."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.end = 0
        self.used = 0
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.largest = 0  # an upper bound on the bytes of any free interval

    def find_room(self, nbytes: int) -> int:
        """Return the offset of the first free interval that is large enough, else the end of the file."""
        if not 0 < nbytes <= self.largest:
            return self.end
        found = 0
        for start, end in zip(self.starts, self.ends, strict=True):
            if end - start >= nbytes:
                return start
            found = max(found, end - start)
        self.largest = found
        return self.end

    def take_room(self, offset: int, nbytes: int) -> None:
        """Mark ``nbytes`` bytes at an offset as used."""
        self.used += nbytes
        if offset == self.end:
            self.end += nbytes
        elif nbytes:
            at = bisect_left(self.starts, offset)
            self.starts[at] += nbytes
            if self.starts[at] == self.ends[at]:
                del self.starts[at], self.ends[at]

    def give_room(self, offset: int, nbytes: int) -> None:
        """Mark ``nbytes`` bytes at an offset as free, and truncate the file if they are at its end."""
        self.used -= nbytes
        if not nbytes:
            return
        start, end = offset, offset + nbytes
        at = bisect_left(self.starts, offset)
        if at < len(self.starts) and self.starts[at] == end:
            end = self.ends[at]
            del self.starts[at], self.ends[at]
        if at and self.ends[at - 1] == start:
            at -= 1
            start = self.starts[at]
            del self.starts[at], self.ends[at]
        if end == self.end:
            self.end = start
            self.forget_tail()
        else:
            self.starts.insert(at, start)
            self.ends.insert(at, end)
            self.largest = max(self.largest, end - start)

    def forget_tail(self) -> None:
        """Truncate the file after its last block."""
        os.ftruncate(self.descriptor, self.end)

    def write(self, offset: int, data: memoryview) -> None:
        """Write all bytes of ``data`` at an offset."""
        done = 0
        while done < data.nbytes:
            more = os.pwrite(self.descriptor, data[done:], offset + done)
            if more == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += more

    def read(self, offset: int, into: memoryview) -> int:
        """Fill ``into`` with the bytes at an offset, up to the end of the file; return how many were read."""
        came = 0
        while came < into.nbytes:
            more = os.preadv(self.descriptor, [into[came:]], offset + came)
            if more == 0:
                break
            came += more
        return came


def as_bytes(buffer: Bytes) -> memoryview:
    """Return a view of a buffer's bytes."""
    view = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _reason(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"the disk is full ({error})" if full else str(error)


def _remove_area(work: WorkDirectory, files: dict[str, SpillFile]) -> None:
    """Close the files and remove the directory that contains them."""
    for file in files.values():
        os.close(file.descriptor)
    work.remove()
