"""What ``join_streams`` sends to its workers, for two and for several inputs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

CODE = "__millrace_code"
"""The name of the column of key codes, which comes before an input's own columns."""


@dataclass(frozen=True)
class StreamJoinPlan(ABC):
    """What the plans of joins of two and of several streams have in common."""

    inputs: tuple[str, ...]
    """The names of the inputs in the metrics."""
    schemas: tuple[bytes, ...]
    """The Arrow schemas of the inputs, serialized."""
    names: tuple[int, ...]
    """The numbers by which Spark groups rows, one for each shard."""
    memory: int
    """Memory of one task, in bytes."""
    sent: bytes
    """The Arrow schema of the output, serialized."""

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.names)

    @cached_property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        """The Arrow schema of each input."""
        return tuple(pa.ipc.read_schema(pa.py_buffer(schema)) for schema in self.schemas)

    @cached_property
    def sent_schema(self) -> pa.Schema:
        """The Arrow schema of the output, as Spark gets it."""
        return pa.ipc.read_schema(pa.py_buffer(self.sent))

    @cached_property
    def identity(self) -> str:
        """A digest of the fields that must not change between micro-batches, such as keys and columns."""
        return hashlib.sha256(repr(self._fixed()).encode()).hexdigest()[:16]

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk of the state, in bytes. A merge of four runs of chunks holds up to eight chunks in memory."""
        return min(self.memory // 64, 1 << 22)

    @property
    @abstractmethod
    def block_bytes(self) -> int:
        """Size in bytes of a block, which consists of the new rows that are joined at a time."""

    @abstractmethod
    def _fixed(self) -> tuple[Any, ...]:
        """Return the fields that must not change as long as there is state."""
