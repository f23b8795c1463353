"""Anonymous memory of a process, or of those below it, as the kernel counts it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType


def anonymous_bytes(pid: int | str = "self") -> int:
    """``RssAnon`` of a process, by default this one: what it has taken from the machine, without mapped files."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no RssAnon; this needs Linux 4.5 or later")


def tree_anonymous_bytes() -> int:
    """The same for this process and all below it."""
    total = anonymous_bytes()
    for pid in _below(os.getpid()):
        try:
            total += anonymous_bytes(pid)
        except (OSError, RuntimeError):  # it has ended meanwhile
            continue
    return total


def anonymous_below(pid: int, command: str) -> int:
    """Anonymous memory of all processes below this one whose command line has these words; what they share counts once.

    Others are not counted: Java forks, with all its memory, to run a ``chmod``.
    """
    return sum(_share_of_anonymous(child) for child in _below(pid) if command in _command(child))


def _below(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those have."""
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
    """``Pss_Anon``: pages that several processes have are divided among them; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return next((int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss_Anon:")), 0)
    except OSError:
        return 0


class PeakMemory:
    """Samples anonymous memory in the background; ``growth`` is the peak over the value at the start."""

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
        return self.peak - self.start
