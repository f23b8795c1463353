"""``join_streams``: two streams, or more, joined exactly as they come, for as long as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from millrace.core.errors import ConfigError, SchemaError
from millrace.core.spec import JoinSpec, On
from millrace.rows.key_codes import KeyCoder
from millrace.spark import arrow_types as types
from millrace.spark import task_metrics as metrics
from millrace.spark.plans.band_buckets import Band
from millrace.spark.plans.pair_plan import LEFT, RIGHT, MeetingPlan
from millrace.spark.streams import stream_inputs as inputs
from millrace.spark.streams.hypercube_planning import join_several
from millrace.spark.tasks import stateful_join as meeting
from millrace.spark.tasks.stateful_join import SIDES
from millrace.spark.transport.output_files import WayOut


def join_streams(
    left: DataFrame | Sequence[DataFrame] | Mapping[str, DataFrame],
    right: DataFrame | None = None,
    on: On | Sequence[Any] = (),
    band: tuple[Any, Any] | None = None,
    how: str = "inner",
    *,
    shards: int | None = None,
    memory: str | int = "256MB",
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    sizes: Mapping[str, float] | None = None,
    name: str | None = None,
) -> DataFrame:
    """Join streams with each other, exactly and without a watermark.

    After every micro-batch the output is the join of all that has come so far: a pair comes out, once, in the
    micro-batch of the later of the two. Rows are kept in the state store for ever, not in memory.

    Parameters
    ----------
    left, right
        Two streaming DataFrames, or two batch ones. Or only ``left``: a list of them, joined one after the other, or a
        mapping from names to them, joined all at once.
    on
        Column that is equal on both sides; several; or a mapping from the left's names to the right's. For a list of
        DataFrames: one such argument for each join, or one name for all. For a mapping: conditions
        ``("input.column", "input.column")`` that make a tree of the inputs. Nulls match nothing.
    band
        ``(low, high)``: the last column of ``on`` need not be equal; instead, the right's value less the left's is
        between ``low`` and ``high``, both included. Numbers for numbers, ``timedelta`` for dates and timestamps.
    how
        ``"inner"``. That a row has no partner is never certain while its partner may still come.
    shards
        Parts in which the rows are kept and joined; by default ``spark.sql.shuffle.partitions``.
    memory
        The budget of one executor, shared by its tasks. The rows of one micro-batch come on top.
    columns
        Columns of the right that come out; all but those that are equal by default.
    suffix
        Appended to the right's columns whose name the left has too; without it that is an error. For a mapping:
        appended instead of putting ``input_`` in front.
    sizes
        For a mapping: rows to expect of each input, in proportion, the same of all by default. Few copies are made of
        large ones.
    name
        What the metrics are called in ``StreamingQueryProgress.observedMetrics``; by default ``"millrace streams"``.

    Returns
    -------
    DataFrame
        The left's columns, then the right's; those of a mapping in the order in which its conditions name the inputs.
        For output mode ``append``; every trigger will do.
    """
    if how != "inner":
        raise ConfigError(
            f"how: join_streams makes inner joins; got {how!r}. Whether a row has no partner is known only when no "
            "more rows can come, and what was given out cannot be taken back"
        )
    if isinstance(left, Mapping):
        if right is not None or band is not None or columns is not None:
            raise ConfigError(
                "join_streams: several inputs with names are joined by equal columns, and all of theirs come out; got "
                "right, band or columns beside them. Give conditions as on=[…], and select columns before or behind"
            )
        return join_several(left, on, sizes, shards=shards, memory=memory, suffix=suffix, name=name)
    if sizes is not None:
        raise ConfigError("sizes: for inputs with names, of which some are copied; got it without")
    if not isinstance(left, DataFrame):
        return _one_after_the_other(
            left, right, on, band, shards=shards, memory=memory, columns=columns, suffix=suffix, name=name
        )
    frames: dict[str, Any] = {"left": left, "right": right}
    inputs.check(frames)
    assert right is not None
    plan, output = planned(left, right, on, band, shards, memory, columns, suffix)
    way = WayOut(output)
    return inputs.met(frames, plan, meeting.Meeting(plan, way), way, name)


def _one_after_the_other(frames: Any, right: Any, on: Any, band: Any, *, name: str | None, **options: Any) -> DataFrame:
    """The first with the second, the result with the third, and so on."""
    if not isinstance(frames, Sequence) or len(frames) < 2 or not all(isinstance(df, DataFrame) for df in frames):
        raise SchemaError(f"join_streams: expected DataFrames, or a list of two or more; got {frames!r}")
    if right is not None:
        raise ConfigError("right: a list of DataFrames has all inputs; leave right out and give the keys as on=…")
    if band is not None:
        raise ConfigError("band: for two inputs; join them first, and the result with the next")
    if isinstance(on, str):
        on = [on] * (len(frames) - 1)
    if not isinstance(on, Sequence) or len(on) != len(frames) - 1:
        raise ConfigError(
            f"on: expected one name, or {len(frames) - 1} for {len(frames)} inputs, a join each; got {on!r}"
        )
    joined: DataFrame = frames[0]
    for number, (df, keys) in enumerate(zip(frames[1:], on, strict=True), 1):
        label = f"{name or f'{metrics.PREFIX} streams'} {number}"
        joined = join_streams(joined, df, keys, None, name=label, **options)
    return joined


def planned(
    left: DataFrame,
    right: DataFrame,
    on: On,
    band: tuple[Any, Any] | None,
    shards: int | None,
    memory: str | int,
    columns: Sequence[str] | None,
    suffix: str | None,
) -> tuple[MeetingPlan, StructType]:
    """Check everything that can be checked before the query runs; the plan and the output's fields."""
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
        KeyCoder([field.type for field in shared], [field.name for field in shared])
    made = None
    if band is not None:
        made = Band.of(band, _shared(spec.stream_key[-1], spec.master_key[-1], schemas, banded=True).type)
    equal = [tuple(df.columns.index(pair[side]) for pair in _equal(spec, band)) for side, df in enumerate(frames)]
    wanted = _wanted(right, spec, [pair[RIGHT] for pair in _equal(spec, band)])
    output = _output(left, right, spec, wanted, suffix)
    plan = MeetingPlan(
        schemas=(schemas[LEFT].serialize().to_pybytes(), schemas[RIGHT].serialize().to_pybytes()),
        keys=(equal[LEFT], equal[RIGHT]),
        key_types=pa.schema(shared).serialize().to_pybytes(),
        banded=None
        if band is None
        else tuple(  # type: ignore[arg-type]
            df.columns.index(names[-1]) for df, names in zip(frames, named, strict=True)
        ),
        band=made,
        right_columns=tuple(right.columns.index(column) for column in wanted),
        names=inputs.shard_names(left.sparkSession, inputs.shard_count(left.sparkSession, shards)),
        memory=inputs.share_of_memory(left.sparkSession, memory),
        sent=types.sent_schema(output).serialize().to_pybytes(),
    )
    return plan, output


