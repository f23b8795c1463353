"""Arrival times of tuples, in seconds and in ascending order, for inputs that are slow or bursty, or that stall.

The first tuple arrives one gap after time 0. The same arguments, with the same seed, always give the same times.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from millrace.core.errors import ConfigError
from millrace.datasets.zipf import whole_number

Times = npt.NDArray[np.float64]

GAP = 0.001
"""Mean seconds between tuples in the DINER experiments.

The paper models gaps as exponential "with parameter 0.1" and gives no unit. Its 100 000 tuples in 10 periods of 10 s
have gaps of 1 ms.
"""

_EXPONENTIAL, _PARETO, _BURSTS = range(20, 23)


def steady(count: int, gap: float = GAP) -> Times:
    """Return the times of tuples that arrive every ``gap`` seconds.

    >>> steady(3, 0.5).tolist()
    [0.5, 1.0, 1.5]
    """
    return np.arange(1, whole_number("count", count, 0) + 1, dtype=np.float64) * _seconds("gap", gap)


def exponential(count: int, gap: float = GAP, *, seed: int = 0) -> Times:
    """Return times with independent gaps of an exponential distribution with mean ``gap`` seconds: a Poisson process.

    >>> times = exponential(100_000)
    >>> round(float(times[-1])), bool((np.diff(times) >= 0).all())
    (100, True)
    """
    random = generator(_EXPONENTIAL, seed)
    return np.cumsum(random.exponential(_seconds("gap", gap), whole_number("count", count, 0)))


def pareto(count: int, gap: float = GAP, *, shape: float = 1.5, seed: int = 0) -> Times:
    """Return times with independent gaps of a Pareto distribution: many short gaps and a few very long ones.

    ``gap`` is the mean in seconds. The smaller ``shape`` is, the longer are the longest gaps. It must be above 1 for
    the mean to exist; up to 2, the variance is infinite. The least gap is ``gap * (shape - 1) / shape``.
    """
    if not 1 < shape < math.inf:
        raise ConfigError(f"shape: expected a number above 1; got {shape!r}")
    least = _seconds("gap", gap) * (shape - 1) / shape
    random = generator(_PARETO, seed)
    return np.cumsum(least * (1 + random.pareto(shape, whole_number("count", count, 0))))


def bursts(
    count: int,
    gap: float = GAP / 10,
    *,
    tuples: float = 1000,
    pause: float = 1.0,
    shape: float | None = None,
    seed: int = 0,
) -> Times:
    """Return the times of bursts of tuples: short exponential gaps within a burst, and pauses between bursts.

    Parameters
    ----------
    count, gap
        Number of tuples; mean seconds between the tuples of a burst.
    tuples
        Mean number of tuples of a burst, with a geometric distribution.
    pause
        Mean seconds between bursts.
    shape
        None for exponential pauses; otherwise the shape of the Pareto distribution of the pauses, above 1.
    """
    if not 1 <= tuples < math.inf:
        raise ConfigError(f"tuples: expected a number of at least 1; got {tuples!r}")
    random = generator(_BURSTS, seed)
    gaps = random.exponential(_seconds("gap", gap), whole_number("count", count, 0))
    ends = np.flatnonzero(random.random(count) < 1 / tuples) + 1  # the first tuples of new bursts
    ends = ends[ends < count]
    mean = _seconds("pause", pause)
    if shape is None:
        pauses = random.exponential(mean, len(ends))
    elif 1 < shape < math.inf:
        pauses = mean * (shape - 1) / shape * (1 + random.pareto(shape, len(ends)))
    else:
        raise ConfigError(f"shape: expected a number above 1; got {shape!r}")
    gaps[ends] += pauses
    return np.cumsum(gaps)


def with_stalls(times: npt.ArrayLike, percent: float, fragments: int = 10) -> Times:
    """Return arrival times with a pause added after each fragment of the input.

    The tuples are divided into ``fragments`` parts of equal length. Each is followed by a delay of ``percent`` % of the
    time that the fragment took, as in figures 16 and 17 of the DINER paper (10 to 50 % after each of 10 fragments). All
    tuples after a delay arrive later by this delay.

    >>> with_stalls([1, 2, 3, 4], 50, fragments=2).tolist()
    [1.0, 2.0, 4.0, 5.0]
    """
    before = np.asarray(times, np.float64)
    if not 0 <= percent < math.inf:
        raise ConfigError(f"percent: expected a number of at least 0; got {percent!r}")
    parts = np.array_split(np.arange(len(before)), whole_number("fragments", fragments, 1))
    delay = np.zeros(len(before))
    began = total = 0.0
    for part in parts:
        if len(part):
            delay[part] = total
            total += (before[part[-1]] - began) * percent / 100
            began = float(before[part[-1]])
    return before + delay


def generator(purpose: int, seed: int) -> np.random.Generator:
    """Return a generator of random numbers for one purpose; they depend only on the purpose and on the seed."""
    return np.random.default_rng(np.random.SeedSequence((purpose, whole_number("seed", seed, 0))))


def _seconds(option: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ConfigError(f"{option}: expected seconds above 0; got {value!r}")
    return float(value)
