"""A search for the best b, cache share and memory of a join, with the model of :mod:`engine <millrace.cost.engine>`.

It takes milliseconds. In the model of the MESHJOIN paper, the best b has a closed form
(:mod:`meshjoin <millrace.cost.meshjoin>`). This model has jumps, because the number of loads in a turn is whole and the
sizes of filters are powers of two, so several values are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from millrace.core.bisection import increasing_root
from millrace.core.errors import BudgetTooSmallError, OutOfReachError
from millrace.core.sizes import format_size
from millrace.cost.engine import predict
from millrace.cost.engine_room import least_memory
from millrace.cost.prediction import Prediction
from millrace.cost.workload import Workload

WITHIN = 0.05
"""Fraction of the best rate by which the rate may be lower for a value of b to belong to the flat region."""

_CACHED = ("cachejoin", "sscj")
_SHARES = (0.1, 0.2, 0.45, 0.6, 0.8)
_SHARE = 0.3
_MOST_RATE = 1e15
_ROUNDS, _WORTHWHILE = 2, 0.03
_COARSE, _FINE = (7, 5, 5), (5, 4)  # how many values are tried in each round, on a finer grid each time


def for_memory(workload: Workload, algorithm: str, memory: int) -> Prediction:
    """Return the prediction for the b and the cache share with which ``memory`` bytes give the highest service rate."""
    own = predict(workload, algorithm, memory)
    if not own.b:
        return own
    best = _best_b(workload, own, 1, _most_b(workload, memory), _COARSE)
    if algorithm in _CACHED:
        share = max(_SHARES, key=lambda s: _rate(workload, algorithm, memory, best.b, s))
        best = max(best, predict(workload, algorithm, memory, b=best.b, cache_share=share), key=lambda p: p.rate)
    return best


def for_rate(workload: Workload, algorithm: str, rate: float, *, most: int | None = None) -> Prediction:
    """Return the prediction for the setting that reaches ``rate`` tuples per second with the least memory.

    ``most`` is the largest budget to consider. The default is 2 · (master rows) · (the largest of ``read_bytes``,
    ``cached_bytes`` and ``tuple_bytes``), and at least twice the least budget with which the join starts.
    """
    found = memory_for(workload, algorithm, rate, most=most)
    best = for_memory(workload, algorithm, found.memory)
    for _ in range(_ROUNDS):
        if best.rate <= (1 + _WORTHWHILE) * rate:
            break
        share = best.cache_share or _SHARE
        try:
            better = memory_for(workload, algorithm, rate, most=found.memory, b=best.b, cache_share=share)
        except (BudgetTooSmallError, OutOfReachError):
            break  # the best b for this memory does not work with less memory
        found = min(found, better, key=lambda p: p.memory)
        best = _best_b(workload, found, found.b // 6, found.b * 6, _FINE)
    return found


def flat_region(workload: Workload, best: Prediction) -> tuple[int, int]:
    """Return the least and the greatest b whose rate is at most 5 % below that of ``best``, all else equal."""
    if not best.b:
        return 0, 0
    good = (1 - WITHIN) * best.rate

    def rate(b: int) -> float:
        return _rate(workload, best.algorithm, best.memory, b, best.cache_share or _SHARE)

    return _edge(rate, good, best.b, 1), _edge(rate, good, best.b, _most_b(workload, best.memory))


def memory_for(
    workload: Workload,
    algorithm: str,
    rate: float,
    *,
    most: int | None = None,
    b: int | None = None,
    cache_share: float = _SHARE,
) -> Prediction:
    """Return the prediction with the least memory that reaches ``rate``, with this ``b`` and ``cache_share``.

    ``most`` is the largest budget to consider, see :func:`for_rate`.
    """
    least = least_memory(workload, b or 1)
    most = most or max(
        2 * least, int(2 * workload.rows * max(workload.read_bytes, workload.cached_bytes, workload.tuple_bytes))
    )
    if most < least:
        predict(workload, algorithm, most, b=b, cache_share=cache_share)  # raises an error that names the least

    def log_rate(log_memory: float) -> float:
        return math.log(_rate(workload, algorithm, int(math.exp(log_memory)), b, cache_share))

    highest = log_rate(math.log(most))
    if highest < math.log(rate):
        raise OutOfReachError(_too_fast(workload, algorithm, rate, math.exp(highest), most), math.exp(highest))
    if log_rate(math.log(least)) >= math.log(rate):
        return predict(workload, algorithm, least, b=b, cache_share=cache_share)
    low = math.log(most) - 1  # rates grow about as memory does, so the memory for a lower rate is seldom far below
    while low > math.log(least) and log_rate(low) > math.log(rate):
        low -= 2
    low = max(low, math.log(least))
    found_at = increasing_root(log_rate, math.log(rate), low, min(low + 2, math.log(most)), 1e-5, 2e-3)
    memory = max(least, int(math.exp(found_at)))
    found = predict(workload, algorithm, memory, b=b, cache_share=cache_share)
    while found.rate < rate and memory < most:
        memory = min(most, memory + memory // 400 + 1)
        found = predict(workload, algorithm, memory, b=b, cache_share=cache_share)
    return found


def _too_fast(workload: Workload, algorithm: str, rate: float, highest: float, most: int) -> str:
    costs = workload.unit_costs(most)
    waiting = costs.waiting + costs.c_O
    each = {"ssbj": min(costs.hit, waiting), "lookup": costs.hit}.get(algorithm, waiting)
    why = "the disk is the limit" if not each else f"a tuple takes at least {each:.3g} s without disk reads"
    return (
        f"rate: {algorithm} cannot join {rate:,.0f} tuples/s with any memory up to {format_size(most)}; "
        f"the highest rate is {highest:,.0f} tuples/s: {why}"
    )


def _rate(workload: Workload, algorithm: str, memory: int, b: int | None, cache_share: float) -> float:
    """Return the predicted rate in tuples per second; almost 0 if the join needs more memory to start."""
    try:
        found = predict(workload, algorithm, memory, b=b, cache_share=cache_share)
    except BudgetTooSmallError:
        return 1e-9
    return max(1e-9, min(found.rate, _MOST_RATE))


def _best_b(workload: Workload, start: Prediction, low: int, high: int, grids: tuple[int, ...]) -> Prediction:
    """Return the prediction with the best b from ``low`` to ``high``; all other options are those of ``start``.

    There is a round for each item of ``grids``, which is the number of values of b to try in this round. Later rounds
    try values near the best b found so far.
    """
    share, most = start.cache_share or _SHARE, _most_b(workload, start.memory)
    low, high = max(1, low), min(high, most)
    tried = {start.b: start.rate}
    best = start.b
    for points in grids:
        step = max(1.0, high / low) ** (1 / (points - 1))
        for number in range(points):
            b = min(high, max(low, round(low * step**number)))
            if b not in tried:
                tried[b] = _rate(workload, start.algorithm, start.memory, b, share)
        best = max(tried, key=lambda b: tried[b])
        low, high = max(1, int(best / step)), min(most, math.ceil(best * step))
    return predict(workload, start.algorithm, start.memory, b=best, cache_share=share)


def _most_b(workload: Workload, memory: int) -> int:
    """Return the number of rows of the largest possible load, whose buffer takes all memory that the join can spare."""
    return max(1, min(workload.rows, (memory - least_memory(workload, 0)) // 8))


def _edge(rate: Callable[[int], float], good: float, inside: int, end: int) -> int:
    """Return the b farthest from ``inside`` towards ``end`` whose rate is still at least ``good``, by bisection."""
    if rate(end) >= good:
        return end
    outside = end
    while abs(inside - outside) > max(1, inside // 50):
        middle = round(math.sqrt(inside * outside))
        if middle in (inside, outside):
            break
        if rate(middle) >= good:
            inside = middle
        else:
            outside = middle
    return inside
