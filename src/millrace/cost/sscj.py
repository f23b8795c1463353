"""The cost models of SSCJ and CACHEJOIN: HYBRIDJOIN behind a cache of h_R master tuples.

References
----------
M. A. Naeem, G. Weber, G. Dobbie, C. Lutteroth: SSCJ: a semi-stream cache join using a front-stage cache module.
DaWaK 2013, equations 1 to 3. The paper's optimal split of the memory is not printed; :func:`best_h_R` searches for it.
CACHEJOIN counts no frequencies, so its model is the same with ``recorder=0``.

Erratum: the list of costs uses c_E for appending and has no cost of removal; the formula has both.
"""

from __future__ import annotations

import numpy as np

from millrace.core.errors import BudgetTooSmallError
from millrace.cost.frequencies import Frequencies
from millrace.cost.page_loads import PageLoads
from millrace.cost.symbols import Disk, Sizes, UnitCosts

RECORDER = 8.0
"""Bytes that the frequency recorder takes for each cached tuple."""


def memory(sizes: Sizes, d: float, h_R: float, h_S: float, recorder: float = RECORDER) -> float:
    """Return the bytes of the disk buffer, the cache with its recorder, and the waiting tuples (equation 1)."""
    return d * sizes.v_R + h_R * (sizes.v_R + recorder) + h_S * sizes.q


def h_S(sizes: Sizes, M: float, d: float, h_R: float, recorder: float = RECORDER) -> float:
    """Return how many tuples can wait in M bytes, with d rows in the disk buffer and h_R in the cache (equation 1)."""
    return (M - d * sizes.v_R - h_R * (sizes.v_R + recorder)) / sizes.q


def c_loop(sizes: Sizes, costs: UnitCosts, disk: Disk, d: float, w_N: float, w_S: float) -> float:
    """Return the seconds of a step in which the cache answers w_N tuples, and the page w_S tuples (equation 2)."""
    reading = disk.c_IO(d * sizes.v_R) + d * (costs.c_H + costs.c_F)
    return reading + w_S * (costs.c_O + costs.waiting) + w_N * costs.hit


def mu(w_N: float, w_S: float, c_loop: float) -> float:
    """Return the service rate in tuples per second (equation 3)."""
    return (w_N + w_S) / c_loop


def rate(
    sizes: Sizes,
    costs: UnitCosts,
    disk: Disk,
    frequencies: Frequencies,
    M: float,
    d: float,
    h_R: float,
    recorder: float = RECORDER,
) -> float:
    """Return the tuples per second with M bytes if the cache holds the h_R most frequent keys (equation 3)."""
    waiting = h_S(sizes, M, d, h_R, recorder)
    if waiting < 1:
        least = int(memory(sizes, d, h_R, 1, recorder)) + 1
        raise BudgetTooSmallError(f"M: no tuple can wait in {M:,.0f} bytes; the least is {least:,} bytes", least)
    kept = frequencies.hottest(h_R)
    share = frequencies.share(kept)
    if share >= 1:
        return 1 / costs.hit if costs.hit else float("inf")
    w_S = PageLoads(frequencies.without(kept), sizes.R_t, d).per_load(waiting)
    w_N = w_S * share / (1 - share)
    return mu(w_N, w_S, c_loop(sizes, costs, disk, d, w_N, w_S))


def best_h_R(
    sizes: Sizes, costs: UnitCosts, disk: Disk, frequencies: Frequencies, M: float, d: float, steps: int = 64
) -> float:
    """Return the size of the cache, in tuples, with which M bytes give the highest rate."""
    most = (M - d * sizes.v_R - sizes.q) / (sizes.v_R + RECORDER)
    tried = np.linspace(0, max(0.0, min(most, sizes.R_t)), steps, endpoint=False)
    return float(max(tried, key=lambda h_R: rate(sizes, costs, disk, frequencies, M, d, float(h_R))))
