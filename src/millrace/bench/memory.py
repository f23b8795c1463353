"""Anonymous memory of a process, or of all below it, as the kernel counts it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType


def anonymous_bytes(process: int | str = "self") -> int:
    """``RssAnon`` of a process, by default this one: what it has taken from the machine, without mapped files."""
    with open(f"/proc/{process}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon; this needs Linux 4.5 or later")


def tree_anonymous_bytes() -> int:
    """The same for this process and all that it has started, and those have."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        try:
            total += anonymous_bytes(process)
            for task in Path(f"/proc/{process}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, RuntimeError):  # it has ended meanwhile
            continue
    return total


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
