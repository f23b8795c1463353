"""The number of tuples that a page answers, if the page of the oldest waiting tuple is always loaded next.

The keys are scattered over pages of d rows, so the share p_i of the stream that page i has is the sum of d shares drawn
at random. Time is counted in tuples that arrive. A tuple takes T arrivals from the end of the queue to its head; with a
queue of thousands, T hardly varies. After a load of page i no tuple waits for it; its next tuple comes after 1/p_i
arrivals on average, reaches the head T later, and the page is loaded again. So

    loads of page i per arrival          1 / (T + 1/p_i)  =  p_i / (1 + x_i),          x_i = p_i · T
    tuples that a load answers           1 + x_i
    tuples that wait for i on average    (x_i + x_i²/2) / (1 + x_i)  =  x_i/2 + x_i / (1 + x_i) / 2

(tuples wait for page i during T of T + 1/p_i arrivals: the first, and half of the x_i that follow on average). With

    G(T)  =  Σ x_i / (1 + x_i)           the pages that tuples wait for

the number of waiting tuples is h_S = (T + G(T)) / 2, which gives T, and a page answers T / G(T) tuples on average.

G needs the distribution of p_i only through its Laplace transform, for x / (1 + x) = ∫ e^-s (1 - e^-sx) ds:

    G(T)  =  P ∫ e^-s (1 - E[e^(-s·T·p)]^d) ds,         P pages, p the share of a key drawn at random

so a sum over pages is not needed: a sum over buckets of keys is enough, at each of a few values of s. With v² = e^-s,
v runs from 0 to 1 and the integrand is nearly a polynomial in v, which Gauss-Legendre quadrature integrates well.
"""

from __future__ import annotations

import numpy as np

from millrace.core.bisection import increasing_root
from millrace.cost.frequencies import Frequencies

_NODES, _LENGTHS = np.polynomial.legendre.leggauss(24)
_PLACES = -2 * np.log((1 + _NODES) / 2)
_WEIGHTS = _LENGTHS * (1 + _NODES) / 2


class PageLoads:
    """The page loads of a master with ``rows`` rows, one per key, in pages of ``d`` rows; some rows may match no tuple.

    >>> loads = PageLoads(Frequencies.uniform(100_000), 100_000, 100)
    >>> round(loads.per_load(10_000), 2)  # 1,000 pages: about 2 · h_S / P
    20.05
    """

    def __init__(self, frequencies: Frequencies, rows: float, d: float) -> None:
        self._frequencies = frequencies
        self._rows, self._d = max(rows, frequencies.keys), d
        self.pages = rows / d

    def wanted(self, T: float) -> float:
        """Return G(T), the average number of pages for which tuples wait."""
        f = self._frequencies
        absent = -np.expm1(-np.outer(_PLACES * T, f.each)) @ f.counts / self._rows
        with np.errstate(divide="ignore"):
            touched = -np.expm1(self._d * np.log1p(-np.minimum(absent, 1.0)))
        return self.pages * float(_WEIGHTS @ touched)

    def span(self, h_S: float) -> float:
        """Return T, the number of tuples that arrive while one tuple goes through a queue of h_S tuples."""
        least = max(h_S, 2 * h_S - self.pages)  # G is at most the number of pages, and at most h_S
        return increasing_root(lambda T: T + self.wanted(T), 2 * h_S, least, 2 * h_S, 1e-6, 1e-4 * h_S)

    def per_load(self, h_S: float) -> float:
        """Return how many tuples a page answers on average while h_S tuples wait."""
        T = self.span(h_S)
        return T / self.wanted(T)
