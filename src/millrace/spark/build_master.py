"""``build_master``: the executors write the shards of a master store, and the driver then makes the store visible."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.core.errors import ConfigError, SchemaError
from millrace.master.manifest import Manifest, ShardEntry
from millrace.master.store import MasterStore
from millrace.master.store_files import FileEntry
from millrace.master.write.build_store import store_schema
from millrace.master.write.staging_directory import StagingDirectory
from millrace.rows.columns import plain_schema
from millrace.rows.key_codes import KeyCoder
from millrace.spark import arrow_types as types
from millrace.spark.metrics.metric_fields import METRICS_COLUMN
from millrace.spark.plans.shard_plan import ShardPlan, WrittenShard
from millrace.spark.tasks.write_shard import WRITTEN, shard_name, write_shard, written_shard
from millrace.spark.transport.routing import SHARD, key_shard, quoted
from millrace.worker.shipping import in_worker


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
    """Write a DataFrame to a master store for :func:`enrich` and ``SemiStreamJoin``, and return the store.

    Parameters
    ----------
    df
        Any batch DataFrame: Parquet, JDBC, Delta, a table, a query.
    path
        The directory to create. The driver and all executors must see it under this path.
    key
        The key column, or several. Rows whose key is null match nothing and are left out.
    shards
        Number of parts that the rows are split into by key. With one, streams need no shuffle, and each task scans the
        whole master; with several, the stream is shuffled, and each task scans one part only. The page
        ``docs/explanation/drain-and-carry.md`` says when several are faster.
    columns
        Columns to keep besides the key; all by default.
    page_rows
        Rows per page of the data file.
    index
        Whether to write an index from keys to rows too. Algorithms that only scan do not need it.
    records
        With an index, whether to write each row contiguously too: look-ups are several times as fast, and the rows
        take about twice the disk space.
    overwrite
        Whether to replace a store that is already there. Readers see the old one or the new one, never a mixture.
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
    reserved = [name for name in given.names if name.lower() in (SHARD, METRICS_COLUMN)]
    if reserved:
        raise SchemaError(f"build_master: the column name {reserved[0]!r} is reserved; rename the column")
    KeyCoder([schema.field(name).type for name in names], names)  # raises an error for a column of an unsuitable type
    with StagingDirectory(Path(path), overwrite) as staging:
        directory = staging.directory
        plan = ShardPlan(
            str(directory), given.serialize().to_pybytes(), names, shards, page_rows, index=index, records=records
        )
        written = _write_shards(df, plan)
        entries = []
        for number, shard in enumerate(written):
            (directory / shard.attempt).rename(directory / shard_name(number))
            entries.append(_entry(shard, shard_name(number)))
        for leftover in directory.glob("*.attempt-*"):  # attempts of tasks that Spark ran more than once
            shutil.rmtree(leftover, ignore_errors=True)
        longest = {name: max(shard.longest[name] for shard in written) for name in written[0].longest}
        nulls = {name: sum(shard.nulls[name] for shard in written) for name in written[0].nulls}
        null_keys = sum(shard.null_keys for shard in written)
        snapshot = uuid.uuid4().hex
        Manifest(schema, names, page_rows, null_keys, snapshot, longest, nulls, entries).write(directory)
        staging.commit()
    return MasterStore.open(staging.target)


def _write_shards(df: DataFrame, plan: ShardPlan) -> list[WrittenShard]:
    """Write all shards on the executors, and return the executors' reports in the order of the shards."""
    columns = df.select(*(F.col(quoted(name)) for name in plan.schema.names))
    shard = key_shard([F.col(quoted(name)) for name in plan.key], plan.shards)
    by_shard = columns.withColumn(SHARD, shard).repartitionById(plan.shards, SHARD).drop(SHARD)
    rows = by_shard.mapInArrow(in_worker(write_shard, plan), WRITTEN).collect()
    written = {row.shard: WrittenShard(**json.loads(row.written)) for row in rows}
    return [  # Spark runs no task for a partition that is known to have no rows
        written[number] if number in written else written_shard(plan, number, iter(())) for number in range(plan.shards)
    ]


def _entry(written: WrittenShard, name: str) -> ShardEntry:
    """Return a shard's entry for the manifest, with the paths that its files have in the folder ``name``."""

    def renamed(file: FileEntry) -> FileEntry:
        return replace(file, path=f"{name}/{file.path.rsplit('/', 1)[1]}")

    entry = ShardEntry.from_json(written.entry)
    index = tuple(renamed(file) for file in entry.index)
    records = renamed(entry.records) if entry.records else None
    return replace(entry, codes=renamed(entry.codes), data=renamed(entry.data), index=index, records=records)
