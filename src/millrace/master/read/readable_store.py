"""A protocol for open stores, with the methods that scans and statistics use."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from millrace.master.manifest import Manifest
from millrace.master.read.mapped_rows import MappedRows
from millrace.master.read.shard_index import ShardIndex


class ReadableStore(Protocol):
    """An open store that can be scanned, such as :class:`~millrace.master.store.MasterStore`."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of the store: schema, key, counts, and an entry for each shard."""

    @property
    def rows(self) -> int:
        """Number of rows in all shards."""

    @property
    def row_bytes(self) -> float:
        """Average bytes of a row as Arrow data."""

    def codes(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the key codes of a shard's rows, in row order, as a memory-mapped array."""

    def mapped(self, shard: int) -> MappedRows:
        """Return the memory-mapped rows of a shard."""

    def index(self, shard: int) -> ShardIndex:
        """Return the memory-mapped index of a shard."""
