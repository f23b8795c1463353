"""What the driver does for every join of streams: it checks the inputs, shards and memory, and builds the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError
from millrace.core.sizes import format_size, parse_size
from millrace.spark import arrow_types as types
from millrace.spark.metrics.metric_fields import METRICS_COLUMN, PREFIX
from millrace.spark.metrics.observe import is_observed, observe_stream_join
from millrace.spark.plans.pair_plan import BUCKET
from millrace.spark.plans.stream_join_plan import CODE
from millrace.spark.session import PARTITIONS, ROCKSDB, STATE_STORE, slots_per_executor
from millrace.spark.tasks.pack_rows import PACKED_INPUT
from millrace.spark.tasks.stream_join_operator import BlockJoin, StreamJoinOperator
from millrace.spark.transport.output_files import OUTPUT_LINES, output_rows
from millrace.spark.transport.routing import SHARD
from millrace.spark.transport.shard_names import shard_names
from millrace.worker.shipping import MapInArrow

_RESERVED = (SHARD, BUCKET, CODE, METRICS_COLUMN)
_TASK_BYTES = 1 << 20
"""The least memory of a task, in bytes. Blocks and chunks are fractions of a task's memory."""


def check_inputs(frames: Mapping[str, Any]) -> None:
    """Check that all inputs are DataFrames, all streams or all batches, with column names that can be used."""
    for name, df in frames.items():
        if not isinstance(df, DataFrame):
            raise SchemaError(f"{name}: expected a DataFrame; got {type(df).__name__}")
    batch = [name for name, df in frames.items() if not df.isStreaming]
    if batch and len(batch) < len(frames):
        other = "the other side is a stream" if len(frames) == 2 else "others are streams"
        raise ConfigError(
            f"{batch[0]}: expected a stream, because {other}; got a batch DataFrame. Write it to a store with "
            "build_master, and join the stream with the store by enrich"
        )
    for name, df in frames.items():
        if df.sparkSession.conf.get(STATE_STORE, "") != ROCKSDB:
            raise ConfigError(f"join_streams keeps its state in RocksDB: set {STATE_STORE} to {ROCKSDB}")
        reserved = [column for column in df.columns if column.lower() in _RESERVED]
        if reserved:
            raise SchemaError(f"{name}: the column name {reserved[0]!r} is reserved; rename the column")
        repeated = sorted({column for column in df.columns if df.columns.count(column) > 1})
        if repeated:
            raise SchemaError(f"{name}: columns appear more than once: {', '.join(repeated)}")


def shard_count(spark: SparkSession, shards: Any) -> int:
    """Return the number of shards: ``shards`` if given, else the number of Spark's shuffle partitions."""
    if shards is None:
        return _partitions(spark)
    if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
        raise ConfigError(f"shards: expected a whole number of at least 1; got {shards!r}")
    return shards


def names_of_shards(spark: SparkSession, shards: int) -> tuple[int, ...]:
    """Return a number for each shard; Spark groups rows by it, which spreads the shards over the partitions."""
    return tuple(shard_names(shards, _partitions(spark)))


def task_memory(spark: SparkSession, memory: str | int) -> int:
    """Return the memory of one task, in bytes; raise an error if it is too little."""
    total, tasks = parse_size(memory), slots_per_executor(spark)
    if total // tasks < _TASK_BYTES:
        raise BudgetTooSmallError(
            f"memory: {format_size(total)} is too little: {tasks} tasks share it, and each needs {_TASK_BYTES} bytes; "
            f"the least is {_TASK_BYTES * tasks} bytes ({format_size(_TASK_BYTES * tasks)})",
            _TASK_BYTES * tasks,
        )
    return total // tasks


def common_type(one: pa.DataType, other: pa.DataType, *, banded: bool = False) -> pa.DataType | None:
    """Return the type in which two columns are compared: their common type, or the wider of two integer types.

    If ``banded`` is set, the columns are those that a band compares, and two floating-point types are compared in the
    wider one. If there is no type in which the columns are compared, return None.
    """
    if one == other:
        return one
    both = (pa.types.is_signed_integer, *([pa.types.is_floating] if banded else []))
    if any(kind(one) and kind(other) for kind in both):
        return max(one, other, key=lambda type_: int(type_.bit_width))
    return None


def name_folding(spark: SparkSession) -> Callable[[str], str]:
    """Return a function whose results for two column names are equal if and only if Spark treats the names as equal."""
    sensitive = (spark.conf.get("spark.sql.caseSensitive", "false") or "false").lower() == "true"
    return (lambda name: name) if sensitive else str.lower


def output_field(field: StructField, name: str, keys: Sequence[str]) -> StructField:
    """Return a field of the output under a new name. Key columns are not nullable: rows with null keys do not match."""
    never_null = types.is_simple(field.dataType) and (not field.nullable or field.name in keys)
    return StructField(name, field.dataType, not never_null)


def join_packed(
    frames: Mapping[str, DataFrame],
    packers: Sequence[MapInArrow],
    join: BlockJoin,
    output: StructType,
    name: str | None,
) -> DataFrame:
    """Return the joined DataFrame: every input is packed by shard, and one stateful operator joins all of them."""
    label = name or f"{PREFIX} streams"
    if any(is_observed(df, label) for df in frames.values()):
        raise ConfigError(f"name: the DataFrame already has metrics named {label!r}; pass another name=… for this join")
    packed = [df.mapInArrow(pack, PACKED_INPUT) for df, pack in zip(frames.values(), packers, strict=True)]
    shards = reduce(DataFrame.union, packed).groupBy(SHARD)
    lines = shards.transformWithStateInPandas(StreamJoinOperator(join), OUTPUT_LINES, "Append", "None")
    return output_rows(observe_stream_join(lines, label, list(frames)), output)


def _partitions(spark: SparkSession) -> int:
    return int(spark.conf.get(PARTITIONS, "200") or 200)
