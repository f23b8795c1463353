"""Which task gets a row: the shard of its key, computed by Spark exactly as the store computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from millrace.spark.plans.enrich_plan import JoinPlan

SHARD = "__millrace_shard"


def quoted(name: str) -> str:
    """A column's name as a column expression, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def hashed(keys: Sequence[Column], shards: int) -> Column:
    """The shard of a key."""
    return F.pmod(F.xxhash64(*keys), F.lit(shards)).cast("int")


def shard_of(plan: JoinPlan) -> Column:
    """The shard of a stream's row, hashed in the types of the master's key. For null keys any task will do."""
    columns = [F.col(quoted(name)) for name in plan.on]
    keys = [column.cast(type_) for column, type_ in zip(columns, plan.key_types, strict=True)]
    some_null = columns[0].isNull()
    for column in columns[1:]:
        some_null = some_null | column.isNull()
    anywhere = F.pmod(F.spark_partition_id(), F.lit(plan.shards)).cast("int")
    return F.when(some_null, anywhere).otherwise(hashed(keys, plan.shards))
