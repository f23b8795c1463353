"""Routes each row to the task of its key's shard, which Spark computes exactly as the store does."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.spark.plans.enrich_plan import EnrichPlan

SHARD = "__millrace_shard"


def quoted(name: str) -> str:
    """Return a column's name quoted for use as a column expression; the name may contain dots and backticks.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"


def key_shard(keys: Sequence[Column], shards: int) -> Column:
    """Return the expression for the shard of a key, a number from 0 to ``shards - 1``."""
    return F.pmod(F.xxhash64(*keys), F.lit(shards)).cast("int")


def stream_shard(plan: EnrichPlan) -> Column:
    """Return the expression for the shard of a row's key, cast to the master's types; a null key gets any shard."""
    columns = [F.col(quoted(name)) for name in plan.on]
    keys = [column.cast(type_) for column, type_ in zip(columns, plan.key_types, strict=True)]
    some_null = columns[0].isNull()
    for column in columns[1:]:
        some_null = some_null | column.isNull()
    anywhere = F.pmod(F.spark_partition_id(), F.lit(plan.shards)).cast("int")
    return F.when(some_null, anywhere).otherwise(key_shard(keys, plan.shards))


def routed(df: DataFrame, plan: EnrichPlan) -> DataFrame:
    """Return the DataFrame with each row in the task of its key's shard; with one shard, rows stay where they are."""
    if plan.shards == 1:
        return df
    return df.withColumn(SHARD, stream_shard(plan)).repartitionById(plan.shards, SHARD).drop(SHARD)
