"""A function that groups rows by shard."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def by_shard(shard: npt.NDArray[Any], shards: int) -> list[npt.NDArray[np.int64]]:
    """Return the row numbers of every shard, in ascending order.

    Shard numbers are cast to the smallest integer type, because NumPy sorts small integers in one pass.

    >>> by_shard(np.array([2, 0, 2, 2]), 3)
    [array([1]), array([], dtype=int64), array([0, 2, 3])]
    """
    small = shard.astype(np.min_scalar_type(max(0, shards - 1)))
    order = np.argsort(small, kind="stable")
    edges = np.concatenate(([0], np.cumsum(np.bincount(small, minlength=shards))))
    return [order[edges[number] : edges[number + 1]] for number in range(shards)]
