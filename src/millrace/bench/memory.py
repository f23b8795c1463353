"""Anonymous memory of processes, as the kernel counts it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType


def anonymous_bytes(pid: int | str = "self") -> int:
    """``RssAnon`` of a process: what it has taken from the machine, without mapped files."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no RssAnon; this needs Linux 4.5 or later")


def anonymous_below(pid: int, command: str) -> int:
    """Anonymous memory of all processes below this one whose command line has these words; what they share counts once.

    Others are not counted: Java forks, with all its memory, to run a ``chmod``.
    """
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    below, more = 0, {child for child, parent in parents.items() if parent == pid}
    while more:
        below += sum(_share_of_anonymous(child) for child in more if command in _command(child))
        more = {child for child, parent in parents.items() if parent in more}
    return below


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
