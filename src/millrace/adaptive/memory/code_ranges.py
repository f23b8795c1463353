"""Ranges of codes. Where codes are mixed, a range is a hash partition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.adaptive.memory.sorted_rows import FIRST, Codes


class Partitions:
    """All codes in so many ranges of the same width.

    >>> Partitions(4).bounds(0) == (-2**63, -2**62 - 1), Partitions(4).counts(np.array([-1, 0, 5])).tolist()
    (True, [0, 1, 2, 0])
    """

    def __init__(self, count: int) -> None:
        self.count = count
        starts = [int(FIRST) + i * 2**64 // count for i in range(count)]
        self._starts = np.array(starts, np.int64)
        self._bounds = [(a, b - 1) for a, b in zip(starts, [*starts[1:], 2**63], strict=True)]

    def bounds(self, partition: int) -> tuple[int, int]:
        """The least and the greatest code of a partition."""
        return self._bounds[partition]

    def counts(self, codes: Codes) -> npt.NDArray[np.int64]:
        """How many of these sorted codes each partition has."""
        starts = np.searchsorted(codes, self._starts)
        return np.diff(starts, append=len(codes))
