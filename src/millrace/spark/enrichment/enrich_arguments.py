"""Checks the arguments of ``enrich`` on the driver, and creates the plan and the output's fields from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError, one_of
from millrace.core.sizes import format_size, parse_size
from millrace.core.spec import JoinSpec, On
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.conditions.condition import Condition
from millrace.semistream.join import SemiStreamJoin
from millrace.semistream.sizing.least_memory import least_memory
from millrace.spark import arrow_types as types
from millrace.spark.metrics.metric_fields import METRICS_COLUMN
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.session import slots_per_executor
from millrace.spark.transport.routing import SHARD

SPARK_JOIN_KINDS = {
    "left_outer": "left",
    "leftouter": "left",
    "left_semi": "semi",
    "leftsemi": "semi",
    "left_anti": "anti",
    "leftanti": "anti",
}
"""A mapping from Spark's names for kinds of join to Millrace's."""


def open_store(df: DataFrame, master: str | os.PathLike[str] | MasterStore, pending: str) -> MasterStore:
    """Check ``pending`` and the types of ``df`` and ``master``, and return the master store."""
    one_of("pending", pending, ("drain", "carry"))
    if not isinstance(df, DataFrame):
        raise SchemaError(f"enrich: expected a DataFrame; got {type(df).__name__}")
    if isinstance(master, DataFrame):
        raise ConfigError(
            "master: expected the path of a store; got a DataFrame. build_master(df, path, key) writes one to a store"
        )
    return master if isinstance(master, MasterStore) else MasterStore.open(master)


def with_condition(options: dict[str, Any], where: Condition | None, pending: str) -> dict[str, Any]:
    """Return the join's options with the condition ``where`` added; raise an error if ``pending`` is ``"carry"``.

    If there is no condition, return the options as they are.
    """
    if where is None:
        return options
    if pending == "carry":
        raise ConfigError("where: conditions work with pending='drain' only; got 'carry'")
    return {**options, "where": where}


def enrich_plan(
    df: DataFrame,
    store: MasterStore,
    on: On,
    how: str,
    algorithm: str,
    memory: str | int | None,
    columns: Sequence[str] | None,
    suffix: str | None,
    scratch: str | os.PathLike[str] | None,
    options: dict[str, Any],
) -> tuple[EnrichPlan, StructType]:
    """Check everything that can be checked before the query runs, and return the plan and the output's fields.

    ``algorithm`` must not be ``"auto"``. If ``memory`` is None, the plan gets the least memory that works.
    """
    how = SPARK_JOIN_KINDS.get(how, how)
    for side, names in (("stream", df.columns), ("master", store.schema.names)):
        reserved = [name for name in names if name.lower() in (SHARD, METRICS_COLUMN)]
        if reserved:
            raise SchemaError(f"{side}: the column name {reserved[0]!r} is reserved; rename the column")
    _check_names(df)
    spec = JoinSpec.of(on, how, columns, suffix).in_order_of(store.key)
    for key in spec.stream_key:
        if key in df.columns:
            types.check_collation(df.schema[key], "stream")
    stream = _stream_schema(df, store, spec)
    if "main_memory" in ALGORITHMS[algorithm].options:
        options = {"main_memory": False, **options}  # tasks are too short to gain from the whole master in memory

    joined = (store.shard(0), key_mapping(spec), how)
    arguments = {"algorithm": algorithm, "columns": columns, "suffix": suffix, **options}
    tasks = tasks_sharing_memory(df, store)
    total = 0 if memory is None else parse_size(memory, of=store.nbytes)
    least = least_memory(*joined, stream, **arguments)
    of_task = least if memory is None else max(1, total // tasks)
    if of_task < least:
        raise _too_little(total, tasks, least)
    join = SemiStreamJoin(*joined, memory=of_task, **arguments)
    fields = _output_fields(df.schema, list(join.bind(stream))[len(df.columns) :], spec, store)
    _check_case(df, fields)
    master_keys = [store.schema.field(name) for name in store.key]
    plan = EnrichPlan(
        path=str(store.path.absolute()),
        snapshot=store.manifest.snapshot,
        shards=store.shards,
        on=key_mapping(spec),
        key_types=tuple(f.dataType.simpleString() for f in types.spark_fields(master_keys, "master")),
        how=how,
        algorithm=algorithm,
        memory=of_task,
        columns=spec.columns,
        suffix=suffix,
        options=options,
        stream=stream.serialize().to_pybytes(),
        sent=types.sent_schema(fields).serialize().to_pybytes(),
        scratch=None if scratch is None else str(scratch),
    )
    return plan, fields


def tasks_sharing_memory(df: DataFrame, store: MasterStore) -> int:
    """Return the number of tasks that share an executor's budget: the larger of its slots and the store's shards."""
    return max(store.shards, slots_per_executor(df.sparkSession))


def key_mapping(spec: JoinSpec) -> dict[str, str]:
    """Return a mapping from the stream's key columns to the master's, in the order of the key."""
    return dict(zip(spec.stream_key, spec.master_key, strict=True))


def _too_little(total: int, tasks: int, least: int) -> BudgetTooSmallError:
    return BudgetTooSmallError(
        f"memory: {format_size(total)} is too little: {tasks} tasks share it, and each needs {least} bytes; "
        f"the least is {least * tasks} bytes ({format_size(least * tasks)})",
        least * tasks,
    )


def _output_fields(stream: StructType, added: list[Any], spec: JoinSpec, store: MasterStore) -> StructType:
    """Return the output's fields, marked as not nullable where possible, since Spark then skips a check of each value.

    A row that matches has no null in its key. In an inner join, a master column has nulls only if it has nulls in the
    master.
    """

    def never_null(field: StructField) -> bool:
        return not field.nullable or (spec.how in ("inner", "semi") and field.name in spec.stream_key)

    ours = [
        StructField(f.name, f.dataType, not (types.is_simple(f.dataType) and never_null(f)), f.metadata) for f in stream
    ]
    sources = [store.schema.field(place).name for place in spec.master_columns(store.schema)]
    theirs = [
        StructField(
            f.name, f.dataType, not (spec.how == "inner" and types.is_simple(f.dataType) and store.complete(source))
        )
        for f, source in zip(types.spark_fields(added, "master"), sources, strict=True)
    ]
    return StructType([*ours, *theirs])


def _check_names(df: DataFrame) -> None:
    """Check that the stream's column names work with ``mapInArrow``, which looks them up unquoted."""
    odd = [name for name in df.columns if "." in name or "`" in name]
    if odd:
        raise SchemaError(
            f"stream: Spark cannot pass the column {odd[0]!r} to Python; rename it to a name without dots and backticks"
        )
    if _is_case_sensitive(df):
        return
    seen: dict[str, str] = {}
    for name in df.columns:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise SchemaError(
                f"stream: the columns {other!r} and {name!r} differ in case only, which Spark ignores; rename one"
            )


