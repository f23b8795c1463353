"""What ``build_master`` sends to its workers, and what they report about each shard."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class ShardPlan:
    """The arguments of ``build_master`` that the executors need to write the shards."""

    directory: str
    """The directory in which the store is being built."""
    schema_bytes: bytes
    """The Arrow schema of the rows, serialized."""
    key: tuple[str, ...]
    shards: int
    page_rows: int
    index: bool
    records: bool

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows, the key columns first."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema_bytes))


@dataclass(frozen=True)
class WrittenShard:
    """What a task reports about the shard that it has written."""

    attempt: str
    """The name of the shard's folder, which is different for every attempt of the task."""
    entry: dict[str, Any]
    """The shard's entry in the store's manifest, as a dictionary that is ready for JSON."""
    longest: dict[str, int]
    """Length of the longest value in each column of text or bytes, in bytes."""
    nulls: dict[str, int]
    """Number of nulls in each column."""
    null_keys: int
    """Number of rows left out because their key is null."""
