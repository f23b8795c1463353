"""The rank-frequency curve of a stream: how frequent its keys are, from the most to the least frequent, in buckets."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.bisection import lowest
from millrace.datasets.zipf import harmonic

Floats = npt.NDArray[np.float64]

_MOST_SKEW = 8.0
_COMPARED = 128


class RankCurve(NamedTuple):
    """A rank-frequency curve in buckets of keys, with the most frequent keys first.

    ``keys`` holds the number of keys in each bucket, an estimate that may be a fraction. ``probability`` holds the
    probability of each single key of the bucket. ``keys @ probability`` is 1, unless there are no keys at all.

    Examples
    --------
    Half of the tuples have the same key, and a thousand keys share the other half:

    >>> curve = RankCurve(np.array([1.0, 1000.0]), np.array([0.5, 0.0005]))
    >>> curve.top_share(1), curve.top_share(101), curve.top_share(5000)
    (0.5, 0.55, 1.0)
    """

    keys: Floats
    probability: Floats

    @staticmethod
    def of(keys: Floats, weight: Floats) -> RankCurve:
        """Make a curve from buckets in any order; ``weight`` is proportional to the probability of each key."""
        there = np.flatnonzero((keys > 0) & (weight > 0))
        keys, weight = keys[there].astype(np.float64), weight[there].astype(np.float64)
        order = np.argsort(-weight, kind="stable")
        keys, weight = keys[order], weight[order]
        return RankCurve(keys, weight / (keys @ weight) if len(keys) else weight)

    @property
    def ranks(self) -> Floats:
        """The rank of the last key of each bucket."""
        return np.cumsum(self.keys)

    def top_share(self, h: float) -> float:
        """Return the share of the tuples, from 0 to 1, whose key is among the ``h`` most frequent ones."""
        if len(self.keys) == 0:
            return 0.0
        ends = np.concatenate([[0.0], self.ranks])
        shares = np.concatenate([[0.0], np.cumsum(self.keys * self.probability)])
        return float(np.interp(h, ends, shares / shares[-1]))

    def skew(self) -> float:
        """Return the exponent of the Zipf distribution that fits the curve best, by maximum likelihood.

        The distribution has as many keys as the curve. The mean of ``log(rank)`` is then the same in both.
        """
        if self.ranks[-1:].sum() < 1.5:
            return 0.0
        keys = round(float(self.ranks[-1]))
        logs = np.array([math.lgamma(rank + 1) for rank in np.concatenate([[0.0], self.ranks])])
        mean_log = float(self.probability @ np.diff(logs))

        def unlikely(skew: float) -> float:
            return skew * mean_log + math.log(harmonic(keys, skew))

        return lowest(unlikely, 0.0, _MOST_SKEW, 40)

    def distance(self, other: RankCurve) -> float:
        """Return the largest difference between the :meth:`top_share` of two curves at any rank, from 0 to 1."""
        if len(self.keys) == 0 or len(other.keys) == 0:
            return float(len(self.keys) != len(other.keys))
        ranks = np.concatenate([self.ranks, other.ranks])
        return max(abs(self.top_share(rank) - other.top_share(rank)) for rank in _some(ranks))

    def misfit(self, skew: float) -> float:
        """Return the largest difference in :meth:`top_share` from a Zipf distribution with this skew, from 0 to 1."""
        if len(self.keys) == 0:
            return 0.0
        keys = max(1, round(float(self.ranks[-1])))
        total = harmonic(keys, skew)
        ranks = [min(keys, max(1, round(rank))) for rank in _some(self.ranks)]
        return max(abs(self.top_share(rank) - harmonic(rank, skew) / total) for rank in ranks)


def _some(ranks: Floats) -> list[float]:
    """Return at most 128 of the ranks, spread evenly over their logarithms, including the first and the last."""
    ordered = np.unique(ranks)
    if len(ordered) > _COMPARED:
        wanted = np.geomspace(ordered[0], ordered[-1], _COMPARED)
        ordered = ordered[np.unique(np.searchsorted(ordered, wanted).clip(0, len(ordered) - 1))]
    return [float(rank) for rank in ordered]
