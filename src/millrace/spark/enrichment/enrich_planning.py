"""``enrich``: a DataFrame in, the same DataFrame with master columns out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError, one_of
from millrace.core.sizes import format_size, parse_size
from millrace.core.spec import JoinSpec, On
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.choose.auto import AUTO
from millrace.semistream.conditions.condition import Condition
from millrace.semistream.join import SemiStreamJoin
from millrace.spark import arrow_types as types
from millrace.spark import task_metrics as metrics
from millrace.spark.enrichment.auto_algorithm import decided
from millrace.spark.plans.enrich_plan import JoinPlan
from millrace.spark.session import slots_per_executor
from millrace.spark.tasks import carry_operator as carry
from millrace.spark.transport.output_files import WayOut
from millrace.spark.transport.routing import SHARD, shard_of
from millrace.worker.shipping import shipped

SPARKS_WORDS = {
    "left_outer": "left",
    "leftouter": "left",
    "left_semi": "semi",
    "leftsemi": "semi",
    "left_anti": "anti",
    "leftanti": "anti",
}
"""What Spark calls the same kinds of join."""


def enrich(
    df: DataFrame,
    master: str | os.PathLike[str] | MasterStore,
    on: On,
    how: str = "inner",
    *,
    algorithm: str = AUTO,
    memory: str | int = "256MB",
    pending: str = "drain",
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    where: Condition | None = None,
    turns: int = 2,
    name: str | None = None,
    scratch: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Join a DataFrame with a master store.

    Parameters
    ----------
    df
        A streaming or batch DataFrame.
    master
        The store, made by :func:`build_master` or ``MasterStore.build``, under a path that all executors see.
    on
        Key column of both sides; several; or a mapping from the DataFrame's names to the master's.
    how
        ``"inner"``, ``"left"``, ``"semi"`` or ``"anti"``, or Spark's words for them.
    algorithm
        A name from the table of algorithms, or ``"auto"``: ``"lookup"`` with ``drain`` if the store has an index, else
        ``"ssbj"``. :func:`explain` says which, and why.
    memory
        The budget of one executor, shared by its tasks: bytes, ``"256MB"``, or ``"1%"`` of the master.
    pending
        ``"drain"``: every micro-batch is completed before it ends; stateless, works with every trigger and with batch
        DataFrames. ``"carry"``: what the cache can answer leaves in its own micro-batch, other tuples wait at most one
        turn of the wheel, across micro-batches; for streams only, and for algorithms with a wheel.
    columns
        Master columns that come out; all but the key by default.
    suffix
        Appended to master columns whose name the DataFrame has too; without it that is an error.
    where
        A condition that a pair has to meet beside having the same key, such as :func:`millrace.band`; with ``drain``.
    turns
        With ``carry``: micro-batches in which the wheel turns once. The more, the less is scanned in each and the more
        tuples wait, which are written down.
    name
        What the metrics are called in ``StreamingQueryProgress.observedMetrics``; by default ``"millrace "`` and the
        name of the store's directory. Two joins with the same store in one query need two names.
    scratch
        Where workers keep what they have learned and, with ``carry``, copies of rows that wait; by default Spark's
        local directory of the executor, which is removed with it.
    **options
        Options of the algorithm, or ``b``; not with ``"auto"``, which chooses them.

    Returns
    -------
    DataFrame
        The DataFrame's columns, then the master's. The session's settings, views and cache are left alone.
    """
    store = opened(df, master, pending)
    options = with_condition(options, where, pending)
    chosen = decided(algorithm, store, pending, options).algorithm
    plan, output = planned(df, store, on, how, chosen, memory, columns, suffix, scratch, options)
    label = name or f"{metrics.PREFIX} {Path(plan.path).name}"
    if metrics.has(df, label):
        raise ConfigError(f"name: the DataFrame has metrics called {label!r} already; give this join another name=")
    if pending == "carry":
        return carry.carried(df, plan, output, turns, label)
    if df.isStreaming:  # a micro-batch has room on a disk; the output of a batch may not
        way = WayOut(output)
        lines = _routed(df, plan).mapInArrow(
            shipped("millrace.spark.tasks.drain_task", "drain_to_file", plan), way.schema
        )
        return way.rows(metrics.observed(lines, label, plan.algorithm))
    sent = StructType([*output.fields, StructField(metrics.COLUMN, StringType())])
    joined = _routed(df, plan).mapInArrow(shipped("millrace.spark.tasks.drain_task", "drain", plan), sent)
    observed = metrics.observed(joined, label, plan.algorithm)
    return observed.where(F.col(metrics.COLUMN).isNull()).drop(metrics.COLUMN)


