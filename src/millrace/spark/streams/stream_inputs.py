"""What joins of streams have in common on the driver: inputs that can be joined, shards, shares, and the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField

from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError
from millrace.core.sizes import format_size, parse_size
from millrace.spark import arrow_types as types
from millrace.spark import task_metrics as metrics
from millrace.spark.plans.pair_plan import BUCKET
from millrace.spark.plans.stream_join_plan import CODE, OperatorPlan
from millrace.spark.session import PARTITIONS, ROCKSDB, STATE_STORE, slots_per_executor
from millrace.spark.tasks import stateful_join as meeting
from millrace.spark.tasks.carry_operator import spread
from millrace.spark.transport.output_files import WayOut
from millrace.spark.transport.routing import SHARD
from millrace.worker.shipping import shipped

_RESERVED = (SHARD, BUCKET, CODE, metrics.COLUMN)
_LEAST = 1 << 20


def check(frames: Mapping[str, Any]) -> None:
    """All are DataFrames of one kind, with columns whose names can be used."""
    for name, df in frames.items():
        if not isinstance(df, DataFrame):
            raise SchemaError(f"{name}: expected a DataFrame; got {type(df).__name__}")
    batch = [name for name, df in frames.items() if not df.isStreaming]
    if batch and len(batch) < len(frames):
        other = "the other side is a stream" if len(frames) == 2 else "others are streams"
        raise ConfigError(
            f"{batch[0]}: is a batch DataFrame, and {other}. Make a store of it with build_master, and "
            "let enrich join the stream with it"
        )
    for name, df in frames.items():
        if df.sparkSession.conf.get(STATE_STORE, "") != ROCKSDB:
            raise ConfigError(f"join_streams keeps its state in RocksDB: set {STATE_STORE} to {ROCKSDB}")
        reserved = [column for column in df.columns if column.lower() in _RESERVED]
        if reserved:
            raise SchemaError(f"{name}: the column name {reserved[0]!r} is reserved")
        repeated = sorted({column for column in df.columns if df.columns.count(column) > 1})
        if repeated:
            raise SchemaError(f"{name}: columns appear more than once: {', '.join(repeated)}")


def shard_count(spark: SparkSession, shards: Any) -> int:
    """The number of shards, as given or as Spark has partitions."""
    if shards is None:
        return _partitions(spark)
    if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
        raise ConfigError(f"shards: expected a whole number of at least 1; got {shards!r}")
    return shards


def shard_names(spark: SparkSession, shards: int) -> tuple[int, ...]:
    """What Spark is to call the shards, so that they are spread over its partitions."""
    return tuple(spread(shards, _partitions(spark)))


def share_of_memory(spark: SparkSession, memory: str | int) -> int:
    """What one task may use."""
    total, tasks = parse_size(memory), slots_per_executor(spark)
    if total // tasks < _LEAST:
        raise BudgetTooSmallError(
            f"memory: {format_size(total)} is too little: {tasks} tasks share it, and each needs {_LEAST} bytes; "
            f"the least is {_LEAST * tasks} bytes ({format_size(_LEAST * tasks)})",
            _LEAST * tasks,
        )
    return total // tasks


def common_type(one: pa.DataType, other: pa.DataType, *, banded: bool = False) -> pa.DataType | None:
    """The type in which two columns are compared: the same, or the wider of two integers; none if there is none."""
    if one == other:
        return one
    both = (pa.types.is_signed_integer, *([pa.types.is_floating] if banded else []))
    if any(kind(one) and kind(other) for kind in both):
        return max(one, other, key=lambda type_: int(type_.bit_width))
    return None


def as_compared(spark: SparkSession) -> Callable[[str], str]:
    """A column's name as Spark tells names apart."""
    sensitive = (spark.conf.get("spark.sql.caseSensitive", "false") or "false").lower() == "true"
    return (lambda name: name) if sensitive else str.lower


def output_field(field: StructField, name: str, keys: Sequence[str]) -> StructField:
    """A column as it comes out. A row that matches has its key."""
    certain = types.is_simple(field.dataType) and (not field.nullable or field.name in keys)
    return StructField(name, field.dataType, not certain)


def met(
    frames: Mapping[str, DataFrame], plan: OperatorPlan, operator: meeting.Operator, way: WayOut, name: str | None
) -> DataFrame:
    """The query: rows are packed by shard, meet in the operator, and leave it with its metrics taken out."""
    label = name or f"{metrics.PREFIX} streams"
    if any(metrics.has(df, label) for df in frames.values()):
        raise ConfigError(f"name: the DataFrame has metrics called {label!r} already; give this join another name=")
    packed = [
        df.mapInArrow(shipped("millrace.spark.tasks.stateful_join", "pack", plan, place), meeting.PACKED)
        for place, df in enumerate(frames.values())
    ]
    together = reduce(DataFrame.union, packed).groupBy(SHARD)
    given = together.transformWithStateInPandas(operator, way.schema, "Append", "None")
    return way.rows(meeting.observed(given, label, list(frames)))


def _partitions(spark: SparkSession) -> int:
    return int(spark.conf.get(PARTITIONS, "200") or 200)
