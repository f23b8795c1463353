"""Searches for the x at which a function is lowest, or at which an increasing function has a given value."""

from __future__ import annotations

import math
from collections.abc import Callable

_GOLDEN = (math.sqrt(5) - 1) / 2


def lowest(f: Callable[[float], float], low: float, high: float, steps: int) -> float:
    """Return the x from ``low`` to ``high`` at which a function with a single minimum is lowest.

    This is a golden-section search. Each of its ``steps`` iterations shortens the interval to 62 % of its length.

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


def increasing_root(
    function: Callable[[float], float], value: float, low: float, high: float, within: float = 1e-9, close: float = 0.0
) -> float:
    """Return the x from ``low`` to ``high`` where an increasing function equals ``value``.

    If the function is above ``value`` everywhere, return ``low``; if it is below everywhere, return ``high``. The
    search ends when the relative error of x is at most ``within``, or when the function differs from ``value`` by at
    most ``close``. It uses the secant method with the Illinois rule. Every fourth step bisects, since the function may
    have jumps.

    >>> round(increasing_root(lambda x: x * x, 2.0, 0.0, 10.0), 6)
    1.414214
    """
    below, above = function(low) - value, function(high) - value
    if below >= 0:
        return low
    if above <= 0:
        return high
    stayed = 0
    for turn in range(1, 200):
        if high - low <= within * max(abs(low), abs(high)):
            break
        middle = (low + high) / 2 if turn % 4 == 0 else (low * above - high * below) / (above - below)
        at = function(middle) - value
        if abs(at) <= close:
            return middle
        if at < 0:
            low, below = middle, at
            above, stayed = (above / 2, stayed - 1) if stayed < 0 else (above, -1)
        else:
            high, above = middle, at
            below, stayed = (below / 2, stayed + 1) if stayed > 0 else (below, 1)
    return (low + high) / 2
