"""Building a store: rows are distributed to shards, and each shard is written in pages."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError, SchemaError, StoreError
from millrace.core.files.atomic import replaced_file, take_name
from millrace.core.numeric import is_whole
from millrace.master.manifest import Manifest, ShardEntry
from millrace.master.read.readable_store import ReadableStore
from millrace.master.read.record_file import FILE as RECORDS
from millrace.master.read.record_file import write_records
from millrace.master.read.shard_index import ENTRIES, STARTS, build_index
from millrace.master.record_layout import RecordLayout
from millrace.master.store_files import FileEntry, map_codes
from millrace.master.write.staging_directory import StagingDirectory
from millrace.rows.columns import bytes_pieces, plain_batch, plain_schema, shape_of
from millrace.rows.key_codes import KeyCoder
from millrace.rows.sharding import by_shard


def build_store(
    source: Any,
    path: Path,
    key: tuple[str, ...],
    *,
    shards: int,
    columns: list[str] | None,
    page_rows: int,
    index: bool,
    records: bool,
    overwrite: bool,
    progress: Callable[[int], None] | None,
) -> None:
    """Write a store; see :meth:`MasterStore.build`."""
    for option, value in (("shards", shards), ("page_rows", page_rows)):
        if not is_whole(value) or value < 1:
            raise ConfigError(f"{option}: expected a whole number of at least 1; got {value!r}")
    schema, batches = _open_source(source)
    given = store_schema(schema, key, columns)
    schema = plain_schema(given)
    coder = KeyCoder([schema.field(name).type for name in key], key)
    writers: list[ShardWriter] = []
    with StagingDirectory(path, overwrite) as staging:
        try:
            writers = [ShardWriter(staging.directory, f"shard-{i:04d}", schema, page_rows) for i in range(shards)]
            null_keys = _distribute(batches, given, key, coder, writers, progress)
            entries = [writer.close(index, records) for writer in writers]
        finally:
            for writer in writers:
                writer.abandon()
        longest = {n: max(writer.longest[n] for writer in writers) for n in writers[0].longest}
        nulls = {n: sum(writer.nulls[n] for writer in writers) for n in writers[0].nulls}
        snapshot = uuid.uuid4().hex
        Manifest(schema, key, page_rows, null_keys, snapshot, longest, nulls, entries).write(staging.directory)
        staging.commit()


def _open_source(source: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of a source of any kind."""
    import pyarrow.dataset as ds  # opening a store does not need it, and it takes time to load

    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.exists():
            raise StoreError(f"{path}: no such file or folder to build a store from")
        kind = "ipc" if path.suffix in (".arrow", ".ipc", ".feather") else "parquet"
        try:
            source = ds.dataset(path, format=kind, partitioning="hive")
        except (OSError, pa.ArrowInvalid) as error:
            raise StoreError(f"{path}: not readable as {kind}: {error}") from None
    if isinstance(source, ds.Dataset):
        return source.schema, source.to_batches(use_threads=False, batch_readahead=2, fragment_readahead=1)
    if isinstance(source, pa.Table):
        return source.schema, iter(source.to_batches())
    if isinstance(source, pa.RecordBatch):
        return source.schema, iter([source])
    if isinstance(source, pa.RecordBatchReader):
        return source.schema, iter(source)
    try:
        batches = iter(source)
    except TypeError:
        raise SchemaError(
            "source: expected a Table, RecordBatchReader, Dataset, iterable of RecordBatch or a path; "
            f"got {type(source).__name__}"
        ) from None
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        raise SchemaError(f"source: expected record batches; got {'none' if first is None else type(first).__name__}")

    def chained() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return first.schema, chained()


