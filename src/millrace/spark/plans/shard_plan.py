"""What ``build_master`` sends to its workers, and what they report of each shard."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class ShardPlan:
    """How the executors write the shards of a store."""

    directory: str
    """The directory in which the store is put together."""
    schema_bytes: bytes
    """The Arrow schema of the rows, serialized."""
    key: tuple[str, ...]
    shards: int
    page_rows: int
    index: bool
    records: bool

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the rows, the key first."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema_bytes))


@dataclass(frozen=True)
class WrittenShard:
    """What a task reports of the shard that it has written."""

    attempt: str
    """The folder of the shard, named for the attempt of the task."""
    entry: dict[str, Any]
    """The shard's entry of the manifest, as JSON."""
    longest: dict[str, int]
    """Length of the longest value of each column of text or bytes."""
    nulls: dict[str, int]
    """Nulls of each column."""
    null_keys: int
    """Rows left out because their key is null."""
