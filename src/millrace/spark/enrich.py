"""``enrich``: the join of a DataFrame with a master store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from millrace.core.errors import ConfigError
from millrace.core.spec import On
from millrace.master.store import MasterStore
from millrace.semistream.arguments import AUTO
from millrace.semistream.conditions.condition import Condition
from millrace.spark.enrichment.auto_algorithm import choose_algorithm
from millrace.spark.enrichment.carry_query import carry
from millrace.spark.enrichment.drain_query import drain_batch, drain_stream
from millrace.spark.enrichment.enrich_arguments import enrich_plan, open_store, with_condition
from millrace.spark.metrics.metric_fields import PREFIX
from millrace.spark.metrics.observe import is_observed


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
        The key column, if it has the same name on both sides; a list of key columns; or a mapping from the DataFrame's
        names to the master's.
    how
        ``"inner"``, ``"left"``, ``"semi"`` or ``"anti"``, or Spark's names for them.
    algorithm
        A name from ``millrace.ALGORITHMS``, or ``"auto"``, which chooses ``"lookup"`` if the store has an index and
        ``pending`` is ``"drain"``, else ``"ssbj"``. :func:`explain` says which algorithm is used, and why.
    memory
        The budget of one executor, shared by its tasks: a number of bytes, or text such as ``"256MB"`` or ``"1%"``
        (of the master).
    pending
        ``"drain"``: every row is joined within its micro-batch, without state. It works with every trigger and with
        batch DataFrames. ``"carry"``: rows that the cache can answer are output in their own micro-batch; the others
        may wait for later micro-batches, at most for one turn of the wheel (one scan of the whole master). It works
        only with streams and with algorithms that scan the master.
    columns
        Master columns to output; by default all but the key.
    suffix
        Appended to names of master columns that the DataFrame has too; without a suffix, such names raise an error.
    where
        A condition that matching pairs must meet besides equal keys, such as :func:`millrace.band`; only with
        ``"drain"``.
    turns
        With ``"carry"``: the number of micro-batches in which the whole master is scanned once. The more there are,
        the less each of them scans, and the more rows wait and are written to the state.
    name
        The name of the metrics in ``StreamingQueryProgress.observedMetrics``; by default ``"millrace "`` followed
        by the name of the store's directory. Two joins with the same store in one query need two names.
    scratch
        The directory in which workers keep their caches and, with ``"carry"``, copies of rows that wait; by
        default Spark's local directory on the executor, which is removed when the executor ends.
    **options
        Options of the algorithm, or ``b`` (the number of master rows of a load or page). With ``"auto"``, only options
        that all algorithms have.

    Returns
    -------
    DataFrame
        The DataFrame's columns, then the master's. The session's settings, views and cache are not changed.
    """
    store = open_store(df, master, pending)
    options = with_condition(options, where, pending)
    chosen = choose_algorithm(algorithm, store, pending, options).algorithm
    plan, output = enrich_plan(df, store, on, how, chosen, memory, columns, suffix, scratch, options)
    label = name or f"{PREFIX} {Path(plan.path).name}"
    if is_observed(df, label):
        raise ConfigError(f"name: the DataFrame already has metrics named {label!r}; pass another name=… for this join")
    if pending == "carry":
        return carry(df, plan, output, turns, label)
    if df.isStreaming:
        return drain_stream(df, plan, output, label)
    return drain_batch(df, plan, output, label)
