"""What a count says about the number that was to be expected: a count n is off by about √n.

Whoever acts on bare counts acts on luck. Of many rare things some are always seen often, and a decision taken again
and again by such a count goes back and forth. A *margin* is how many standard deviations a count must be on one side.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

MARGIN = 1.5

Floats = npt.NDArray[np.float64]


def surely(counts: npt.NDArray[np.generic], margin: float) -> Floats:
    """The number that was surely to be expected where so many came.

    >>> surely(np.array([1, 4, 100]), 1.5).tolist()
    [-0.5, 1.0, 85.0]
    """
    less: Floats = counts - margin * np.sqrt(counts)
    return less


def at_most(counts: npt.NDArray[np.generic], margin: float) -> Floats:
    """The number that surely was not exceeded where so many came.

    >>> at_most(np.array([0, 4, 100]), 1.5).tolist()
    [0.0, 7.0, 115.0]
    """
    more: Floats = counts + margin * np.sqrt(counts)
    return more


def count_for(expected: float, margin: float) -> float:
    """The count from which on so many were surely to be expected, or, with a negative margin, may have been.

    >>> count_for(85, 1.5), count_for(7, -1.5)
    (100.0, 4.0)
    """
    return ((margin + math.sqrt(margin * margin + 4 * expected)) / 2) ** 2
