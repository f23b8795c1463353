"""One cell of the matrix, what was found there, and the file that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from millrace.core.errors import CorruptStoreError


@dataclass(frozen=True)
class Cell:
    """An engine in one setting."""

    engine: str
    rows: int
    skew: float
    batch_rows: int
    memory: str = "1%"
    round: int = 1

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
    """Cells that have been measured, a line of JSON for each, written at once; other versions' do not count."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._found: dict[Cell, Found] = {}
        self._version = version("millrace")
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        text = path.read_text()
        whole = text.rfind("\n") + 1
        if whole < len(text):  # the line that was being written when the run was stopped
            path.write_text(text[:whole])
        for number, line in enumerate(text[:whole].splitlines(), 1):
            try:
                entry = json.loads(line)
                if entry["version"] == self._version:
                    self._found[Cell(**entry["cell"])] = Found(**entry["found"])
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptStoreError(
                    f"{path}, line {number}: expected a cell of `bench rivals`; got {line[:60]!r}"
                ) from error

    def get(self, cell: Cell) -> Found | None:
        return self._found.get(cell)

    def keep(self, cell: Cell, found: Found) -> None:
        """Write down what was found; it is there whatever happens next."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                entry = {"version": self._version, "cell": asdict(cell), "found": asdict(found)}
                file.write(json.dumps(entry) + "\n")
        self._found[cell] = found

    def __iter__(self) -> Iterator[tuple[Cell, Found]]:
        return iter(self._found.items())

    def __len__(self) -> int:
        return len(self._found)
