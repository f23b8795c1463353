"""``join_streams``: an exact join of two or more endless streams with each other."""

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

    After every micro-batch, all output so far is the join of all input so far: each pair of matching rows is output
    once, in the micro-batch of its later row. Rows are kept in the state store forever, not in memory.

    Parameters
    ----------
    left, right
        Two streaming DataFrames, or two batch DataFrames. Or only ``left``: a list of DataFrames, joined one after the
        other, or a mapping from names to DataFrames, joined all at once.
    on
        For two DataFrames: the column that must be equal, if it has the same name in both; a list of such columns; or
        a mapping from the left's names to the right's. For a list of DataFrames: one column name for all joins, or a
        list with one of the three forms above for each join. For a mapping of DataFrames: a list of conditions
        ``("input.column", "input.column")`` that connect the inputs as a tree. Nulls match nothing.
    band
        ``(low, high)``: the last column of ``on`` need not be equal; instead, the right's value minus the left's must
        be at least ``low`` and at most ``high``. These limits are numbers, or ``timedelta`` for dates and timestamps.
    how
        Only ``"inner"``: while more rows may come, it is never certain that a row has no partner.
    shards
        Number of parts in which the rows are kept and joined; by default the value of
        ``spark.sql.shuffle.partitions``.
    memory
        The budget of one executor, shared by its tasks: a number of bytes, or text such as ``"256MB"``. The rows of one
        micro-batch need memory in addition.
    columns
        Columns of the right DataFrame to output; by default all but those that must be equal.
    suffix
        Appended to names of the right's columns that the left has too; without a suffix, such names raise an error.
        For a mapping: appended to repeated names, which are otherwise prefixed with the input's name and ``_``.
    sizes
        For a mapping: the number of rows to expect from each input, or anything proportional to it; by default the same
        for all. Rows of large inputs are copied to fewer shards.
    name
        The name of the metrics in ``StreamingQueryProgress.observedMetrics``; by default ``"millrace streams"``.

    Returns
    -------
    DataFrame
        The left's columns, then the right's; for a mapping, the columns of the inputs in the order in which the
        conditions name them. Write it in output mode ``append``, with any trigger.
    """
    if how != "inner":
        raise ConfigError(
            f"how: expected 'inner'; got {how!r}. Other joins depend on which rows have no partner, but a partner may "
            "still come, and output cannot be taken back"
        )
    if isinstance(left, Mapping):
        if right is not None or band is not None or columns is not None:
            raise ConfigError(
                "join_streams: right, band and columns cannot be used with named inputs, which are joined on equal "
                "columns and output all their columns. Give conditions as on=[…], and select columns before or after "
                "the join"
            )
        return join_hypercube(left, on, sizes, shards=shards, memory=memory, suffix=suffix, name=name)
    if sizes is not None:
        raise ConfigError(
            f"sizes: expected only with named inputs, which are a mapping from names to DataFrames; got {sizes!r}"
        )
    if not isinstance(left, DataFrame):
        return _one_after_the_other(
            left, right, on, band, shards=shards, memory=memory, columns=columns, suffix=suffix, name=name
        )
    return join_pair(left, right, on, band, shards=shards, memory=memory, columns=columns, suffix=suffix, name=name)


def _one_after_the_other(frames: Any, right: Any, on: Any, band: Any, *, name: str | None, **options: Any) -> DataFrame:
    """Join the first DataFrame with the second, the result with the third, and so on."""
    if not isinstance(frames, Sequence) or len(frames) < 2 or not all(isinstance(df, DataFrame) for df in frames):
        got = type(frames).__name__
        raise SchemaError(f"left: expected a DataFrame, a list of two or more, or a mapping; got {got}")
    if right is not None:
        raise ConfigError(
            "right: expected None, because the list of DataFrames contains all inputs (keys are given as on=…); "
            f"got {type(right).__name__}"
        )
    if band is not None:
        raise ConfigError(
            f"band: expected only with two inputs; got {band!r} for {len(frames)}. Join two of them with the band "
            "first, then join the result with the others"
        )
    if isinstance(on, str):
        on = [on] * (len(frames) - 1)
    if not isinstance(on, Sequence) or len(on) != len(frames) - 1:
        raise ConfigError(
            f"on: expected one column name, or a list of {len(frames) - 1}, one for each join of the {len(frames)} "
            f"inputs; got {on!r}"
        )
    joined: DataFrame = frames[0]
    for number, (df, keys) in enumerate(zip(frames[1:], on, strict=True), 1):
        label = f"{name or f'{PREFIX} streams'} {number}"
        joined = join_streams(joined, df, keys, None, name=label, **options)
    return joined
