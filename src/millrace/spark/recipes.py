"""The three transformations MESHJOIN was made for, as small functions on top of ``enrich``.

A warehouse gets a stream of changes and has to give every source key its own key, to recognise what it has already, and
to pick out what it does not have yet. The last two work on streams and on batches; handing out keys writes to the key
map and is done batch by batch, inside ``foreachBatch``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.core.errors import ConfigError, SchemaError
from millrace.core.spec import JoinSpec, On
from millrace.master.manifest import is_store
from millrace.master.store import MasterStore
from millrace.spark import arrow_types as types
from millrace.spark.enrich import enrich
from millrace.spark.metrics.metric_fields import PREFIX
from millrace.spark.transport.routing import quoted

_NUMBER = "__millrace_number"


# surrogate keys


def assign_keys(
    batch: DataFrame, key_map: str | os.PathLike[str], on: On, surrogate: str = "sk", **options: Any
) -> DataFrame:
    """The batch with a column of surrogate keys, in which keys that were never seen get the next numbers.

    Parameters
    ----------
    batch
        A batch DataFrame; inside ``foreachBatch`` the one Spark gives.
    key_map
        The store of source keys and their surrogate keys, which is made if it is not there.
    on
        Key column of both sides; several; or a mapping from the DataFrame's names to the map's.
    surrogate
        The column of the map that holds the surrogate key, and of the result.
    **options
        Options of :func:`enrich`, such as ``memory``.

    Notes
    -----
    The numbers are in the map, on disk, before the batch is given out. A batch that is run again after a crash finds
    its keys there and comes out the same. New keys are numbered in the order of the keys, so the numbers depend on the
    batches and not on how Spark cut them into tasks. A row whose key is null gets no number.

    The result is joined with the map as it is now: use it before the next batch changes the map. The batch is read
    twice; persist it if it is dear to compute, and if it may come out differently the second time.
    """
    return enrich(batch, merge_keys(batch, key_map, on, surrogate, **options), on, "left", **options)


def merge_keys(
    batch: DataFrame, key_map: str | os.PathLike[str], on: On, surrogate: str = "sk", **options: Any
) -> MasterStore:
    """Give the keys of a batch that are not in the key map the next numbers, and return the map with them.

    Parameters are those of :func:`assign_keys`. The first number is 1. If there is no new key the map is left alone;
    else it is written again, by the driver, which takes about a second for every ten million keys. Nobody sees it half
    written, and of two who write to one map at the same time the second waits.
    """
    if batch.isStreaming:
        raise ConfigError(
            "batch: surrogate keys are handed out batch by batch; got a streaming DataFrame. Call this inside "
            "stream.writeStream.foreachBatch(…), with the batch Spark gives"
        )
    spec = JoinSpec.of(on)
    if surrogate in spec.master_key or surrogate in batch.columns:
        owner = "map's key" if surrogate in spec.master_key else "batch"
        raise SchemaError(f"surrogate: expected a name of its own; the {owner} has a column {surrogate!r} already")
    path = Path(os.path.realpath(key_map))
    some = batch.select(*_columns(batch, spec.stream_key, "on")).dropna().distinct()
    with _writing(path):
        if is_store(path):
            store = _checked(MasterStore.open(path), spec, surrogate)
            unseen = _arrow(enrich(some, store, on, "anti", **options), spec, store.schema)
            if not len(unseen):
                return store
            last = max(0, pc.max(store.to_table()[surrogate]).as_py() or 0)
            rows = chain(store.to_table().to_batches(), _numbered(unseen, last, store.schema).to_batches())
            return MasterStore.build(
                rows, path, store.key, shards=store.shards, page_rows=store.manifest.page_rows, overwrite=True
            )
        key_types = types.arrow_schema(some.schema, "batch").types
        schema = pa.schema([*zip(spec.master_key, key_types, strict=True), (surrogate, pa.int64())])
        return MasterStore.build(_numbered(_arrow(some, spec, schema), 0, schema), path, spec.master_key)


def _arrow(keys: DataFrame, spec: JoinSpec, schema: pa.Schema) -> pa.Table:
    """The keys, in the driver, under the names and in the order and types the map has for them."""
    key_schema = pa.schema(list(schema)[:-1])
    return keys.toArrow().rename_columns(list(spec.master_key)).select(key_schema.names).cast(key_schema)


def _numbered(keys: pa.Table, last: int, schema: pa.Schema) -> pa.Table:
    """The keys in their order, with the numbers after ``last``."""
    ordered = keys.sort_by([(name, "ascending") for name in keys.column_names])
    numbers = pa.array(np.arange(last + 1, last + 1 + len(keys)))
    return ordered.append_column(schema.names[-1], numbers).cast(schema)


def _checked(store: MasterStore, spec: JoinSpec, surrogate: str) -> MasterStore:
    """The store, if it is a key map: one number per key and nothing else."""
    if sorted(store.key) != sorted(spec.master_key) or store.schema.names != [*store.key, surrogate]:
        raise SchemaError(
            f"{store.path}: expected a key map with the key {', '.join(spec.master_key)} and the column {surrogate}; "
            f"got a store with the key {', '.join(store.key)} and the columns {', '.join(store.schema.names)}"
        )
    numbers = store.schema.field(surrogate).type
    if not pa.types.is_integer(numbers):
        raise SchemaError(f"{store.path}: expected whole numbers in {surrogate!r}; got {numbers}")
    if not store.unique and len(store.to_table().group_by(list(store.key)).aggregate([])) < store.rows:
        raise SchemaError(f"{store.path}: expected a key map with one row per key; some keys have several")
    return store


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Keep others from writing to the map between our look at its last number and our writing of the next."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.writing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# what is there, and what is not


def find_duplicates(
    df: DataFrame,
    master: str | os.PathLike[str] | MasterStore,
    on: On,
    *,
    first_by: str | Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """The rows whose key the master has already and, with ``first_by``, those a row of the same batch has come before.

    Parameters
    ----------
    df
        A streaming or batch DataFrame.
    master
        The store of what is there.
    on
        Key column of both sides; several; or a mapping from the DataFrame's names to the master's.
    first_by
        For batches: the column, or columns, by which one row comes before another with the same key. They must tell the
        rows of a key apart, or it is left to chance which of them is the first. A stream has no end at which this could
        be decided: look at its batches inside ``foreachBatch``.
    **options
        Options of :func:`enrich`, such as ``memory``.

    Notes
    -----
    Every row is either in the result of this function or in that of :func:`find_new`, if both are asked with the same
    arguments. A key that is null is equal to none, so such rows are new.
    """
    named = {"name": _name("duplicates", master), **options}
    if first_by is None:
        return enrich(df, master, on, "semi", **named)
    ranked = _ranked(df, on, first_by)
    known = enrich(_with_rank(ranked, F.col(_NUMBER) == 1), master, on, "semi", **named)
    return known.unionAll(_with_rank(ranked, F.col(_NUMBER) > 1))


def find_new(
    df: DataFrame,
    master: str | os.PathLike[str] | MasterStore,
    on: On,
    *,
    first_by: str | Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """The rows whose key the master does not have; with ``first_by``, of every such key only the first row.

    Parameters are those of :func:`find_duplicates`, which gives the other rows.
    """
    named = {"name": _name("new", master), **options}
    if first_by is not None:
        df = _with_rank(_ranked(df, on, first_by), F.col(_NUMBER) == 1)
    return enrich(df, master, on, "anti", **named)


def _ranked(df: DataFrame, on: On, first_by: str | Sequence[str]) -> DataFrame:
    """The rows numbered among those of the same key; a row without a key is its own first."""
    if df.isStreaming:
        raise ConfigError(
            "first_by: which row of a key comes first can be said of a batch; got a streaming DataFrame. Call this "
            "inside stream.writeStream.foreachBatch(…), or let Spark's dropDuplicatesWithinWatermark drop what repeats"
        )
    keys = _columns(df, JoinSpec.of(on).stream_key, "on")
    order = _columns(df, [first_by] if isinstance(first_by, str) else first_by, "first_by")
    ranks = F.row_number().over(Window.partitionBy(*keys).orderBy(*order))
    no_key = reduce(Column.__or__, (key.isNull() for key in keys))
    return df.withColumn(_NUMBER, F.when(no_key, F.lit(1)).otherwise(ranks))


def _with_rank(ranked: DataFrame, wanted: Column) -> DataFrame:
    return ranked.where(wanted).drop(_NUMBER)


def _columns(df: DataFrame, names: Sequence[str], option: str) -> list[Column]:
    missing = [name for name in names if name not in df.columns]
    if missing or not names:
        got = repr(missing[0]) if missing else "none"
        raise SchemaError(f"{option}: expected columns of the DataFrame, which has {', '.join(df.columns)}; got {got}")
    return [F.col(quoted(name)) for name in names]


def _name(what: str, master: str | os.PathLike[str] | MasterStore) -> str:
    """What the metrics of a search are called, so that both may be made in one query."""
    path = master.path if isinstance(master, MasterStore) else Path(master)
    return f"{PREFIX} {what} {path.name}"
