"""Places where arrays are allocated: anonymous memory of this process, or files that other processes can map too.

An array is allocated with the largest length that it may ever need, but only the part that is written to takes memory.
The owner keeps a high-water mark and charges the items below it to the budget. :meth:`Space.release` gives the memory
of the items above it back to the system.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from millrace.core.errors import BudgetExceededError

AnyArray = npt.NDArray[np.generic]


class Space(Protocol):
    """An allocator of arrays."""

    def array(self, name: str, dtype: npt.DTypeLike, length: int) -> npt.NDArray[np.generic]:
        """Return a zeroed array of ``length`` items, none of which takes memory before it is written."""
        ...

    def release(self, array: AnyArray, start: int) -> None:
        """Give the memory of the items from ``start`` on back to the system. Their values may be zero afterwards.

        The array was returned by :meth:`array`, or is a contiguous part of such an array.
        """
        ...


class HeapSpace:
    """Allocates arrays in anonymous memory, which the system provides page by page at first use."""

    def __init__(self) -> None:
        self._maps: list[tuple[int, mmap.mmap]] = []

    def array(self, name: str, dtype: npt.DTypeLike, length: int) -> npt.NDArray[np.generic]:
        item = np.dtype(dtype)
        nbytes = max(1, length * item.itemsize)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            memory = mmap.mmap(-1, nbytes, flags=flags)
        except (OSError, OverflowError) as error:
            raise BudgetExceededError(f"{name}: this machine cannot reserve {nbytes} bytes: {error}") from None
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would take 2 MB for the first byte
        made: npt.NDArray[np.generic] = np.frombuffer(memory, dtype=item, count=length)
        if length:
            self._maps.append((made.ctypes.data, memory))
        return made

    def release(self, array: AnyArray, start: int) -> None:
        begin = array.ctypes.data
        for base, memory in self._maps:
            if base <= begin < base + len(memory):
                first = -(-(begin - base + start * array.itemsize) // mmap.PAGESIZE) * mmap.PAGESIZE
                last = begin - base + array.nbytes
                if last < len(memory):  # whole pages only: what follows belongs to another array
                    last = last // mmap.PAGESIZE * mmap.PAGESIZE
                if first < last:
                    memory.madvise(mmap.MADV_DONTNEED, first, last - first)
                return


class FileSpace:
    """Allocates arrays as sparse files in a directory; all processes that use the directory share the arrays."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def array(self, name: str, dtype: npt.DTypeLike, length: int) -> npt.NDArray[np.generic]:
        item = np.dtype(dtype)
        path = self.directory / f"{name}.array"
        nbytes = max(1, length * item.itemsize)
        if not path.exists() or path.stat().st_size != nbytes:
            with path.open("wb") as file:
                file.truncate(nbytes)
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), nbytes)
        made: npt.NDArray[np.generic] = np.frombuffer(memory, dtype=item, count=length)
        return made

    def release(self, array: AnyArray, start: int) -> None:
        """Do nothing: the system frees the pages of a mapped file when it needs memory."""
