"""The files of a store: how the manifest describes them, and how they are checked and mapped."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from millrace.core.errors import CorruptStoreError
from millrace.core.files.atomic import flush

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileEntry:
    """One file of a store, as it was when the store was committed."""

    path: str
    """Path relative to the directory of the store."""
    nbytes: int
    crc32: int

    @staticmethod
    def of(directory: Path, name: str) -> FileEntry:
        """Flush a complete file to the disk and return its entry."""
        path = directory / name
        flush(path)
        return FileEntry(name, path.stat().st_size, crc32_of_file(path))

    def check_size(self, directory: Path) -> None:
        """Raise an error if the file is missing or has another length."""
        path = directory / self.path
        if not path.is_file():
            raise CorruptStoreError(f"{path}: missing, although the manifest lists it")
        size = path.stat().st_size
        if size != self.nbytes:
            what = "truncated" if size < self.nbytes else "too long"
            raise CorruptStoreError(f"{path}: {what}: {size} bytes, expected {self.nbytes}")

    def check_content(self, directory: Path) -> None:
        """Read the whole file and raise an error if its bytes have changed."""
        self.check_size(directory)
        found = crc32_of_file(directory / self.path)
        if found != self.crc32:
            raise CorruptStoreError(
                f"{directory / self.path}: its bytes were changed: checksum {found:08x}, expected {self.crc32:08x}"
            )


def crc32_of_file(path: Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc


def map_codes(path: Path, rows: int) -> npt.NDArray[np.int64]:
    """Return the key codes in a file as a memory-mapped array."""
    return np.asarray(np.memmap(path, np.int64, mode="r", shape=(rows,))) if rows else np.empty(0, np.int64)
