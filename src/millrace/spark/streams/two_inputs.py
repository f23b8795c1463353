"""``join_streams`` of two inputs on the driver: it checks the arguments, and makes the plan and the output's fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from millrace.core.errors import SchemaError
from millrace.core.spec import JoinSpec, On
from millrace.rows.key_codes import KeyCoder
from millrace.spark import arrow_types as types
from millrace.spark.plans.band_buckets import BucketedBand
from millrace.spark.plans.pair_plan import LEFT, RIGHT, SIDES, PairPlan
from millrace.spark.streams.stream_inputs import (
    check_inputs,
    common_type,
    join_packed,
    name_folding,
    names_of_shards,
    output_field,
    shard_count,
    task_memory,
)
from millrace.spark.tasks.pack_rows import pack_pair_input
from millrace.spark.tasks.pair_join import PairJoin
from millrace.worker.shipping import in_worker


def join_pair(
    left: DataFrame,
    right: Any,
    on: Any,
    band: tuple[Any, Any] | None,
    *,
    shards: int | None,
    memory: str | int,
    columns: Sequence[str] | None,
    suffix: str | None,
    name: str | None,
) -> DataFrame:
    """Return the join of two DataFrames, which one stateful operator computes."""
    frames: dict[str, Any] = dict(zip(SIDES, (left, right), strict=True))
    check_inputs(frames)
    plan, output = pair_plan(left, right, on, band, shards, memory, columns, suffix)
    packers = [in_worker(pack_pair_input, plan, side) for side in (LEFT, RIGHT)]
    return join_packed(frames, packers, PairJoin(plan), output, name)


def pair_plan(
    left: DataFrame,
    right: DataFrame,
    on: On,
    band: tuple[Any, Any] | None,
    shards: int | None,
    memory: str | int,
    columns: Sequence[str] | None,
    suffix: str | None,
) -> tuple[PairPlan, StructType]:
    """Check everything that can be checked before the query runs, and return the plan and the output's fields."""
    spec = JoinSpec.of(on, "inner", columns, suffix)
    frames = (left, right)
    schemas = [types.arrow_schema(df.schema, side) for side, df in zip(SIDES, frames, strict=True)]
    named = (spec.stream_key, spec.master_key)
    for side, df, names in zip(SIDES, frames, named, strict=True):
        for key in names:
            if key not in df.columns:
                raise SchemaError(f"{side}: has no column {key!r}; it has {', '.join(df.columns)}")
            types.check_collation(df.schema[key], side)
    shared = [_shared(*pair, schemas, banded=False) for pair in _equal(spec, band)]
    if shared:
        KeyCoder(
            [field.type for field in shared], [field.name for field in shared]
        )  # raises an error that names a column of an unsuitable type
    bucketed = None
    if band is not None:
        bucketed = BucketedBand.of(band, _shared(spec.stream_key[-1], spec.master_key[-1], schemas, banded=True).type)
    equal = [tuple(df.columns.index(pair[side]) for pair in _equal(spec, band)) for side, df in enumerate(frames)]
    right_columns = _right_columns(right, spec, [pair[RIGHT] for pair in _equal(spec, band)])
    output = _output(left, right, spec, right_columns, suffix)
    plan = PairPlan(
        inputs=SIDES,
        schemas=(schemas[LEFT].serialize().to_pybytes(), schemas[RIGHT].serialize().to_pybytes()),
        keys=(equal[LEFT], equal[RIGHT]),
        key_types=pa.schema(shared).serialize().to_pybytes(),
        banded=None
        if band is None
        else tuple(  # type: ignore[arg-type]
            df.columns.index(names[-1]) for df, names in zip(frames, named, strict=True)
        ),
        band=bucketed,
        right_columns=tuple(right.columns.index(column) for column in right_columns),
        names=names_of_shards(left.sparkSession, shard_count(left.sparkSession, shards)),
        memory=task_memory(left.sparkSession, memory),
        sent=types.sent_schema(output).serialize().to_pybytes(),
    )
    return plan, output


def _equal(spec: JoinSpec, band: Any) -> list[tuple[str, str]]:
    """Return the pairs of columns that must be equal."""
    pairs = list(zip(spec.stream_key, spec.master_key, strict=True))
    return pairs if band is None else pairs[:-1]


def _shared(ours: str, theirs: str, schemas: list[pa.Schema], *, banded: bool) -> pa.Field:
    """Return a field with the type in which two columns are compared; raise an error if there is none."""
    one, other = schemas[LEFT].field(ours).type, schemas[RIGHT].field(theirs).type
    shared = common_type(one, other, banded=banded)
    if shared is not None:
        return pa.field(ours, shared)
    raise SchemaError(
        f"on: the left's {ours!r} is {one}, but the right's {theirs!r} is {other}; cast one of them to the other's type"
    )


def _right_columns(right: DataFrame, spec: JoinSpec, equal: list[str]) -> list[str]:
    """Return the names of the right's columns that are in the output."""
    if spec.columns is None:
        return [column for column in right.columns if column not in equal]
    missing = [column for column in spec.columns if column not in right.columns]
    if missing:
        listed = ", ".join(right.columns)
        raise SchemaError(f"columns: the right has no {', '.join(map(repr, missing))}; it has {listed}")
    if len(set(spec.columns)) != len(spec.columns):
        raise SchemaError(f"columns: a column is named twice in {list(spec.columns)}")
    return list(spec.columns)


def _output(
    left: DataFrame, right: DataFrame, spec: JoinSpec, right_columns: list[str], suffix: str | None
) -> StructType:
    """Return the output's fields: the left's, then ``right_columns``, with the suffix if the left has the name too."""
    folded = name_folding(left.sparkSession)
    taken = {folded(name) for name in left.columns}
    fields = [output_field(field, field.name, spec.stream_key) for field in left.schema]
    for column in right_columns:
        name = column + suffix if folded(column) in taken and suffix is not None else column
        if folded(name) in taken:
            advice = "choose another suffix" if suffix else "give it another name with suffix='_right'"
            raise SchemaError(
                f"output: both the left and the right have a column {name!r}; choose columns of the right with "
                f"columns=[…] or {advice}"
            )
        taken.add(folded(name))
        fields.append(output_field(right.schema[column], name, spec.master_key))
    return StructType(fields)
