"""``build_master``: a master store written by the executors and made visible by the driver."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.core.errors import ConfigError, SchemaError, StoreError
from millrace.master.manifest import Manifest, ShardEntry
from millrace.master.store import MasterStore
from millrace.master.store_files import FileEntry
from millrace.master.write.build_store import ShardWriter, store_schema
from millrace.master.write.staging_directory import StagingDirectory
from millrace.rows.columns import plain_schema
from millrace.rows.key_codes import KeyCoder
from millrace.spark import arrow_types as types
from millrace.spark import task_metrics as metrics
from millrace.spark.transport.routing import SHARD, hashed, quoted
from millrace.worker.shipping import shipped


def build_master(
    df: DataFrame,
    path: str | os.PathLike[str],
    key: str | Iterable[str],
    shards: int = 1,
    columns: Sequence[str] | None = None,
    *,
    page_rows: int = 65_536,
    index: bool = True,
    records: bool = True,
    overwrite: bool = False,
) -> MasterStore:
    """Write a DataFrame to a master store that :func:`enrich` and ``SemiStreamJoin`` can join with.

    Parameters
    ----------
    df
        Any batch DataFrame: Parquet, JDBC, Delta, a table, a query.
    path
        The directory to make. All executors and the driver must see it under this name.
    key
        The key column, or several. Rows whose key is null match nothing and are left out.
    shards
        Parts the rows are split into. With one, no stream has to be shuffled, and every task that joins scans all of
        the master; with several, the stream is shuffled and each task scans one. See the guide on when to have more.
    columns
        Columns to keep besides the key; all by default.
    page_rows
        Rows of a page of the data file.
    index
        Write an index from keys to rows too. Algorithms that only scan need none.
    records
        With an index, also write every row in one piece: look-ups are several times as fast, and the rows take about
        twice the disk.
    overwrite
        Replace a store that is already there. Readers see the old one or the new one, never a mixture.
    """
    if df.isStreaming:
        raise SchemaError("build_master: expected a batch DataFrame; got a streaming one")
    if not isinstance(shards, int) or shards < 1:
        raise ConfigError(f"shards: expected a whole number of at least 1; got {shards!r}")
    names = (key,) if isinstance(key, str) else tuple(key)
    given = store_schema(
        types.arrow_schema(df.schema, "build_master"), names, None if columns is None else list(columns)
    )
    schema = plain_schema(given)
    for name in names:
        types.check_collation(df.schema[name], "build_master")
    reserved = [name for name in given.names if name.lower() in (SHARD, metrics.COLUMN)]
    if reserved:
        raise SchemaError(f"build_master: the column name {reserved[0]!r} is reserved")
    KeyCoder([schema.field(name).type for name in names], names)  # or an error that names the column
    with StagingDirectory(Path(path), overwrite) as staging:
        written = _write_shards(df, given, names, shards, page_rows, index, records, staging.directory)
        entries = []
        for number in range(shards):
            (staging.directory / written[number]["attempt"]).rename(staging.directory / _name(number))
            entries.append(_entry(written[number], _name(number)))
        for left in staging.directory.glob("*.attempt-*"):  # of tasks that were repeated
            shutil.rmtree(left, ignore_errors=True)
        longest = {name: max(shard["longest"][name] for shard in written.values()) for name in written[0]["longest"]}
        nulls = {name: sum(shard["nulls"][name] for shard in written.values()) for name in written[0]["nulls"]}
        null_keys = sum(shard["null_keys"] for shard in written.values())
        snapshot = uuid.uuid4().hex
        Manifest(schema, names, page_rows, null_keys, snapshot, longest, nulls, entries).write(staging.directory)
        staging.commit()
    return MasterStore.open(staging.target)


def _write_shards(
    df: DataFrame,
    schema: pa.Schema,
    key: tuple[str, ...],
    shards: int,
    page_rows: int,
    index: bool,
    records: bool,
    building: Path,
) -> dict[int, dict[str, Any]]:
    """Let the executors write all shards; what each has to say about its own."""
    chosen_columns = df.select(*(F.col(quoted(name)) for name in schema.names))
    shard = hashed([F.col(quoted(name)) for name in key], shards)
    by_shard = chosen_columns.withColumn(SHARD, shard).repartitionById(shards, SHARD).drop(SHARD)
    arguments = (str(building), schema.serialize().to_pybytes(), key, shards, page_rows, index, records)
    write = shipped("millrace.spark.master.build_master", "write_shard", *arguments)
    rows = by_shard.mapInArrow(write, "shard int, written string").collect()
    written = {row.shard: json.loads(row.written) for row in rows}
    for number in range(shards):
        if number not in written:  # Spark runs no task where it knows that there are no rows
            written[number] = _written(number, *arguments, iter(()))
    return written


def write_shard(
    building: str,
    schema_bytes: bytes,
    key: tuple[str, ...],
    shards: int,
    page_rows: int,
    index: bool,
    records: bool,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task as one shard. Runs in a Python worker."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number = context.partitionId()
    about = _written(number, building, schema_bytes, key, shards, page_rows, index, records, batches)
    yield pa.record_batch({"shard": pa.array([number], pa.int32()), "written": [json.dumps(about)]})


def _written(
    number: int,
    building: str,
    schema_bytes: bytes,
    key: tuple[str, ...],
    shards: int,
    page_rows: int,
    index: bool,
    records: bool,
    batches: Iterator[pa.RecordBatch],
) -> dict[str, Any]:
    """Write a shard; what there is to say about it."""
    schema = pa.ipc.read_schema(pa.py_buffer(schema_bytes))
    plain = plain_schema(schema)
    coder = KeyCoder([plain.field(name).type for name in key], key)
    attempt = f"{_name(number)}.attempt-{uuid.uuid4().hex[:8]}"
    if not Path(building).is_dir():
        raise StoreError(f"{building}: the worker on this machine does not see the directory the driver has made")
    writer = ShardWriter(Path(building), attempt, plain, page_rows)
    null_keys = 0
    try:
        for batch in batches:
            batch = types.conform(batch, plain)
            codes, valid = coder.codes([batch.column(i) for i in range(len(key))])
            if valid is not None:
                null_keys += int((~valid).sum())
                batch, codes = batch.filter(pa.array(valid)), codes[valid]
            if shards > 1 and (coder.shards([batch.column(i) for i in range(len(key))], shards) != number).any():
                raise StoreError(f"{building}: Spark and the store do not agree on the hash of the key")
            writer.append(batch, codes)
        entry = writer.close(index, records)
    except BaseException:
        writer.abandon()
        shutil.rmtree(Path(building, attempt), ignore_errors=True)
        raise
    return {
        "attempt": attempt,
        "entry": entry.as_json(),
        "longest": writer.longest,
        "nulls": writer.nulls,
        "null_keys": null_keys,
    }


def _name(number: int) -> str:
    return f"shard-{number:04d}"


def _entry(written: dict[str, Any], name: str) -> ShardEntry:
    """What the shard of an attempt is called once the attempt has become the shard."""

    def moved(file: FileEntry) -> FileEntry:
        return replace(file, path=f"{name}/{file.path.rsplit('/', 1)[1]}")

    entry = ShardEntry.from_json(written["entry"])
    index = tuple(moved(file) for file in entry.index)
    records = moved(entry.records) if entry.records else None
    return replace(entry, codes=moved(entry.codes), data=moved(entry.data), index=index, records=records)