def opened(df: DataFrame, master: str | os.PathLike[str] | MasterStore, pending: str) -> MasterStore:
    """The store, if the arguments are of the kind they should be."""
    one_of("pending", pending, ("drain", "carry"))
    if not isinstance(df, DataFrame):
        raise SchemaError(f"enrich: expected a DataFrame; got {type(df).__name__}")
    if isinstance(master, DataFrame):
        raise ConfigError(
            "master: expected the path of a store; got a DataFrame. build_master(df, path, key) makes one"
        )
    return master if isinstance(master, MasterStore) else MasterStore.open(master)


def with_condition(options: dict[str, Any], where: Condition | None, pending: str) -> dict[str, Any]:
    """The options of the join, its condition among them."""
    if where is None:
        return options
    if pending == "carry":
        raise ConfigError("where: conditions work with pending='drain'; got 'carry'")
    return {**options, "where": where}


def planned(
    df: DataFrame,
    store: MasterStore,
    on: On,
    how: str,
    algorithm: str,
    memory: str | int,
    columns: Sequence[str] | None,
    suffix: str | None,
    scratch: str | os.PathLike[str] | None,
    options: dict[str, Any],
) -> tuple[JoinPlan, StructType]:
    """Check everything that can be checked before the query runs; the plan and the output's fields.

    ``algorithm`` is the one that was decided on.
    """
    how = SPARKS_WORDS.get(how, how)
    for side, names in (("stream", df.columns), ("master", store.schema.names)):
        reserved = [name for name in names if name.lower() in (SHARD, metrics.COLUMN)]
        if reserved:
            raise SchemaError(f"{side}: the column name {reserved[0]!r} is reserved")
    _check_names(df)
    spec = JoinSpec.of(on, how, columns, suffix).in_order_of(store.key)
    for key in spec.stream_key:
        if key in df.columns:
            types.check_collation(df.schema[key], "stream")
    stream = _stream_schema(df, store, spec)
    spark = df.sparkSession
    total = parse_size(memory, of=store.nbytes)
    parts = max(store.shards, slots_per_executor(spark))
    share = max(1, total // parts)
    if "main_memory" in ALGORITHMS[algorithm].options:
        options = {"main_memory": False, **options}  # a task is over before reading all of the master has paid off
    emitted = _emitted(
        stream,
        lambda memory: SemiStreamJoin(
            store.shard(0),
            spec_on(spec),
            how,
            algorithm=algorithm,
            memory=memory,
            columns=columns,
            suffix=suffix,
            **options,
        ),
        total,
        parts,
    )
    fields = _fields(df.schema, list(emitted)[len(df.columns) :], spec, store)
    _check_case(df, fields)
    sent = types.sent_schema(fields)
    master_keys = [store.schema.field(name) for name in store.key]
    plan = JoinPlan(
        path=str(store.path.absolute()),
        snapshot=store.manifest.snapshot,
        shards=store.shards,
        on=spec_on(spec),
        key_types=tuple(f.dataType.simpleString() for f in types.spark_fields(master_keys, "master")),
        how=how,
        algorithm=algorithm,
        memory=share,
        columns=spec.columns,
        suffix=suffix,
        options=options,
        stream=stream.serialize().to_pybytes(),
        sent=sent.serialize().to_pybytes(),
        scratch=None if scratch is None else str(scratch),
    )
    return plan, fields


def _fields(stream: StructType, added: list[Any], spec: JoinSpec, store: MasterStore) -> StructType:
    """The output's fields. Saying that a column has no nulls is worth it: Spark asks for every row otherwise.

    A tuple that matches has a key; it has the master's columns too, and they have nulls only where the master has.
    """

    def certain(field: StructField) -> bool:
        return not field.nullable or (spec.how in ("inner", "semi") and field.name in spec.stream_key)

    ours = [
        StructField(f.name, f.dataType, not (types.is_simple(f.dataType) and certain(f)), f.metadata) for f in stream
    ]
    theirs = types.spark_fields(added, "master")
    sources = [store.schema.field(place).name for place in spec.master_columns(store.schema)]
    for field, source in zip(theirs, sources, strict=True):
        field.nullable = not (spec.how == "inner" and types.is_simple(field.dataType) and store.complete(source))
    return StructType([*ours, *theirs])


def _check_names(df: DataFrame) -> None:
    """``mapInArrow`` asks for columns by their names, unquoted."""
    odd = [name for name in df.columns if "." in name or "`" in name]
    if odd:
        raise SchemaError(f"stream: Spark cannot hand the column {odd[0]!r} to Python; rename it without dots and `")
    if _cases_differ(df):
        return
    seen: dict[str, str] = {}
    for name in df.columns:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise SchemaError(
                f"stream: the columns {other!r} and {name!r} differ in case only, which Spark does not see; rename one"
            )


def _cases_differ(df: DataFrame) -> bool:
    return (df.sparkSession.conf.get("spark.sql.caseSensitive", "false") or "false").lower() == "true"


def _check_case(df: DataFrame, output: StructType) -> None:
    """Names that differ in case only are the same to Spark, unless it was told otherwise."""
    if _cases_differ(df):
        return
    ours = {name.lower(): name for name in df.columns}
    for field in output.fields[len(df.columns) :]:
        if field.name.lower() in ours:
            raise SchemaError(
                f"output: the stream's column {ours[field.name.lower()]!r} and the master's {field.name!r} differ in "
                "case only, which Spark does not see; choose master columns with columns=[…] or rename the stream's"
            )


def _emitted(stream: Any, made: Callable[[int], SemiStreamJoin], total: int, parts: int) -> Any:
    """The output's schema; if a task's part of the memory is too small for the join, an error that speaks of it all."""
    least = max(1, total // parts)
    while True:
        try:
            schema = made(least).bind(stream)
            break
        except BudgetTooSmallError as error:
            least = error.minimum
    if least > max(1, total // parts):
        raise BudgetTooSmallError(
            f"memory: {format_size(total)} is too little: {parts} tasks share it, and each needs {least} bytes; "
            f"the least is {least * parts} bytes ({format_size(least * parts)})",
            least * parts,
        )
    return schema


def spec_on(spec: JoinSpec) -> dict[str, str]:
    """The key columns as a mapping, in order."""
    return dict(zip(spec.stream_key, spec.master_key, strict=True))


def _stream_schema(df: DataFrame, store: MasterStore, spec: JoinSpec) -> Any:
    """The stream's columns in Arrow, key timestamps in the zone the master has them in."""
    import pyarrow as pa

    stream = types.arrow_schema(df.schema, "stream")
    zones = {}
    for ours, theirs in zip(spec.stream_key, spec.master_key, strict=True):
        if theirs in store.schema.names and pa.types.is_timestamp(store.schema.field(theirs).type):
            zones[ours] = store.schema.field(theirs).type
    fields = [
        field.with_type(zones[field.name])
        if field.name in zones and pa.types.is_timestamp(field.type) and field.type.tz and zones[field.name].tz
        else field
        for field in stream
    ]
    return pa.schema(fields)


def _routed(df: DataFrame, plan: JoinPlan) -> DataFrame:
    """Every row in the task of its key's shard. With one shard, every row where it is."""
    if plan.shards == 1:
        return df
    return df.withColumn(SHARD, shard_of(plan)).repartitionById(plan.shards, SHARD).drop(SHARD)
