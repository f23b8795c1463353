"""Creates the join of one task of ``enrich`` from the plan, and prepares and checks the rows that the task gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import StateError
from millrace.master.manifest import Manifest
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin
from millrace.semistream.sizing.least_memory import least_memory
from millrace.spark import arrow_types as types
from millrace.spark.plans.enrich_plan import EnrichPlan
from millrace.spark.transport.combine_batches import combined

_PUSHED_ROWS = 65_536
_OPEN_STORES = 8
_GREEDY = 2**31
"""Number of tuples that may enter per step (``w``): more than fit into memory, so that memory alone limits it and a
micro-batch needs as few scans of the master as possible."""

_stores: dict[str, MasterStore] = {}
"""The stores that this worker has opened most recently, by path."""


def open_master(plan: EnrichPlan) -> MasterStore:
    """Return the master store, which a worker opens once, and again after an index was added.

    Raises
    ------
    StateError
        The store was replaced after the query was started.
    """
    manifest = Manifest.read(Path(plan.path))
    if manifest.snapshot != plan.snapshot:
        raise StateError(
            f"{plan.path}: the master store was replaced after the query was started "
            f"(its snapshot was {plan.snapshot[:8]} and is now {manifest.snapshot[:8]}). Restart the query to join "
            "with the new store; no rows of this micro-batch were written"
        )
    store = _stores.get(plan.path)
    if store is None or (store.manifest.snapshot, store.indexed) != (plan.snapshot, manifest.indexed):
        while len(_stores) >= _OPEN_STORES:
            _stores.pop(next(iter(_stores)))
        store = _stores[plan.path] = MasterStore.open(plan.path)
    return store


def task_join(plan: EnrichPlan, shard: int | None, turns: int = 1) -> SemiStreamJoin:
    """Return a join with one shard of the master, or with all of it if ``shard`` is None.

    A scan of the whole master has at least ``turns`` steps.
    """
    store = _joined_store(plan, shard)
    join = SemiStreamJoin(store, plan.on, plan.how, memory=plan.memory, **_arguments(plan, store, turns))
    join.bind(plan.stream_schema)
    return join


def least_task_memory(plan: EnrichPlan, shard: int | None) -> int:
    """Return the least memory that the join of :func:`task_join` can work with, in bytes."""
    store = _joined_store(plan, shard)
    return least_memory(store, plan.on, plan.how, plan.stream_schema, **_arguments(plan, store, 1))


def _joined_store(plan: EnrichPlan, shard: int | None) -> MasterStore:
    return open_master(plan) if shard is None else open_master(plan).shard(shard)


def _arguments(plan: EnrichPlan, store: MasterStore, turns: int) -> dict[str, Any]:
    """Return the arguments of a task's join other than the master, the keys and the memory."""
    options = dict(plan.options)
    if turns > 1 and store.rows // turns < options.get("b", plan.memory // 64):
        options["b"] = max(1, -(-store.rows // turns))
    if "w" in ALGORITHMS[plan.algorithm].sizes:
        options["w"] = _GREEDY
    return {"algorithm": plan.algorithm, "columns": plan.columns, "suffix": plan.suffix, "threads": 1, **options}


def stream_batches(plan: EnrichPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield Spark's batches, cast to the stream's schema and combined into batches large enough to push."""
    return combined((types.conform(batch, plan.stream_schema) for batch in batches if len(batch)), _PUSHED_ROWS)


def shard_of_task(plan: EnrichPlan, batch: pa.RecordBatch) -> int | None:
    """Return the shard that a task works on, from its first rows; None if the master has one shard only.

    Spark's partition number is not used, because it changes when the DataFrame is part of a union.
    """
    if plan.shards == 1:
        return None
    shards = _shards_in(plan, batch)
    return int(shards[0]) if len(shards) else 0


def check_shard(plan: EnrichPlan, batch: pa.RecordBatch, shard: int | None) -> None:
    """Check that all rows with a key belong to the shard of their task."""
    if shard is None:
        return
    found = _shards_in(plan, batch)
    if (found != shard).any():
        raise StateError(
            f"enrich: expected only rows of shard {shard} in this task; got rows of shard "
            f"{int(found[found != shard][0])}. They were repartitioned between the shuffle by shard and the join"
        )


def _shards_in(plan: EnrichPlan, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the shard of every row whose key is not null, computed from the key."""
    store = open_master(plan)
    keys = [
        column.cast(type_) if column.type != type_ else column
        for column, type_ in (
            (batch.column(batch.schema.get_field_index(ours)), store.schema.field(theirs).type)
            for ours, theirs in plan.on.items()
        )
    ]
    valid = np.ones(len(batch), np.bool_)
    for key in keys:
        if key.null_count:
            valid &= key.is_valid().to_numpy(zero_copy_only=False)
    shards = store.coder.shards(keys, plan.shards)
    return np.asarray(shards if valid.all() else shards[valid], np.int64)
