"""Where a function of one number reaches a value."""

from __future__ import annotations

from collections.abc import Callable


def increasing_root(
    function: Callable[[float], float], value: float, low: float, high: float, within: float = 1e-9
) -> float:
    """The x between ``low`` and ``high`` where an increasing function has this value; an end if it never has.

    Halving and the secant take turns: the secant is quick on smooth functions, halving works on steps too.

    >>> round(increasing_root(lambda x: x * x, 2.0, 0.0, 10.0), 6)
    1.414214
    """
    below, above = function(low) - value, function(high) - value
    if below >= 0:
        return low
    if above <= 0:
        return high
    for turn in range(200):
        if high - low <= within * abs(high):
            break
        middle = (low + high) / 2 if turn % 2 else low - below * (high - low) / (above - below)
        at = function(middle) - value
        if at == 0:
            return middle
        if at < 0:
            low, below = middle, at
        else:
            high, above = middle, at
    return (low + high) / 2
