"""The protocol of an open store, as the scan and the statistics use it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from millrace.master.manifest import Manifest
from millrace.master.read.mapped_rows import MappedRows
from millrace.master.read.shard_index import ShardIndex


class ReadableStore(Protocol):
    """An open store, as its scan and its statistics use it; :class:`~millrace.master.store.MasterStore` is one."""

    @property
    def manifest(self) -> Manifest:
        """The manifest: schema, key, shards and their counts."""

    @property
    def rows(self) -> int:
        """Rows of all shards."""

    @property
    def row_bytes(self) -> float:
        """Bytes of a row on average."""

    def codes(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the key codes of a shard's rows, mapped."""

    def mapped(self, shard: int) -> MappedRows:
        """Return the rows of a shard, mapped."""

    def index(self, shard: int) -> ShardIndex:
        """Return the index of a shard, mapped."""
