"""What ``enrich`` sends to its workers: everything that a task needs to make its join."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class EnrichPlan:
    """The arguments of an ``enrich`` that its workers need, checked and resolved by the driver."""

    path: str
    """The path of the master store."""
    snapshot: str
    """The identifier of the store's contents when the query was started."""
    shards: int
    """Number of shards of the store."""
    on: dict[str, str]
    """A mapping from the stream's key columns to the master's."""
    key_types: tuple[str, ...]
    """Spark's types of the master's key columns."""
    how: str
    algorithm: str
    memory: int
    """Memory of one task, in bytes: the executor's budget divided by the number of tasks that share it."""
    columns: tuple[str, ...] | None
    """Master columns to output; None for all but the key."""
    suffix: str | None
    options: dict[str, Any]
    stream: bytes
    """The Arrow schema of the stream, serialized."""
    sent: bytes
    """The Arrow schema of the output, serialized."""
    scratch: str | None
    """The directory for caches and local copies; None for Spark's local directory."""

    @cached_property
    def stream_schema(self) -> pa.Schema:
        """The Arrow schema of the stream, as the join gets it."""
        return pa.ipc.read_schema(pa.py_buffer(self.stream))

    @cached_property
    def sent_schema(self) -> pa.Schema:
        """The Arrow schema of the output, as Spark gets it."""
        return pa.ipc.read_schema(pa.py_buffer(self.sent))

    @cached_property
    def identity(self) -> str:
        """A digest of what must not change between micro-batches: the master, the kind of join and the columns."""
        parts = (self.snapshot, self.shards, sorted(self.on.items()), self.how, self.columns, self.suffix, self.stream)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
