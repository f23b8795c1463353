"""The cost models of MESHJOIN and R-MESHJOIN. The size b of the disk buffer is in pages, as in the paper.

References
----------
N. Polyzotis, S. Skiadopoulos, P. Vassiliadis, A. Simitsis, N. Frantzell: Supporting streaming updates in an active data
warehouse. ICDE 2007, section 3.2. The closed forms for b are ours; the paper leaves them to "standard calculus".
M. A. Naeem, G. Dobbie, G. Weber, S. Alam: R-MESHJOIN for near-real-time data warehousing. DOLAP 2010; its formulas are
reconstructed.

Erratum: the text and the table of the MESHJOIN paper use the names of I/Os per tuple and I/Os per second the other way
round.
"""

from __future__ import annotations

import math

from millrace.core.errors import OutOfReachError
from millrace.cost.symbols import Disk, Sizes, UnitCosts


def memory(sizes: Sizes, b: float, w: float, l: float = 1) -> float:  # noqa: E741  (the papers' l)
    """Return the bytes of buffers, queue and hash table (equation 1). R-MESHJOIN makes ``l`` loads per step."""
    k = sizes.N_R / (l * b)
    return b * sizes.v_P + w * sizes.v_S + w * k * sizes.q


def c_loop(sizes: Sizes, costs: UnitCosts, disk: Disk, b: float, w: float, l: float = 1) -> float:  # noqa: E741
    """Return the seconds of a step with ``l`` loads of b pages and w new tuples (equation 2)."""
    probing = b * sizes.per_page * (costs.c_H + sizes.sigma * costs.c_O)
    return l * (disk.c_IO(b * sizes.v_P) + probing) + w * costs.waiting


def mu(w: float, c_loop: float) -> float:
    """Return the service rate in tuples per second (equation 3)."""
    return w / c_loop


def ios_per_tuple(b: float, w: float) -> float:
    """Return the page reads per tuple of the stream (equation 4)."""
    return b / w


def ios_per_second(b: float, c_loop: float) -> float:
    """Return the page reads per second (equation 4)."""
    return b / c_loop


def keeps_up(rate: float, w: float, c_loop: float) -> bool:
    """Return whether the join keeps up with ``rate`` tuples per second, without shedding any (equation 5)."""
    return rate * c_loop <= w


def w_for(sizes: Sizes, costs: UnitCosts, disk: Disk, rate: float, b: float) -> float:
    """Return how many tuples a step must take to keep up with ``rate`` tuples per second (equation 6, solved for w)."""
    return _g(costs, rate) * (disk.seek + _a(sizes, costs, disk) * b)


def w_in(sizes: Sizes, M: float, b: float) -> float:
    """Return how many tuples a step can take in M bytes (equation 1, solved for w)."""
    return (M - b * sizes.v_P) / (sizes.v_S + sizes.N_R * sizes.q / b)


def b_for_least_memory(sizes: Sizes, costs: UnitCosts, disk: Disk, rate: float) -> float:
    """Return the b, in pages, with which ``rate`` tuples per second take the least memory.

    The solution is exact. With g = rate / (1 - rate · waiting) and w = g · (seek + a · b), where each page
    of a load takes ``a`` seconds, equation 1 has a term in b, one in 1/b and a constant.
    """
    g = _g(costs, rate)
    growing = sizes.v_P + g * _a(sizes, costs, disk) * sizes.v_S
    return math.sqrt(g * disk.seek * sizes.N_R * sizes.q / growing)


def b_for_highest_rate(sizes: Sizes, costs: UnitCosts, disk: Disk, M: float) -> float:
    """Return the b, in pages, with which M bytes give the highest rate, neglecting the stream buffer.

    The result does not depend on the size of R.
    """
    a = _a(sizes, costs, disk)
    seek_bytes = disk.seek * sizes.v_P
    return (-seek_bytes + math.sqrt(seek_bytes**2 + a * seek_bytes * M)) / (a * sizes.v_P)


def _a(sizes: Sizes, costs: UnitCosts, disk: Disk) -> float:
    """Return the seconds that one more page adds to a load."""
    return disk.transfer(sizes.v_P) + sizes.per_page * (costs.c_H + sizes.sigma * costs.c_O)


def _g(costs: UnitCosts, rate: float) -> float:
    most = math.inf if costs.waiting == 0 else 1 / costs.waiting
    if rate >= most:
        raise OutOfReachError(
            f"rate: {rate:,.0f} tuples/s cannot be reached with any memory: reading, adding and removing a tuple takes "
            f"{costs.waiting:.3g} s, so the limit is {most:,.0f} tuples/s",
            most,
        )
    return rate / (1 - rate * costs.waiting)
