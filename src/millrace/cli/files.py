"""Reads streams from files batch by batch, and writes tables to files that become visible when they are complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.core.errors import ConfigError, MillraceError
from millrace.core.files.atomic import make_directory, take_name, temporary_name

ARROW = (".arrow", ".ipc", ".feather")
PARQUET = (".parquet",)

_ROW_GROUP_ROWS = 131_072
_ROW_GROUP_BYTES = 32_000_000
_READ_BUFFER = 1 << 20


class FileError(MillraceError, OSError):
    """A file could not be read or written."""


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise an error if ``path`` exists and must not be replaced."""
    if path.exists() and not overwrite:
        raise FileError(f"{path}: already exists; pass --overwrite to replace it")


class StreamFiles:
    """Reads a stream from a Parquet or Arrow file, or from a folder of Parquet files in the order of their names.

    Its constructor reads metadata only. Reading needs memory for one batch and, for Parquet, for pages being decoded.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileError(f"{path}: no such file or folder")
        self.path = path
        with _reading(path):
            if path.is_dir():
                self._files = [Path(file) for file in ds.dataset(path, format="parquet").files]
            else:
                self._files = [path]
            if not self._files:
                raise FileError(f"{path}: there are no Parquet files in this folder")
            self.rows = sum(self._count(file) for file in self._files)
            first = self._files[0]
            self.schema: pa.Schema = (
                _open_arrow(first).schema if first.suffix in ARROW else pq.read_schema(first)
            ).remove_metadata()

    @staticmethod
    def _count(file: Path) -> int:
        if file.suffix in ARROW:
            return int(ds.dataset(file, format="ipc").count_rows())
        return int(pq.read_metadata(file).num_rows)

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows in batches of at most ``batch_rows``."""
        if batch_rows < 1:
            raise ConfigError(f"batch-rows: expected a whole number of at least 1; got {batch_rows}")
        for file in self._files:
            batches = _arrow_batches(file, batch_rows) if file.suffix in ARROW else _parquet_batches(file, batch_rows)
            while True:
                with _reading(file):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn Arrow's error about an unreadable file into a :class:`FileError` that names the file."""
    try:
        yield
    except MillraceError:
        raise
    except (OSError, pa.ArrowException) as error:
        kind = "Arrow" if path.suffix in ARROW else "Parquet"
        raise FileError(f"{path}: not readable as {kind}: {error}") from error


def _open_arrow(path: Path) -> pa.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(path)))


def _arrow_batches(path: Path, batch_rows: int) -> Iterator[pa.RecordBatch]:
    reader = _open_arrow(path)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        for start in range(0, len(batch), batch_rows):
            yield batch.slice(start, batch_rows)


def _parquet_batches(path: Path, batch_rows: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, buffer_size=_READ_BUFFER, pre_buffer=False) as file:
        yield from file.iter_batches(batch_size=batch_rows, use_threads=False)


class TableWriter:
    """Writes a Parquet (``.parquet``) or Arrow (``.arrow``) file under a temporary name, and renames it at the end.

    The file is created inside the ``with`` block, by ``open`` or by the first rows. If an exception, such as Ctrl-C,
    ends the block, the unfinished file is removed. At most about one row group (131 072 rows or 32 MB) is in memory.
    """

    def __init__(self, path: Path, schema: pa.Schema, *, overwrite: bool = False) -> None:
        self.path = validate_target(path, overwrite)
        self.rows = self.nbytes = 0
        self._schema = schema
        self._unfinished = temporary_name(path)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._sink: Any = None
        self._writer: Any = None

    def __enter__(self) -> TableWriter:
        return self

    def open(self) -> None:
        """Create the file unless it is open; call this before long work, so that errors are raised before the work."""
        if self._writer is not None:
            return
        with self._writing():
            make_directory(self.path.parent)
            self._sink = pa.OSFile(str(self._unfinished), "wb")
            opened = pq.ParquetWriter if self.path.suffix in PARQUET else pa.ipc.new_file
            self._writer = opened(self._sink, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; for Parquet, they are collected and written in row groups."""
        self.open()
        self.rows += len(batch)
        if self.path.suffix not in PARQUET:
            with self._writing():
                self._writer.write_batch(batch)
            return
        self._pending.append(batch)
        self._pending_rows += len(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= _ROW_GROUP_BYTES:
            self._write_pending()

    def _write_pending(self) -> None:
        pending, self._pending = self._pending, []
        self._pending_rows = self._pending_bytes = 0
        if pending:
            with self._writing():
                self._writer.write_table(pa.Table.from_batches(pending, self._schema), row_group_size=_ROW_GROUP_ROWS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.open()
                self._write_pending()
                with self._writing():
                    self._writer.close()
                    self._sink.close()
                    self.nbytes = self._unfinished.stat().st_size
                    take_name(self._unfinished, self.path)
        finally:
            self._clean_up()

    def _clean_up(self) -> None:
        """Close the file, and remove it if it is not complete."""
        if self._writer is not None:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._writer.is_open = False  # else a failed Parquet writer tries again when it is garbage-collected
        if self._sink is not None:
            with suppress(OSError, pa.ArrowException):
                self._sink.close()
        self._unfinished.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise FileError(f"{self.path}: could not be written: {error}; the unfinished file was removed") from error


def validate_target(path: Path, overwrite: bool) -> Path:
    """Return ``path`` if a table can be written there, or raise an error that says why not."""
    if path.suffix not in PARQUET + ARROW:
        raise FileError(f"{path}: expected a name ending in .parquet or .arrow for the file to write")
    if path.is_dir():
        raise FileError(f"{path}: is a folder; expected the name of a file to write")
    refuse_existing(path, overwrite)
    return path
