"""``join_streams``: two streams, or more, joined exactly as they come, for as long as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from millrace.core.errors import ConfigError, SchemaError
from millrace.core.spec import On
from millrace.spark.metrics.metric_fields import PREFIX
from millrace.spark.streams.named_inputs import join_hypercube
from millrace.spark.streams.two_inputs import join_pair


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

    After every micro-batch the output is the join of all rows that have come so far: a pair comes out once, in the
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
        ``"inner"``. Whether a row has no partner is never certain while its partner may still come.
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
        The name of the metrics in ``StreamingQueryProgress.observedMetrics``; by default ``"millrace streams"``.

    Returns
    -------
    DataFrame
        The left's columns, then the right's; those of a mapping in the order in which its conditions name the inputs.
        For output mode ``append``; every trigger will do.
    """
    if how != "inner":
        raise ConfigError(
            f"how: join_streams makes inner joins; got {how!r}. Whether a row has no partner is known only when no "
            "more rows can come, and output cannot be taken back"
        )
    if isinstance(left, Mapping):
        if right is not None or band is not None or columns is not None:
            raise ConfigError(
                "join_streams: several inputs with names are joined by equal columns, and all of theirs come out; got "
                "right, band or columns beside them. Give conditions as on=[…], and select columns before or behind"
            )
        return join_hypercube(left, on, sizes, shards=shards, memory=memory, suffix=suffix, name=name)
    if sizes is not None:
        raise ConfigError("sizes: for inputs with names, of which some are copied; got it without")
    if not isinstance(left, DataFrame):
        return _one_after_the_other(
            left, right, on, band, shards=shards, memory=memory, columns=columns, suffix=suffix, name=name
        )
    return join_pair(left, right, on, band, shards=shards, memory=memory, columns=columns, suffix=suffix, name=name)


def _one_after_the_other(frames: Any, right: Any, on: Any, band: Any, *, name: str | None, **options: Any) -> DataFrame:
    """Join the first with the second, the result with the third, and so on."""
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
        label = f"{name or f'{PREFIX} streams'} {number}"
        joined = join_streams(joined, df, keys, None, name=label, **options)
    return joined
