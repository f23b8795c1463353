"""``pending="carry"`` on the driver: the stream is packed by shard, and a stateful operator unpacks and joins it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from millrace.core.errors import ConfigError
from millrace.spark.metrics.observe import observe_enrich
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.session import PARTITIONS, ROCKSDB, STATE_STORE
from millrace.spark.tasks.carry_operator import CarryOperator
from millrace.spark.tasks.pack_rows import PACKED_STREAM, pack_stream
from millrace.spark.transport.output_files import OUTPUT_LINES, output_rows
from millrace.spark.transport.routing import SHARD, stream_shard
from millrace.spark.transport.shard_names import shard_names
from millrace.worker.shipping import in_worker


def carry(df: DataFrame, plan: EnrichPlan, output: StructType, turns: int, label: str) -> DataFrame:
    """Return the stream joined with the master; stream rows may be carried over to later micro-batches."""
    if not df.isStreaming:
        raise ConfigError("pending: expected 'drain' for a batch; got 'carry', which is for streaming DataFrames")
    check_turns(turns)
    settings = df.sparkSession.conf
    if settings.get(STATE_STORE, "") != ROCKSDB:
        raise ConfigError(f"pending: 'carry' keeps its state in RocksDB: set {STATE_STORE} to {ROCKSDB}")
    names = shard_names(plan.shards, int(settings.get(PARTITIONS, "200") or 200))
    sharded = df.withColumn(SHARD, stream_shard(plan) if plan.shards > 1 else F.lit(0))
    packed = sharded.mapInArrow(in_worker(pack_stream, plan, names), PACKED_STREAM)
    lines = packed.groupBy(SHARD).transformWithStateInPandas(
        CarryOperator(plan, turns), OUTPUT_LINES, "Append", "ProcessingTime"
    )
    without_watermarks = StructType([StructField(f.name, f.dataType, f.nullable) for f in output])
    return output_rows(observe_enrich(lines, label, plan.algorithm), without_watermarks)


def check_turns(turns: int) -> int:
    """Check the number of micro-batches in which the master is scanned once, and return it."""
    if not isinstance(turns, int) or turns < 1:
        raise ConfigError(f"turns: expected a whole number of at least 1; got {turns!r}")
    return turns
