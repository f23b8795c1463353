"""One cell of the matrix, what was found there, and the file that keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from millrace_bench.shared.json_lines import Lines


@dataclass(frozen=True)
class Cell:
    """An engine in one setting."""

    engine: str
    rows: int
    skew: float
    batch_rows: int
    memory: str = "1%"
    round: int = 1
    seconds: float = 2.0
    """How long it is measured."""
    warm: float = 1.5
    """How long it is warmed up before."""

    @property
    def setting(self) -> Setting:
        return Setting(self.rows, self.skew, self.batch_rows, self.memory)


@dataclass(frozen=True, order=True)
class Setting:
    """What a cell has in common with those of other engines, and of other rounds, that it is compared with."""

    rows: int
    skew: float
    batch_rows: int
    memory: str = "1%"


@dataclass
class Found:
    """What came of a cell. Rates are in stream tuples per second, latencies in seconds, memory in bytes."""

    rate: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    batches: int = 0
    memory_growth: int = 0
    checksum: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    took: float = 0.0
    """Seconds of the whole process."""
    failed: str = ""
    """Why there is no rate."""


class Journal:
    """Cells that have been measured, a line of JSON each, written at once; other versions' count if asked for."""

    def __init__(self, path: Path | None, *, every_version: bool = False) -> None:
        self._lines = None if path is None else Lines(path, "a cell of `millrace bench rivals`")
        self._found: dict[Cell, Found] = {}
        self._version = version("millrace")
        self._every_version = every_version
        if self._lines is not None:
            self._lines.read(self._take)

    def _take(self, entry: Any) -> None:
        if self._every_version or entry["version"] == self._version:
            self._found[Cell(**entry["cell"])] = Found(**entry["found"])

    def missing(self, wanted: Iterable[Cell]) -> list[Cell]:
        """Those that have no rate yet: what has failed is tried again."""
        return [cell for cell in wanted if cell not in self._found or self._found[cell].failed]

    def keep(self, cell: Cell, found: Found) -> None:
        """Write down what was found; it is there whatever happens next."""
        if self._lines is not None:
            self._lines.append({"version": self._version, "cell": asdict(cell), "found": asdict(found)})
        self._found[cell] = found

    def __iter__(self) -> Iterator[tuple[Cell, Found]]:
        return iter(self._found.items())

    def __len__(self) -> int:
        return len(self._found)
