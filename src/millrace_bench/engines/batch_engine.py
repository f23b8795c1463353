"""The interface of all engines that join batches with a master, and the files they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.files.atomic import replaced_file
from millrace.core.sizes import parse_size
from millrace.master.store import MasterStore
from millrace_bench.shared import data


@dataclass(frozen=True)
class MasterFiles:
    """The files of a master, with its number of rows and the memory budget of those engines that have a budget."""

    directory: Path
    rows: int
    memory: str = "1%"
    unique: bool = True

    def file(self, name: str) -> Path:
        """Return the path of a file of this master, such as ``rival-10000-sqlite.db`` for ``file("sqlite.db")``."""
        return self.directory / f"rival-{self.rows}{'' if self.unique else '-repeats'}-{name}"

    def store(self) -> MasterStore:
        """Return the store of this master, built if it is missing."""
        return data.master(self.directory, self.rows, unique=self.unique)

    @property
    def budget(self) -> int:
        """The memory budget in bytes; a percentage refers to the size of the master's rows as Arrow data."""
        return parse_size(self.memory, of=self.store().nbytes)


class BatchEngine(ABC):
    """An engine that joins batches with a master.

    Call ``prepare`` once for all processes; then, in each process, ``load``, ``open``, and ``join`` for each batch.
    """

    name: str

    def __init__(self, files: MasterFiles) -> None:
        self.files = files
        self.settings: dict[str, str] = {}
        """Settings of this engine by name, as texts for the report; complete after the warm-up."""

    @abstractmethod
    def prepare(self) -> Sequence[Path]:
        """Write the files that this engine reads, if they are missing; return their paths."""

    def load(self) -> None:
        """Import and compile what a process needs before it opens any master."""

    @abstractmethod
    def open(self) -> None:
        """Open the master."""

    @abstractmethod
    def join(self, batch: pa.RecordBatch) -> Iterable[Any]:
        """Join a batch and return joined rows: the batch's columns, then the master's without its key.

        The result is in pieces, of the type that the engine returns fastest; ``len`` of a piece is its number of rows.
        In an engine in which tuples wait, the rows can be those of tuples from earlier batches.
        """

    def whole(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Yield all joined rows of one batch, and no others, as Arrow data, to compare them between engines."""
        for out in self.join(batch):
            yield from as_batches(out)

    def settled(self) -> bool:
        """Return whether the engine has filled its caches and made its choices, so that it will get no faster."""
        return True

    def latency(self, durations: Sequence[float], share: float) -> float:
        """Return the quantile ``share``, from 0 to 1, of the seconds from a batch's arrival to its joined rows.

        ``durations`` are the seconds that each call of ``join`` took.
        """
        return float(np.quantile(durations, share))


def as_batches(rows: pa.Table | pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    """Return rows as record batches in which all text has the type ``string``, as checksums need it."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    batches: list[pa.RecordBatch] = table.cast(pa.schema([(f.name, _plain(f.type)) for f in table.schema])).to_batches()
    return batches


def _plain(kind: pa.DataType) -> pa.DataType:
    texts = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.string() if texts else kind


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """Return ``path``, written by ``make`` if there is no such file; an interrupted ``make`` leaves no file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as temporary:
            make(temporary)
    return path


def arrow_file(files: MasterFiles) -> Path:
    """Return the path of the master's Arrow file, written if missing.

    The file is one record batch, so that each column can be mapped into memory as one array, without a copy.
    """

    def make(path: Path) -> None:
        table = files.store().to_table()
        whole = pa.table([column.combine_chunks() for column in table.columns], table.schema)
        with pa.ipc.new_file(str(path), whole.schema) as writer:
            writer.write_table(whole)

    return made_once(files.file("rows.arrow"), make)


def map_rows(files: MasterFiles) -> pa.Table:
    """Return the master's rows as a table that reads the Arrow file through a memory mapping, without a copy."""
    return pa.ipc.open_file(pa.memory_map(str(arrow_file(files)))).read_all()
