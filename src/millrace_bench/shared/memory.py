"""Measure the anonymous memory of a process, or of its descendants, as the kernel counts it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType


def anonymous_bytes(pid: int | str = "self") -> int:
    """Return ``RssAnon`` of a process, by default this one: its memory without mapped files."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no RssAnon; this needs Linux 4.5 or later")


def tree_anonymous_bytes() -> int:
    """Return ``RssAnon`` of this process and all its descendants."""
    total = anonymous_bytes()
    for pid in _below(os.getpid()):
        try:
            total += anonymous_bytes(pid)
        except (OSError, RuntimeError):  # it has ended meanwhile
            continue
    return total


def anonymous_below(pid: int, command: str) -> int:
    """Return the anonymous memory of descendants whose command line contains ``command``; shared pages count once.

    Other processes are left out: Java forks, with all its memory, to run a ``chmod``.
    """
    return sum(_share_of_anonymous(child) for child in _below(pid) if command in _command(child))


def _below(pid: int) -> Iterator[int]:
    """Yield the descendants of a process."""
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            children = [
                int(child)
                for task in Path(f"/proc/{parent}/task").iterdir()
                for child in (task / "children").read_text().split()
            ]
        except OSError:  # it has ended meanwhile
            continue
        yield from children
        waiting += children


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _share_of_anonymous(pid: int) -> int:
    """Return ``Pss_Anon``, which divides shared pages among their processes; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return next((int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss_Anon:")), 0)
    except OSError:
        return 0


class PeakMemory:
    """Sample anonymous memory in the background; ``growth`` is the peak above the value at the start."""

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
