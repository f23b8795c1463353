"""Statistical bounds of an expected number, given the count that was observed.

A count n differs from the expected number by about √n, so a decision based on the count alone depends on chance: among
many rare keys, some always have a high count, and a repeated decision changes back and forth. A *margin* is the number
of standard deviations between a bound and the count.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

MARGIN = 1.5

Floats = npt.NDArray[np.float64]


def surely(counts: npt.NDArray[np.generic], margin: float) -> Floats:
    """Return a lower bound of the expected number for each count: ``margin`` standard deviations below the count.

    >>> surely(np.array([1, 4, 100]), 1.5).tolist()
    [-0.5, 1.0, 85.0]
    """
    less: Floats = counts - margin * np.sqrt(counts)
    return less


def at_most(counts: npt.NDArray[np.generic], margin: float) -> Floats:
    """Return an upper bound of the expected number for each count: ``margin`` standard deviations above the count.

    >>> at_most(np.array([0, 4, 100]), 1.5).tolist()
    [0.0, 7.0, 115.0]
    """
    more: Floats = counts + margin * np.sqrt(counts)
    return more


def count_for(expected: float, margin: float) -> float:
    """Return the count whose lower bound (:func:`surely`) is ``expected``.

    With a negative margin, return the count whose upper bound (:func:`at_most`) is ``expected``.

    >>> count_for(85, 1.5), count_for(7, -1.5)
    (100.0, 4.0)
    """
    return ((margin + math.sqrt(margin * margin + 4 * expected)) / 2) ** 2
