"""Ranges of key codes. If the codes are mixed (hashed), a range is a hash partition."""

from __future__ import annotations

import numpy as np

from millrace.adaptive.array_types import Codes, Counts
from millrace.kernels.ordered_map import FIRST


class CodeRanges:
    """All int64 key codes, divided into ``count`` ranges of equal width.

    >>> CodeRanges(4).bounds(0) == (-2**63, -2**62 - 1), CodeRanges(4).counts(np.array([-1, 0, 5])).tolist()
    (True, [0, 1, 2, 0])
    """

    def __init__(self, count: int) -> None:
        self.count = count
        starts = [int(FIRST) + i * 2**64 // count for i in range(count)]
        self._starts = np.array(starts, np.int64)
        self._bounds = [(a, b - 1) for a, b in zip(starts, [*starts[1:], 2**63], strict=True)]

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the lowest and the highest code of a range."""
        return self._bounds[number]

    def counts(self, codes: Codes) -> Counts:
        """Return the number of codes in each range; the given codes must be sorted."""
        starts = np.searchsorted(codes, self._starts)
        return np.diff(starts, append=len(codes))
