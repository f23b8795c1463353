"""SSBJ's cost model. The size b of the disk buffer is in tuples, as in the paper.

References
----------
M. A. Naeem, G. Weber, C. Lutteroth: A memory-optimal many-to-many semi-stream join. Distributed and Parallel
Databases, 2019, equations 1 to 5 and the cache inequality.

Erratum: equation 6 adds bytes and calls the sum tuples. Instead of it, :func:`settled` and :func:`memory_for` let the
cache inequality decide which keys are cached.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.core.bisection import increasing_root
from millrace.core.errors import BudgetTooSmallError, OutOfReachError
from millrace.cost.frequencies import ONE_ROW, Frequencies, RowsPerKey
from millrace.cost.symbols import Disk, Sizes, UnitCosts


@dataclass(frozen=True)
class Settled:
    """Size of the cache and number of tuples per step, once the join has reached a steady state."""

    h_R: float
    """Master tuples in the cache."""
    w_N: float
    """Tuples of a step that the cache answers."""
    w_S: float
    """Tuples of a step that wait."""

    @property
    def hit_share(self) -> float:
        return self.w_N / (self.w_N + self.w_S)


def memory(sizes: Sizes, b: float, h_R: float, w_S: float) -> float:
    """Return the bytes of the disk buffer, the cache, the queue and the waiting tuples (equation 1)."""
    return (b + h_R * sizes.f) * sizes.v_R + w_S * sizes.R_t / b * sizes.q


def c_loop(sizes: Sizes, costs: UnitCosts, disk: Disk, b: float, w_N: float, w_S: float) -> float:
    """Return the seconds of a step (equation 2)."""
    reading = disk.c_IO(b * sizes.v_R) + b * (costs.c_H + costs.c_B)
    return reading + w_N * costs.hit + w_S * (costs.waiting + costs.c_O)


def mu(w_N: float, w_S: float, c_loop: float) -> float:
    """Return the service rate in tuples per second (equation 3)."""
    return (w_N + w_S) / c_loop


def keeps_up(rate: float, w_N: float, w_S: float, c_loop: float) -> bool:
    """Return whether the join keeps up with ``rate`` tuples per second, without shedding any (equation 4)."""
    return rate <= mu(w_N, w_S, c_loop)


def w_for(sizes: Sizes, costs: UnitCosts, disk: Disk, rate: float, b: float, hit_share: float) -> float:
    """Return how many tuples a step must take to keep up with ``rate`` (equation 5, solved for w = w_N + w_S)."""
    each = hit_share * costs.hit + (1 - hit_share) * (costs.waiting + costs.c_O)
    if rate * each >= 1:
        raise OutOfReachError(
            f"rate: {rate:,.0f} tuples/s cannot be reached with any memory: "
            f"a tuple takes {each:.3g} s without disk reads, so the limit is {1 / each:,.0f} tuples/s",
            1 / each,
        )
    return rate * c_loop(sizes, costs, disk, b, 0, 0) / (1 - rate * each)


def balance(sizes: Sizes, frequencies: Frequencies, b: float, w: float, rows: RowsPerKey = ONE_ROW) -> Settled:
    """Return the steady state with the keys that the cache inequality selects if w tuples arrive per step.

    A key with m master rows and n tuples in a turn is cached if m · v_R < n · v_S.
    """
    split = frequencies.balanced(w * sizes.R_t / b, sizes.v_R, sizes.v_S, rows)
    return Settled(split.rows, w * split.share, w * (1 - split.share))


def settled(sizes: Sizes, frequencies: Frequencies, M: float, b: float, rows: RowsPerKey = ONE_ROW) -> Settled:
    """Return the steady state with M bytes (equation 1), if the cache inequality decides which keys are cached.

    With more tuples in a step, both the waiting tuples and the cache need more memory, so only one w fits.
    """
    if memory(sizes, b, 0, 0) >= M:
        least = int(memory(sizes, b, 0, 0)) + 1
        raise BudgetTooSmallError(f"M: {M:,.0f} bytes do not hold the disk buffer; the least is {least:,} bytes", least)

    def used(w: float) -> float:
        at = balance(sizes, frequencies, b, w, rows)
        return memory(sizes, b, at.h_R, at.w_S)

    most = (M / sizes.q) * b / sizes.R_t
    while used(most) < M and most < 1e18:
        most *= 4  # the cache answers almost all tuples
    return balance(sizes, frequencies, b, increasing_root(used, M, 0.0, most), rows)


def memory_for(
    sizes: Sizes,
    costs: UnitCosts,
    disk: Disk,
    frequencies: Frequencies,
    rate: float,
    b: float,
    rows: RowsPerKey = ONE_ROW,
) -> float:
    """Return the bytes needed for ``rate`` tuples per second, if the cache inequality decides which keys are cached."""
    w, share = 0.0, 0.0
    for _ in range(50):
        w = w_for(sizes, costs, disk, rate, b, share)
        at = balance(sizes, frequencies, b, w, rows)
        if abs(at.hit_share - share) < 1e-12:
            break
        share = at.hit_share
    return memory(sizes, b, at.h_R, at.w_S)