def _is_case_sensitive(df: DataFrame) -> bool:
    return (df.sparkSession.conf.get("spark.sql.caseSensitive", "false") or "false").lower() == "true"


def _check_case(df: DataFrame, output: StructType) -> None:
    """Check that no two output names differ in case only: Spark treats them as equal unless it is case-sensitive."""
    if _is_case_sensitive(df):
        return
    ours = {name.lower(): name for name in df.columns}
    for field in output.fields[len(df.columns) :]:
        if field.name.lower() in ours:
            raise SchemaError(
                f"output: the stream's column {ours[field.name.lower()]!r} and the master's {field.name!r} differ in "
                "case only, which Spark ignores; choose master columns with columns=[…] or rename the stream's"
            )


def _stream_schema(df: DataFrame, store: MasterStore, spec: JoinSpec) -> pa.Schema:
    """Return the stream's Arrow schema, in which key timestamps have the master's type if both have a time zone."""
    stream = types.arrow_schema(df.schema, "stream")
    zoned = {}
    for ours, theirs in zip(spec.stream_key, spec.master_key, strict=True):
        if theirs in store.schema.names and pa.types.is_timestamp(store.schema.field(theirs).type):
            zoned[ours] = store.schema.field(theirs).type
    fields = [
        field.with_type(zoned[field.name])
        if field.name in zoned and pa.types.is_timestamp(field.type) and field.type.tz and zoned[field.name].tz
        else field
        for field in stream
    ]
    return pa.schema(fields)
