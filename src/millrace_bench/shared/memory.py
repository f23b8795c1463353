"""Measure the anonymous memory of a process, or of its descendants, as the kernel counts it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType


def anonymous_bytes(pid: int | str = "self") -> int:
    """Return a process's anonymous memory (``RssAnon``, without mapped files) in bytes, by default this process's."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no RssAnon; this needs Linux 4.5 or later")


def tree_anonymous_bytes() -> int:
    """Return the sum of ``RssAnon`` over this process and all its descendants, in bytes."""
    total = anonymous_bytes()
    for pid in _below(os.getpid()):
        try:
            total += anonymous_bytes(pid)
        except (OSError, RuntimeError):  # the process has ended meanwhile
            continue
    return total


def anonymous_below(pid: int, command: str) -> int:
    """Return the bytes of anonymous memory of those descendants of a process that have ``command`` in the command line.

    Shared pages count once. Other descendants are left out: to run a ``chmod``, for example, Java forks, and the
    new process seems to have all of Java's memory for a moment.
    """
    return sum(_share_of_anonymous(child) for child in _below(pid) if command in _command(child))


def _below(pid: int) -> Iterator[int]:
    """Yield the process ids of all descendants of a process."""
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            children = [
                int(child)
                for task in Path(f"/proc/{parent}/task").iterdir()
                for child in (task / "children").read_text().split()
            ]
        except OSError:  # the process has ended meanwhile
            continue
        yield from children
        waiting += children


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _share_of_anonymous(pid: int) -> int:
    """Return a process's anonymous bytes, with its part of each page that it shares; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return next((int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss_Anon:")), 0)
    except OSError:
        return 0


class PeakMemory:
    """A context manager that measures peak memory: the greatest number of bytes that ``of`` returns.

    ``of`` is called at intervals of ``every`` seconds.
    """

    def __init__(self, every: float = 0.005, of: Callable[[], int] = anonymous_bytes) -> None:
        self._every, self._of = every, of
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.start = self.peak = 0

    def __enter__(self) -> PeakMemory:
        self.start = self.peak = self._of()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, self._of())

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self.peak = max(self.peak, self._of())

    @property
    def growth(self) -> int:
        """Bytes by which the peak is above the value at the start."""
        return self.peak - self.start
