"""Estimates how many bytes a waiting tuple and a cached master row take, before a join has any."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.rows.arena import Arena
from millrace.rows.keyed_rows import KeyedRows
from millrace.semistream.arguments import JoinArguments
from millrace.semistream.binding import Binding
from millrace.semistream.waiting.order_buffer import WAITING
from millrace.semistream.waiting.waiting_room import WaitingRoom

_SAMPLE = 1024


def waiting_tuple_bytes(arguments: JoinArguments, binding: Binding) -> float:
    """Return the bytes that a tuple takes in the waiting room, without its strings and binary values."""
    if arguments.ordered:
        return WaitingRoom.empty_tuple_bytes(WAITING, None)
    return WaitingRoom.empty_tuple_bytes(binding.stream, binding.code_column)


def cached_row_bytes(arguments: JoinArguments, binding: Binding) -> float:
    """Return the bytes of a cached master row, estimated from the first rows; 0 where no rows are cached."""
    marks = arguments.algorithm.cached_marks(numbered=arguments.ordered)
    if marks is None:
        return 0.0
    store, columns = arguments.store, binding.cached_columns
    fixed = KeyedRows.fixed_bytes_per_row(pa.schema([store.schema.field(i) for i in columns]), marks)
    for shard in range(store.shards):
        mapped = store.mapped(shard)
        if mapped.rows:
            some = np.arange(min(_SAMPLE, mapped.rows), dtype=np.int64)
            heap = Arena.heap_bytes_of(mapped.take(columns, some)) / len(some)
            return fixed + heap * (1 + arguments.algorithm.dead_share)
    return fixed
