"""``join_streams``: two streams, or more, joined exactly as they come, for as long as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError
from millrace.core.sizes import format_size, parse_size
from millrace.core.spec import JoinSpec, On
from millrace.rows.keys import KeyCoder
from millrace.spark import leaving, meeting, metrics, types
from millrace.spark.bands import Band
from millrace.spark.carry import spread
from millrace.spark.meeting_plan import BUCKET, CODE, LEFT, RIGHT, MeetingPlan
from millrace.spark.routing import SHARD
from millrace.spark.session import PARTITIONS, ROCKSDB, STATE_STORE, slots_per_executor
from millrace.spark.shipping import shipped

SIDES = ("left", "right")
_RESERVED = (SHARD, BUCKET, CODE, metrics.COLUMN)
_LEAST = 1 << 20


def join_streams(
    left: DataFrame | Sequence[DataFrame],
    right: DataFrame | None = None,
    on: On | Sequence[On] = (),
    band: tuple[Any, Any] | None = None,
    how: str = "inner",
    *,
    shards: int | None = None,
    memory: str | int = "256MB",
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    name: str | None = None,
) -> DataFrame:
    """Join streams with each other, exactly and without a watermark.

    After every micro-batch the output is the join of all that has come so far: a pair comes out, once, in the
    micro-batch of the later of the two. Rows are kept in the state store for ever, not in memory.

    Parameters
    ----------
    left, right
        Two streaming DataFrames, or two batch ones. Or only ``left``, a list of them, joined one after the other.
    on
        Column that is equal on both sides; several; or a mapping from the left's names to the right's. For a list of
        DataFrames: one such argument for each join, or one name for all. Nulls match nothing.
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
        Appended to the right's columns whose name the left has too; without it that is an error.
    name
        What the metrics are called in ``StreamingQueryProgress.observedMetrics``; by default ``"millrace streams"``.

    Returns
    -------
    DataFrame
        The left's columns, then the right's. For output mode ``append``; every trigger will do.
    """
    if not isinstance(left, DataFrame):
        return _one_after_the_other(
            left, right, on, band, how, shards=shards, memory=memory, columns=columns, suffix=suffix, name=name
        )
    if how != "inner":
        raise ConfigError(
            f"how: join_streams makes inner joins; got {how!r}. Whether a row has no partner is known only when no "
            "more rows can come, and what was given out cannot be taken back"
        )
    _check_inputs(left, right)
    assert right is not None
    label = name or f"{metrics.PREFIX} streams"
    if any(metrics.has(side, label) for side in (left, right)):
        raise ConfigError(f"name: the DataFrame has metrics called {label!r} already; give this join another name=")
    plan, output = planned(left, right, on, band, shards, memory, columns, suffix)  # type: ignore[arg-type]
    packed = [
        side.mapInArrow(shipped("millrace.spark.meeting", "pack", plan, place), meeting.PACKED)
        for place, side in enumerate((left, right))
    ]
    way = leaving.way_out(output)
    met = (
        packed[LEFT]
        .union(packed[RIGHT])
        .groupBy(SHARD)
        .transformWithStateInPandas(meeting.Meeting(plan, way), way.schema, "Append", "None")
    )
    return way.rows(meeting.observed(met, label))


def _one_after_the_other(
    inputs: Any, right: Any, on: Any, band: Any, how: str, *, name: str | None, **options: Any
) -> DataFrame:
    """The first with the second, the result with the third, and so on."""
    if not isinstance(inputs, Sequence) or len(inputs) < 2 or not all(isinstance(df, DataFrame) for df in inputs):
        raise SchemaError(f"join_streams: expected DataFrames, or a list of two or more; got {inputs!r}")
    if right is not None:
        raise ConfigError("right: a list of DataFrames has all inputs; leave right out and give the keys as on=…")
    if band is not None:
        raise ConfigError("band: for two inputs; join them first, and the result with the next")
    if isinstance(on, str):
        on = [on] * (len(inputs) - 1)
    if not isinstance(on, Sequence) or len(on) != len(inputs) - 1:
        raise ConfigError(
            f"on: expected one name, or {len(inputs) - 1} for {len(inputs)} inputs, a join each; got {on!r}"
        )
    joined: DataFrame = inputs[0]
    for number, (df, keys) in enumerate(zip(inputs[1:], on, strict=True), 1):
        label = f"{name or f'{metrics.PREFIX} streams'} {number}"
        joined = join_streams(joined, df, keys, None, how, name=label, **options)
    return joined


def _check_inputs(left: DataFrame, right: Any) -> None:
    """Both are DataFrames of one kind, with columns whose names can be used."""
    if not isinstance(right, DataFrame):
        raise SchemaError(f"right: expected a DataFrame; got {type(right).__name__}")
    if left.isStreaming != right.isStreaming:
        batch = SIDES[left.isStreaming]
        raise ConfigError(
            f"{batch}: is a batch DataFrame, and the other side is a stream. Make a store of it with build_master, and "
            "let enrich join the stream with it"
        )
    provider = left.sparkSession.conf.get(STATE_STORE, "")
    if provider != ROCKSDB:
        raise ConfigError(f"join_streams keeps its state in RocksDB: set {STATE_STORE} to {ROCKSDB}")
    for side, df in zip(SIDES, (left, right), strict=True):
        reserved = [name for name in df.columns if name.lower() in _RESERVED]
        if reserved:
            raise SchemaError(f"{side}: the column name {reserved[0]!r} is reserved")
        repeated = sorted({name for name in df.columns if df.columns.count(name) > 1})
        if repeated:
            raise SchemaError(f"{side}: columns appear more than once: {', '.join(repeated)}")


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
    settings = left.sparkSession.conf
    partitions = int(settings.get(PARTITIONS, "200") or 200)
    parts = partitions if shards is None else shards
    if not isinstance(parts, int) or isinstance(parts, bool) or parts < 1:
        raise ConfigError(f"shards: expected a whole number of at least 1; got {shards!r}")
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
        names=tuple(spread(parts, partitions)),
        memory=_share(memory, slots_per_executor(left.sparkSession)),
        sent=types.sent_schema(output).serialize().to_pybytes(),
    )
    return plan, output


def _equal(spec: JoinSpec, band: Any) -> list[tuple[str, str]]:
    """The pairs of columns that have to be equal."""
    pairs = list(zip(spec.stream_key, spec.master_key, strict=True))
    return pairs if band is None else pairs[:-1]


def _share(memory: str | int, tasks: int) -> int:
    """What one task may use."""
    total = parse_size(memory)
    if total // tasks < _LEAST:
        raise BudgetTooSmallError(
            f"memory: {format_size(total)} is too little: {tasks} tasks share it, and each needs {_LEAST} bytes; "
            f"the least is {_LEAST * tasks} bytes ({format_size(_LEAST * tasks)})",
            _LEAST * tasks,
        )
    return total // tasks


def _shared(ours: str, theirs: str, schemas: list[pa.Schema], *, banded: bool) -> pa.Field:
    """The type in which two columns are compared: the same, or the wider of two integers."""
    one, other = schemas[LEFT].field(ours).type, schemas[RIGHT].field(theirs).type
    if one == other:
        return pa.field(ours, one)
    both = (pa.types.is_signed_integer, *([pa.types.is_floating] if banded else []))
    if any(kind(one) and kind(other) for kind in both):
        return pa.field(ours, max(one, other, key=lambda type_: int(type_.bit_width)))
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

    def plain(field: StructField, name: str, keys: tuple[str, ...]) -> StructField:
        certain = types.is_simple(field.dataType) and (not field.nullable or field.name in keys)
        return StructField(name, field.dataType, not certain)

    sensitive = (left.sparkSession.conf.get("spark.sql.caseSensitive", "false") or "false").lower() == "true"
    seen = (lambda name: name) if sensitive else str.lower
    taken = {seen(name) for name in left.columns}
    fields = [plain(field, field.name, spec.stream_key) for field in left.schema]
    for column in wanted:
        name = column + suffix if seen(column) in taken and suffix is not None else column
        if seen(name) in taken:
            advice = "choose another suffix" if suffix else "tell them apart with suffix='_right'"
            raise SchemaError(
                f"output: both the left and the right have a column {name!r}; choose columns of the right with "
                f"columns=[…] or {advice}"
            )
        taken.add(seen(name))
        fields.append(plain(right.schema[column], name, spec.master_key))
    return StructType(fields)