def store_schema(schema: pa.Schema, key: tuple[str, ...], columns: list[str] | None) -> pa.Schema:
    """Return the schema of the store: the key columns first, then the others in their order."""
    if not key or len(set(key)) != len(key) or not all(isinstance(name, str) for name in key):
        raise SchemaError(f"key: expected the name of one column, or several different names; got {key!r}")
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise SchemaError(f"source: columns appear more than once: {', '.join(repeated)}")
    wanted = list(key) + [n for n in (schema.names if columns is None else columns) if n not in key]
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        raise SchemaError(f"source: has no column {', '.join(map(repr, missing))}; it has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in dict.fromkeys(wanted)])


def _distribute(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    key: tuple[str, ...],
    coder: KeyCoder,
    writers: Sequence[ShardWriter],
    progress: Callable[[int], None] | None,
) -> int:
    """Append every row with a key to its shard; return how many rows had no key."""
    null_keys = done = 0
    plain = plain_schema(schema)
    for batch in batches:
        batch = plain_batch(_conform(batch, schema), plain)
        done += len(batch)
        codes, valid = coder.codes([batch.column(i) for i in range(len(key))])
        if valid is not None:
            null_keys += int((~valid).sum())
            batch, codes = batch.filter(pa.array(valid)), codes[valid]
        if len(writers) == 1:
            writers[0].append(batch, codes)
        else:
            shard = coder.shards([batch.column(i) for i in range(len(key))], len(writers))
            for writer, rows in zip(writers, by_shard(shard, len(writers)), strict=True):
                if len(rows):
                    writer.append(batch.take(pa.array(rows)), codes[rows])
        if progress:
            progress(done)
    return null_keys


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the store's columns of a batch; raise an error if one is missing or has another type."""
    if not isinstance(batch, pa.RecordBatch):
        raise SchemaError(f"source: expected record batches; got {type(batch).__name__}")
    arrays = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0 or batch.schema.field(at).type != field.type:
            came = "no such column" if at < 0 else str(batch.schema.field(at).type)
            raise SchemaError(f"source: column {field.name!r}: expected {field.type}; a later batch has {came}")
        arrays.append(batch.column(at))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class ShardWriter:
    """Writes the key codes of one shard to a file, and its rows to another file in pages of ``page_rows`` rows."""

    def __init__(self, building: Path, name: str, schema: pa.Schema, page_rows: int) -> None:
        self._building, self._name = building, name
        self._schema, self._page_rows = schema, page_rows
        (building / name).mkdir()
        self._codes = (building / name / "codes.i64").open("wb")
        self._sink = pa.OSFile(str(building / name / "rows.arrow"), "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self.rows = 0
        self.data_bytes = 0
        self.longest = {f.name: 0 for f in schema if shape_of(f.type) == "bytes"}
        self.nulls = {f.name: 0 for f in schema}

    def append(self, batch: pa.RecordBatch, codes: npt.NDArray[np.int64]) -> None:
        """Add rows, and write the pages that are full."""
        self._codes.write(np.ascontiguousarray(codes, "<i8").data)
        self._pending.append(batch)
        self._pending_rows += len(batch)
        self.rows += len(batch)
        if self._pending_rows >= self._page_rows:
            self._write_pages(self._pending_rows // self._page_rows * self._page_rows)

    def _write_pages(self, rows: int) -> None:
        pending = pa.concat_batches(self._pending) if len(self._pending) > 1 else self._pending[0]
        for first in range(0, rows, self._page_rows):
            page = pending.slice(first, min(self._page_rows, rows - first))
            self.data_bytes += page.nbytes
            _count_nulls(page, self.nulls)
            for name, longest in self.longest.items():
                lengths = bytes_pieces(page.column(self._schema.get_field_index(name)))[2]
                self.longest[name] = max(longest, int(lengths.max(initial=0)))
            self._writer.write_batch(page)
        rest = pending.slice(rows)
        self._pending = [rest] if len(rest) else []
        self._pending_rows = len(rest)

    def close(self, index: bool, records: bool) -> ShardEntry:
        """Write the last page and, if wanted, index and records; flush all files; return the shard's entry."""
        if self._pending_rows:
            self._write_pages(self._pending_rows)
        self._writer.close()
        self._sink.close()
        self._codes.close()
        directory = self._building / self._name
        counts = build_index(map_codes(directory / "codes.i64", self.rows), directory if index else None)
        files = ["codes.i64", "rows.arrow", *((STARTS, ENTRIES) if index else ())]
        codes, data, *indexes = (FileEntry.of(self._building, f"{self._name}/{file}") for file in files)
        entry = ShardEntry(self.rows, counts.keys, counts.largest_group, self.data_bytes, codes, data, tuple(indexes))
        if index and records:
            return with_records(entry, self._building, self._schema, self.longest, self.nulls)
        return entry

    def abandon(self) -> None:
        """Close the files if they are still open, whatever state they are in."""
        for close in (self._writer.close, self._sink.close, self._codes.close):
            try:
                close()
            except (OSError, pa.ArrowInvalid):
                continue


def with_records(
    shard: ShardEntry, directory: Path, schema: pa.Schema, longest: Mapping[str, int], nulls: Mapping[str, int]
) -> ShardEntry:
    """Write a shard's rows again, to a file of records, and return the shard's entry with that file added.

    In a record, the values of a row lie side by side. A shard without rows, or with no column that fits into a record,
    gets no file, and its entry is returned as it is.
    """
    layout = RecordLayout.of(schema, longest, nulls)
    if layout is None or not shard.rows:
        return shard
    name = f"{shard.data.path.rsplit('/', 1)[0]}/{RECORDS}"
    with replaced_file(directory / name) as temporary, pa.memory_map(str(directory / shard.data.path)) as file:
        reader = pa.ipc.open_file(file)
        write_records((reader.get_batch(i) for i in range(reader.num_record_batches)), layout, temporary)
    return replace(shard, records=FileEntry.of(directory, name), layout=layout)


def write_index(path: Path, store: ReadableStore, records: bool) -> None:
    """Write the index and the records that the store at a path lacks, and count its nulls.

    Readers see the store either as it was or complete. Existing files stay, as other processes may have mapped them.
    """
    manifest = store.manifest
    nulls = dict.fromkeys(manifest.schema.names, 0)
    for number, shard in enumerate(manifest.shards):
        for page in range(-(-shard.rows // manifest.page_rows)):
            _count_nulls(store.mapped(number).page(page), nulls)
    shards = [shard if shard.index else _with_index(shard, path) for shard in manifest.shards]
    if records:
        shards = [
            shard if shard.records else with_records(shard, path, manifest.schema, manifest.longest, nulls)
            for shard in shards
        ]
    replace(manifest, nulls=nulls, shards=shards).write(path)


def _with_index(shard: ShardEntry, path: Path) -> ShardEntry:
    name = shard.codes.path.split("/")[0]
    with tempfile.TemporaryDirectory(dir=path / name) as aside:
        build_index(map_codes(path / shard.codes.path, shard.rows), Path(aside))
        for file in (STARTS, ENTRIES):
            take_name(Path(aside, file), path / name / file)
    return replace(shard, index=tuple(FileEntry.of(path, f"{name}/{file}") for file in (STARTS, ENTRIES)))


def _count_nulls(page: pa.RecordBatch, nulls: dict[str, int]) -> None:
    for name, column in zip(page.schema.names, page.columns, strict=True):
        nulls[name] += column.null_count
