"""What a count says about the number that was to be expected: a count n is off by about √n.

A decision by a bare count is a decision by chance. Of many rare things some are always seen often, and a decision that
is repeated goes back and forth. A *margin* is how many standard deviations a count must be on one side.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

MARGIN = 1.5

Floats = npt.NDArray[np.float64]


def surely(counts: npt.NDArray[np.generic], margin: float) -> Floats:
    """Return a lower bound of the expected number where so many came.

    >>> surely(np.array([1, 4, 100]), 1.5).tolist()
    [-0.5, 1.0, 85.0]
    """
    less: Floats = counts - margin * np.sqrt(counts)
    return less


def at_most(counts: npt.NDArray[np.generic], margin: float) -> Floats:
    """Return an upper bound of the expected number where so many came.

    >>> at_most(np.array([0, 4, 100]), 1.5).tolist()
    [0.0, 7.0, 115.0]
    """
    more: Floats = counts + margin * np.sqrt(counts)
    return more


def count_for(expected: float, margin: float) -> float:
    """Return the count with this lower bound or, with a negative margin, this upper bound (:func:`at_most`).

    >>> count_for(85, 1.5), count_for(7, -1.5)
    (100.0, 4.0)
    """
    return ((margin + math.sqrt(margin * margin + 4 * expected)) / 2) ** 2
