"""Which task a row goes to: the shard of its key, computed by Spark exactly as the store computes it."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.spark.plans.enrich_plan import EnrichPlan

SHARD = "__millrace_shard"


def quoted(name: str) -> str:
    """Return a column's name as a column expression; it may have dots and backticks.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"


def key_shard(keys: Sequence[Column], shards: int) -> Column:
    """Return the shard of a key."""
    return F.pmod(F.xxhash64(*keys), F.lit(shards)).cast("int")


def stream_shard(plan: EnrichPlan) -> Column:
    """Return the shard of a stream's row, hashed in the types of the master's key; for null keys any shard will do."""
    columns = [F.col(quoted(name)) for name in plan.on]
    keys = [column.cast(type_) for column, type_ in zip(columns, plan.key_types, strict=True)]
    some_null = columns[0].isNull()
    for column in columns[1:]:
        some_null = some_null | column.isNull()
    anywhere = F.pmod(F.spark_partition_id(), F.lit(plan.shards)).cast("int")
    return F.when(some_null, anywhere).otherwise(key_shard(keys, plan.shards))


def routed(df: DataFrame, plan: EnrichPlan) -> DataFrame:
    """Return the rows, each in the task of its key's shard; with one shard, each where it is."""
    if plan.shards == 1:
        return df
    return df.withColumn(SHARD, stream_shard(plan)).repartitionById(plan.shards, SHARD).drop(SHARD)
