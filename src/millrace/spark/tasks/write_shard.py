"""A task of ``build_master``, which writes one shard of the store."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from millrace.core.errors import StoreError
from millrace.master.write.build_store import ShardWriter
from millrace.rows.columns import plain_schema
from millrace.rows.key_codes import KeyCoder
from millrace.spark import arrow_types as types
from millrace.spark.plans.shard_plan import ShardPlan, WrittenShard

WRITTEN = "shard int, written string"
"""The columns of what a task reports: the number of its shard, and a :class:`WrittenShard` as JSON."""


def shard_name(number: int) -> str:
    """Return the name of a shard's folder.

    >>> shard_name(7)
    'shard-0007'
    """
    return f"shard-{number:04d}"


def write_shard(plan: ShardPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task as one shard, and yield a row that reports it (:data:`WRITTEN`)."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number = context.partitionId()
    report = json.dumps(asdict(written_shard(plan, number, batches)))
    yield pa.record_batch({"shard": pa.array([number], pa.int32()), "written": [report]})


def written_shard(plan: ShardPlan, number: int, batches: Iterator[pa.RecordBatch]) -> WrittenShard:
    """Write a shard to a new folder, which no other attempt of the task uses, and return the report."""
    plain = plain_schema(plan.schema)
    places = range(len(plan.key))
    coder = KeyCoder([plain.field(name).type for name in plan.key], plan.key)
    attempt = f"{shard_name(number)}.attempt-{uuid.uuid4().hex[:8]}"
    if not Path(plan.directory).is_dir():
        raise StoreError(
            f"{plan.directory}: the worker on this machine cannot find the directory that the driver has created; "
            "the store's path must be the same shared folder on the driver and on all executors"
        )
    writer = ShardWriter(Path(plan.directory), attempt, plain, plan.page_rows)
    null_keys = 0
    try:
        for batch in batches:
            batch = types.conform(batch, plain)
            codes, valid = coder.codes([batch.column(place) for place in places])
            if valid is not None:
                null_keys += int((~valid).sum())
                batch, codes = batch.filter(pa.array(valid)), codes[valid]
            if plan.shards > 1:
                shards = coder.shards([batch.column(place) for place in places], plan.shards)
                if (shards != number).any():
                    raise StoreError(
                        f"{plan.directory}: Spark and Millrace compute different hashes of the key "
                        f"{', '.join(plan.key)} ({', '.join(map(str, coder.types))}). This is an error in Millrace: "
                        "report it with these types and the version of Spark"
                    )
            writer.append(batch, codes)
        entry = writer.close(plan.index, plan.records)
    except BaseException:
        writer.abandon()
        shutil.rmtree(Path(plan.directory, attempt), ignore_errors=True)
        raise
    return WrittenShard(attempt, entry.as_json(), writer.longest, writer.nulls, null_keys)
