"""The three transformations that the MESHJOIN algorithm was made for, as small functions on top of ``enrich``.

A warehouse gets a stream of changes and must assign a surrogate key to every source key, find the rows that it has
already, and find those that are new. The last two work on streams and on batches; assigning keys writes to the key map
and is done batch by batch, inside ``foreachBatch``.
"""

from __future__ import annotations

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
from millrace.core.files.locks import locked
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
    """Return the batch with a column of surrogate keys; keys that are not in the map get the next numbers.

    Parameters
    ----------
    batch
        A batch DataFrame; inside ``foreachBatch``, the one that Spark passes.
    key_map
        The store of source keys and their surrogate keys, which is created if it does not exist.
    on
        The key column, if it has the same name on both sides; a list of key columns; or a mapping from the DataFrame's
        names to the map's.
    surrogate
        The name of the column with the surrogate key, in the map and in the result.
    **options
        Options of :func:`enrich`, such as ``memory``.

    Notes
    -----
    The numbers are in the map, on disk, before the batch is returned. A batch that is run again after a crash finds
    its keys there and has the same result. New keys are numbered in the order of the keys, so the numbers depend on the
    batches and not on how Spark cut them into tasks. A row whose key is null gets no number.

    The result is joined with the map as it is after this batch: use it before the next batch changes the map. The batch
    is read twice; persist it if it is expensive to compute, or if computing it again may give other rows.
    """
    return enrich(batch, merge_keys(batch, key_map, on, surrogate, **options), on, "left", **options)


def merge_keys(
    batch: DataFrame, key_map: str | os.PathLike[str], on: On, surrogate: str = "sk", **options: Any
) -> MasterStore:
    """Assign the next numbers to those keys of a batch that the key map does not have, and return the extended map.

    The parameters are those of :func:`assign_keys`. The first number is 1. Without new keys the map is not changed;
    else the driver writes it again, which takes about a second for every ten million keys. Readers see the old map or
    the new one. Only one writer changes a map at a time; others wait.
    """
    if batch.isStreaming:
        raise ConfigError(
            "batch: surrogate keys are assigned batch by batch; got a streaming DataFrame. Call this inside "
            "stream.writeStream.foreachBatch(…), with the batch that Spark passes"
        )
    spec = JoinSpec.of(on)
    if surrogate in spec.master_key or surrogate in batch.columns:
        owner = "map's key" if surrogate in spec.master_key else "batch"
        raise SchemaError(f"surrogate: expected a new column name; the {owner} already has a column {surrogate!r}")
    path = Path(os.path.realpath(key_map))
    keys = batch.select(*_columns(batch, spec.stream_key, "on")).dropna().distinct()
    with _write_lock(path):
        if is_store(path):
            store = _checked(MasterStore.open(path), spec, surrogate)
            unseen = _arrow(enrich(keys, store, on, "anti", **options), spec, store.schema)
            if not len(unseen):
                return store
            last = max(0, pc.max(store.to_table()[surrogate]).as_py() or 0)
            rows = chain(store.to_table().to_batches(), _numbered(unseen, last, store.schema).to_batches())
            return MasterStore.build(
                rows, path, store.key, shards=store.shards, page_rows=store.manifest.page_rows, overwrite=True
            )
        key_types = types.arrow_schema(keys.schema, "batch").types
        schema = pa.schema([*zip(spec.master_key, key_types, strict=True), (surrogate, pa.int64())])
        return MasterStore.build(_numbered(_arrow(keys, spec, schema), 0, schema), path, spec.master_key)


def _arrow(keys: DataFrame, spec: JoinSpec, schema: pa.Schema) -> pa.Table:
    """Return the keys, collected on the driver, with the names, order and types of the key columns of the key map."""
    key_schema = pa.schema(list(schema)[:-1])
    return keys.toArrow().rename_columns(list(spec.master_key)).select(key_schema.names).cast(key_schema)


def _numbered(keys: pa.Table, last: int, schema: pa.Schema) -> pa.Table:
    """Return the keys in ascending order with a further column that numbers them from ``last + 1`` on."""
    ordered = keys.sort_by([(name, "ascending") for name in keys.column_names])
    numbers = pa.array(np.arange(last + 1, last + 1 + len(keys)))
    return ordered.append_column(schema.names[-1], numbers).cast(schema)


def _checked(store: MasterStore, spec: JoinSpec, surrogate: str) -> MasterStore:
    """Check that a store is a key map, with one number per key and no other columns, and return it."""
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
def _write_lock(path: Path) -> Iterator[None]:
    """Lock the key map at ``path``, so that no other process writes to it until the new keys have been written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.writing")):
        yield


# rows whose key the master has, and rows whose key it does not have


def find_duplicates(
    df: DataFrame,
    master: str | os.PathLike[str] | MasterStore,
    on: On,
    *,
    first_by: str | Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return the rows whose key is in the master; with ``first_by``, also all but the first row of each new key.

    Parameters
    ----------
    df
        A streaming or batch DataFrame.
    master
        The store of the known rows.
    on
        The key column, if it has the same name on both sides; a list of key columns; or a mapping from the DataFrame's
        names to the master's.
    first_by
        For batches: the column, or columns, that order the rows of a key. Rows of a key must differ in them; else
        any row of the key may be taken as the first. On a stream it raises an error, because an earlier row may still
        come: there, call this function on each batch inside ``foreachBatch``.
    **options
        Options of :func:`enrich`, such as ``memory``.

    Notes
    -----
    With the same arguments, every row is either in the result of this function or in that of :func:`find_new`. A null
    key equals no other key, so rows with a null key are new.
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
    """Return the rows whose key the master does not have; with ``first_by``, only the first row of each of these keys.

    The parameters are those of :func:`find_duplicates`, which returns the other rows.
    """
    named = {"name": _name("new", master), **options}
    if first_by is not None:
        df = _with_rank(_ranked(df, on, first_by), F.col(_NUMBER) == 1)
    return enrich(df, master, on, "anti", **named)


def _ranked(df: DataFrame, on: On, first_by: str | Sequence[str]) -> DataFrame:
    """Return the rows with a column that numbers the rows of each key from 1 on; rows with a null key all have 1."""
    if df.isStreaming:
        raise ConfigError(
            "first_by: the first row of a key can be found in a batch only; got a streaming DataFrame. Call this "
            "inside stream.writeStream.foreachBatch(…), or drop repeated rows with dropDuplicatesWithinWatermark"
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
    """Return the default name of the metrics; ``what`` tells ``find_new`` and ``find_duplicates`` apart."""
    path = master.path if isinstance(master, MasterStore) else Path(master)
    return f"{PREFIX} {what} {path.name}"
