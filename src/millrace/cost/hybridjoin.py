"""HYBRIDJOIN's cost model: a page of d tuples is loaded for the oldest tuple and joined with all that wait for it.

References
----------
M. A. Naeem, G. Dobbie, G. Weber: HYBRIDJOIN for near-real-time data warehousing. IJDWM 7(4), 2011. The number of
tuples that a page answers is measured in the paper; here :mod:`page_loads <millrace.cost.page_loads>` computes it.
"""

from __future__ import annotations

from millrace.cost.frequencies import Frequencies
from millrace.cost.page_loads import PageLoads
from millrace.cost.symbols import Disk, Sizes, UnitCosts


def h_S(sizes: Sizes, M: float) -> float:
    """Return how many tuples can wait in M bytes besides one page."""
    return (M - sizes.v_P) / sizes.q


def memory(sizes: Sizes, h_S: float) -> float:
    """Return the bytes that one page and h_S waiting tuples take."""
    return sizes.v_P + h_S * sizes.q


def alpha(sizes: Sizes) -> float:
    """Return the share of the memory for waiting tuples that the hash table takes; the queue takes the rest."""
    return sizes.f * sizes.v_S / sizes.q


def c_loop(sizes: Sizes, costs: UnitCosts, disk: Disk, w: float) -> float:
    """Return the seconds of a step that loads one page, which answers w tuples."""
    return disk.c_IO(sizes.v_P) + sizes.per_page * costs.c_H + w * (costs.c_O + costs.waiting)


def mu(w: float, c_loop: float) -> float:
    """Return the service rate in tuples per second."""
    return w / c_loop


def w(sizes: Sizes, frequencies: Frequencies, h_S: float) -> float:
    """Return how many tuples a page answers on average while h_S tuples wait."""
    return PageLoads(frequencies, sizes.R_t, sizes.per_page).per_load(h_S)
