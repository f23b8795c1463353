"""Describe one measurement, a cell in the matrix of engines and settings, and keep all results in a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from millrace_bench.shared.json_lines import JsonLinesFile


@dataclass(frozen=True)
class Cell:
    """One measurement of an engine in one setting; a cell of the matrix."""

    engine: str
    rows: int
    skew: float
    batch_rows: int
    memory: str = "1%"
    round: int = 1
    seconds: float = 2.0
    """Seconds for which the engine is measured."""
    warm: float = 1.5
    """Seconds of warm-up before the measurement."""

    @property
    def setting(self) -> CellSetting:
        """The cell's setting, which is the same for all engines and rounds that are compared with each other."""
        return CellSetting(self.rows, self.skew, self.batch_rows, self.memory)


@dataclass(frozen=True, order=True)
class CellSetting:
    """The master, stream and memory of a cell. Engines are compared with each other in the same setting."""

    rows: int
    skew: float
    batch_rows: int
    memory: str = "1%"


@dataclass
class CellResult:
    """The result of a cell: rate in tuples per second, latency of a batch (p50, p99) in seconds, memory in bytes."""

    rate: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    batches: int = 0
    memory_growth: int = 0
    checksum: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    took: float = 0.0
    """Seconds that the whole process took."""
    failed: str = ""
    """The reason why there is no rate; empty if there is one."""


class CellJournal:
    """A file of results, one JSON line per cell, written as soon as the cell is measured.

    With ``every_version``, results of other versions of Millrace are read too; by default they are ignored.
    """

    def __init__(self, path: Path | None, *, every_version: bool = False) -> None:
        self._lines = None if path is None else JsonLinesFile(path, "a cell of `millrace bench rivals`")
        self._found: dict[Cell, CellResult] = {}
        self._version = version("millrace")
        self._every_version = every_version
        if self._lines is not None:
            self._lines.read(self._read_entry)

    def _read_entry(self, entry: Any) -> None:
        if self._every_version or entry["version"] == self._version:
            self._found[Cell(**entry["cell"])] = CellResult(**entry["found"])

    def missing(self, wanted: Iterable[Cell]) -> list[Cell]:
        """Return the cells that have no result yet, and those that failed, which are to be measured again."""
        return [cell for cell in wanted if cell not in self._found or self._found[cell].failed]

    def record(self, cell: Cell, found: CellResult) -> None:
        """Append a cell's result, which is in the file when the method returns."""
        if self._lines is not None:
            self._lines.append({"version": self._version, "cell": asdict(cell), "found": asdict(found)})
        self._found[cell] = found

    def __iter__(self) -> Iterator[tuple[Cell, CellResult]]:
        return iter(self._found.items())

    def __len__(self) -> int:
        return len(self._found)
