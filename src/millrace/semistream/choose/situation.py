"""What a join is faced with, in the words of the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from millrace.core.errors import ConfigError
from millrace.cost.engine import Situation
from millrace.cost.frequencies import Frequencies
from millrace.cost.measured import MeasuredCosts
from millrace.cost.symbols import Disk, UnitCosts
from millrace.rows.arena import Arena

if TYPE_CHECKING:
    from millrace.semistream.join import SemiStreamJoin

_SAMPLE = 1024


def situation_of(
    join: SemiStreamJoin,
    frequencies: Frequencies,
    *,
    disk: Disk | None = None,
    costs: UnitCosts | MeasuredCosts | None = None,
    batch: int = 10_000,
) -> Situation:
    """The situation of a join that is bound: sizes as it charges them, its modelled disk unless another is given."""
    if disk is None:
        model = join.device.disk
        if model is None:
            raise ConfigError("disk: the join's device models none; give one, for example as measured")
        disk = Disk(model.seek, model.bandwidth)
    store, around = join.store, join.access.around
    rows_per_key = 1.0 if store.unique else store.rows / max(1, store.manifest.keys)
    return Situation(
        rows=store.rows,
        read_bytes=8.0 if join.device.reads == "columns" else store.row_bytes,
        tuple_bytes=join.tuple_bytes,
        disk=disk,
        frequencies=frequencies,
        cached_bytes=_cached_bytes(join) * rows_per_key,
        costs=costs or UnitCosts(),
        leave_early=around.room.leave_early,
        threads=around.lanes.threads,
        rows_per_key=rows_per_key,
        read_row_bytes=store.row_bytes,
        batch=batch,
    )


def _cached_bytes(join: SemiStreamJoin) -> float:
    """What a master row takes in the join's cache, from the first rows; 0 if there is no cache of rows."""
    rows, around = join.cache.rows, join.access.around
    if rows is None:
        return 0.0
    for shard in range(join.store.shards):
        mapped = join.store.mapped(shard)
        if mapped.rows:
            some = np.arange(min(_SAMPLE, mapped.rows), dtype=np.int64)
            heap = Arena.heap_bytes_of(mapped.take(around.columns, some)) / len(some)
            return rows.fixed_row_bytes + heap * (1 + join.cache.dead_share)
    return rows.fixed_row_bytes