def _equal(spec: JoinSpec, band: Any) -> list[tuple[str, str]]:
    """The pairs of columns that have to be equal."""
    pairs = list(zip(spec.stream_key, spec.master_key, strict=True))
    return pairs if band is None else pairs[:-1]


def _shared(ours: str, theirs: str, schemas: list[pa.Schema], *, banded: bool) -> pa.Field:
    """What two columns are compared as."""
    one, other = schemas[LEFT].field(ours).type, schemas[RIGHT].field(theirs).type
    shared = inputs.common_type(one, other, banded=banded)
    if shared is not None:
        return pa.field(ours, shared)
    raise SchemaError(
        f"on: the left's {ours!r} is {one}, but the right's {theirs!r} is {other}; cast one of them to the other's type"
    )


def _wanted(right: DataFrame, spec: JoinSpec, equal: list[str]) -> list[str]:
    """The right's columns that come out."""
    if spec.columns is None:
        return [column for column in right.columns if column not in equal]
    missing = [column for column in spec.columns if column not in right.columns]
    if missing:
        listed = ", ".join(right.columns)
        raise SchemaError(f"columns: the right has no {', '.join(map(repr, missing))}; it has {listed}")
    if len(set(spec.columns)) != len(spec.columns):
        raise SchemaError(f"columns: a column is named twice in {list(spec.columns)}")
    return list(spec.columns)


def _output(left: DataFrame, right: DataFrame, spec: JoinSpec, wanted: list[str], suffix: str | None) -> StructType:
    """The output's fields. A row that matches has its key."""

    seen = inputs.as_compared(left.sparkSession)
    taken = {seen(name) for name in left.columns}
    fields = [inputs.output_field(field, field.name, spec.stream_key) for field in left.schema]
    for column in wanted:
        name = column + suffix if seen(column) in taken and suffix is not None else column
        if seen(name) in taken:
            advice = "choose another suffix" if suffix else "tell them apart with suffix='_right'"
            raise SchemaError(
                f"output: both the left and the right have a column {name!r}; choose columns of the right with "
                f"columns=[…] or {advice}"
            )
        taken.add(seen(name))
        fields.append(inputs.output_field(right.schema[column], name, spec.master_key))
    return StructType(fields)
