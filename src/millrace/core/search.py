"""Searches along a line."""

from __future__ import annotations

import math
from collections.abc import Callable

_GOLDEN = (math.sqrt(5) - 1) / 2


def lowest(f: Callable[[float], float], low: float, high: float, steps: int) -> float:
    """Where a function with one valley is lowest, by golden sections; each step leaves 62 % of the interval.

    >>> round(lowest(lambda x: (x - 0.3) ** 2, 0, 1, 30), 5)
    0.3
    """
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = f(left), f(right)
    for _ in range(steps):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = f(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = f(right)
    return (low + high) / 2
