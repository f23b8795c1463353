"""Anonymous memory of processes, as the kernel counts it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType


def anonymous_bytes() -> int:
    """``RssAnon`` of this process: what it has taken from the machine, without mapped files."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon; this needs Linux 4.5 or later")


def anonymous_below(pid: int) -> tuple[int, int]:
    """``RssAnon`` of a process, and of all that it has started, they have started, and so on, together."""
    sizes: dict[int, int] = {}
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if "RssAnon" in lines:
            parents[int(lines["Pid"])] = int(lines["PPid"])
            sizes[int(lines["Pid"])] = int(lines["RssAnon"].split()[0]) * 1024
    below, more = 0, {child for child, parent in parents.items() if parent == pid}
    while more:
        below += sum(sizes[child] for child in more)
        more = {child for child, parent in parents.items() if parent in more}
    return sizes.get(pid, 0), below


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
