"""A process's anonymous memory, as the kernel counts it."""

from __future__ import annotations

import threading
from types import TracebackType


def anonymous_bytes() -> int:
    """``RssAnon`` of this process: what it has taken from the machine, without mapped files."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon; this needs Linux 4.5 or later")


class PeakMemory:
    """Samples anonymous memory in the background; ``growth`` is the peak over the value at the start."""

    def __init__(self, every: float = 0.005) -> None:
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.start = self.peak = 0

    def __enter__(self) -> PeakMemory:
        self.start = self.peak = anonymous_bytes()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, anonymous_bytes())

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self.peak = max(self.peak, anonymous_bytes())

    @property
    def growth(self) -> int:
        return self.peak - self.start
