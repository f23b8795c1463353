"""Blocks on disk: written once, read as often as wanted, gone with the join."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NewType

import numpy as np

from millrace.core.errors import MillraceError
from millrace.kernels.checksum import checksum

BlockId = NewType("BlockId", int)


class SpillError(MillraceError, OSError):
    """A block could not be written or read back."""


class _Entry(NamedTuple):
    start: int
    length: int
    check: int
    kind: str


class SpillArea:
    """A file of blocks in a directory of its own.

    Parameters
    ----------
    directory
        Where the file is made; by default where the machine keeps temporary files.
    """

    def __init__(self, directory: Path | None = None) -> None:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="millrace-", dir=directory))
        self._file = (self._folder / "blocks").open("w+b", buffering=0)
        self._gone = weakref.finalize(self, _remove, self._file, self._folder)
        self._blocks: dict[int, _Entry] = {}
        self._made = self._end = 0
        self._holes: dict[int, list[int]] = {}
        self.nbytes = self.bytes_written = self.bytes_read = 0

    def write(self, kind: str, payload: Sequence[Any]) -> BlockId:
        """Keep the bytes of some buffers as one block."""
        data = b"".join(bytes(memoryview(part).cast("B")) for part in payload)
        holes = self._holes.get(len(data))
        start = holes.pop() if holes else self._end
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._file.fileno(), memoryview(data)[done:], start + done)
        except OSError as error:
            raise SpillError(f"spill: {len(data)} bytes could not be written to {self._folder}: {error}") from error
        self._end = max(self._end, start + len(data))
        block = BlockId(self._made)
        self._made += 1
        self._blocks[block] = _Entry(start, len(data), checksum(np.frombuffer(data, np.uint8)), kind)
        self.nbytes += len(data)
        self.bytes_written += len(data)
        return block

    def read(self, block: BlockId) -> bytes:
        """The bytes of a block, as they were written."""
        entry = self._blocks[block]
        data = os.pread(self._file.fileno(), entry.length, entry.start)
        if len(data) != entry.length or checksum(np.frombuffer(data, np.uint8)) != entry.check:
            raise SpillError(f"spill: a block of kind {entry.kind!r} in {self._folder} is not what was written")
        self.bytes_read += len(data)
        return data

    def free(self, block: BlockId) -> None:
        """A block is not needed any more."""
        entry = self._blocks.pop(block)
        self.nbytes -= entry.length
        self._holes.setdefault(entry.length, []).append(entry.start)

    def close(self) -> None:
        """Remove everything."""
        self._gone()
        self._blocks.clear()
        self.nbytes = 0

    def __enter__(self) -> SpillArea:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove(file: Any, folder: Path) -> None:
    file.close()
    shutil.rmtree(folder, ignore_errors=True)
