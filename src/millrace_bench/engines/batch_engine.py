"""What every way to join batches with the master has in common, and the files they share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.sizes import parse_size
from millrace.master.store import MasterStore
from millrace_bench.shared import data


@dataclass(frozen=True)
class Place:
    """Which master, where its files are, and the memory that an engine with a budget may use."""

    directory: Path
    rows: int
    memory: str = "1%"
    unique: bool = True

    def file(self, name: str) -> Path:
        """A file of this master: ``file("sqlite.db")`` is ``rival-10000-sqlite.db``."""
        return self.directory / f"rival-{self.rows}{'' if self.unique else '-repeats'}-{name}"

    def store(self) -> MasterStore:
        return data.master(self.directory, self.rows, unique=self.unique)

    @property
    def budget(self) -> int:
        """The memory in bytes; a share is taken of the master's rows as Arrow data."""
        return parse_size(self.memory, of=self.store().nbytes)


class Rival(ABC):
    """One engine with one master. Its life: ``prepare`` once for all processes, then ``load``, ``open``, ``join`` …"""

    name: str

    def __init__(self, place: Place) -> None:
        self.place = place
        self.settings: dict[str, str] = {}
        """What was chosen for this engine, for the report; complete after the warm-up."""

    @abstractmethod
    def prepare(self) -> Sequence[Path]:
        """Make the files that are not there yet; those that this engine reads."""

    def load(self) -> None:
        """Import and compile what is needed: what a process has at its start, whatever the master."""

    @abstractmethod
    def open(self) -> None:
        """Open the master."""

    @abstractmethod
    def join(self, batch: pa.RecordBatch) -> Iterable[Any]:
        """Rows that come out when a batch goes in: the batch's columns, then the master's without its key.

        They are in whatever form the engine gives results at the least cost; ``len`` is how many.
        """

    def whole(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """All rows of this batch and no others, as Arrow data, to be compared."""
        for out in self.join(batch):
            yield from as_batches(out)

    def settled(self) -> bool:
        """Whether it is as quick as it will be: caches are full, choices made."""
        return True

    def latency(self, durations: Sequence[float], share: float) -> float:
        """Seconds that this share of the batches did not exceed, from a batch's arrival to its rows."""
        return float(np.quantile(durations, share))


def as_batches(rows: pa.Table | pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    """Rows with plain text, as checksums take them."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    batches: list[pa.RecordBatch] = table.cast(pa.schema([(f.name, _plain(f.type)) for f in table.schema])).to_batches()
    return batches


def _plain(kind: pa.DataType) -> pa.DataType:
    texts = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.string() if texts else kind


def made(path: Path, make: Callable[[Path], None]) -> Path:
    """The file, made first if it is not there; one that was not finished does not count."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        try:
            make(aside)
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)
    return path


def arrow_file(place: Place) -> Path:
    """The master as one Arrow record batch: mapped, its columns are arrays that nobody has to read or copy."""

    def make(path: Path) -> None:
        table = place.store().to_table()
        whole = pa.table([column.combine_chunks() for column in table.columns], table.schema)
        with pa.ipc.new_file(str(path), whole.schema) as writer:
            writer.write_table(whole)

    return made(place.file("rows.arrow"), make)


def mapped(place: Place) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(arrow_file(place)))).read_all()
