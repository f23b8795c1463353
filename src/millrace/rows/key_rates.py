"""Estimates of the rates of all keys, including keys never seen, from the counts of a sample of keys.

The *rate* of a key is the number of tuples that are expected to have it. A key with a rate of 1 occurs 0, 1, 2 … times
(Poisson), so the count of one rare key says little about its rate. But the numbers of keys that occurred once, twice,
three times … (``keys_by_count``) say how many keys have which rate. Two models are fitted to them:

- a Zipf tail: rates fall with the rank as ``rank**-s``; its two parameters are the exponent and the number of keys;
- a free mixture: some number of keys at each of 41 fixed rates; it fits any counts, but is noisier.

The Zipf tail is used unless the free mixture explains the counts clearly better. In doubt, the tail's exponent is 0.

References
----------
B. Efron, R. Thisted: Estimating the number of unseen species: how many words did Shakespeare know? Biometrika 63, 1976.
N. Laird: Nonparametric maximum likelihood estimation of a mixing distribution. JASA 73, 1978.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from millrace.core.bisection import lowest

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

EXACT = 64
"""The least count that is precise enough to be taken as the key's rate: its standard error is at most 12.5 %."""

UNSEEN = 64
"""The largest estimate of the number of all keys, as a multiple of the number of keys that occurred."""

_CELLS = 24  # ranges of counts from EXACT on, each twice as wide as the last
_BUCKETS = 64
_SKEWS = np.arange(0, 4.01, 0.5)
_RATES = np.geomspace(1 / 16, EXACT, 41)
_ROUNDS = 300
_CLEARLY = 30.0  # of log-likelihood
_IN_DOUBT = 2.0

_COUNTS = np.arange(EXACT)
_LOG_FACTORIALS = np.array([math.lgamma(count + 1) for count in _COUNTS])
_EDGES = EXACT * 2.0 ** np.arange(1, _CELLS)


def rates_of(counts: Counts, share: float, above: int, tuples: float) -> tuple[Floats, Floats]:
    """Return an estimate of all keys in buckets: the number of keys in each bucket, and the rate of each of these keys.

    Parameters
    ----------
    counts
        How often each key of a sample occurred, at least once.
    share
        The share of all keys that is in the sample, from 0 to 1.
    above
        Number of keys that were left out of the sample because they are more frequent.
    tuples
        Number of tuples of all keys that the sample was drawn from; the rates of these keys add up to it.

    Examples
    --------
    Of a thousand keys with a rate of 1, some 630 occurred; the number of the others is estimated:

    >>> counts = np.random.default_rng(1).poisson(1.0, 1000)
    >>> keys, rates = rates_of(counts[counts > 0], 1.0, 0, counts.sum())
    >>> bool(abs(keys.sum() - 1000) < 50), bool(abs(keys @ rates - counts.sum()) < 1)
    (True, True)
    """
    keys_by_count = _keys_by_count(counts)
    tuples = max(tuples, len(counts) / share)
    zipf = _ZipfTail(keys_by_count, share, above, tuples)
    skew = zipf.best_skew()
    free_keys, free_rates = _free(counts, keys_by_count, share)
    explained = _likelihood(keys_by_count, share * _expected(free_keys, free_rates))
    if explained - zipf.likelihood(skew) < _CLEARLY:
        return zipf.rates(skew)
    return free_keys, free_rates * (tuples / (free_keys @ free_rates))


def _keys_by_count(counts: Counts) -> Floats:
    """Return how many keys occurred once, twice, …, and how many are in each range of counts from :data:`EXACT` on."""
    low = np.bincount(counts[counts < EXACT], minlength=EXACT)[1:]
    cells = np.searchsorted(_EDGES, counts[counts >= EXACT], side="right")
    return np.concatenate([low, np.bincount(cells, minlength=_CELLS)]).astype(np.float64)


def _expected(keys: Floats, rates: Floats) -> Floats:
    """Return the expected result of :func:`_keys_by_count`, given the number and rate of the keys in each bucket."""
    chances = np.exp(np.outer(_COUNTS, np.log(rates)) - rates - _LOG_FACTORIALS[:, None])
    beyond = np.maximum(1 - chances.sum(axis=0), 0)
    away = (rates - _EDGES[:, None] + 0.5) / np.sqrt(rates)
    reach = (1 + np.tanh(0.7978846 * away * (1 + 0.044715 * away**2))) / 2  # approximates the normal distribution
    reach = np.concatenate([[beyond], np.minimum(reach, beyond), [np.zeros(len(rates))]])
    keys_by_count: Floats = np.concatenate([chances[1:], reach[:-1] - reach[1:]]) @ keys
    return keys_by_count


def _likelihood(keys_by_count: Floats, expected: Floats) -> float:
    """Return the log-likelihood of ``keys_by_count`` given the expected numbers, without its constant term."""
    return float(keys_by_count @ np.log(np.maximum(expected, 1e-30)) - expected.sum())


class _ZipfTail:
    """A model of the keys of ranks ``above + 1`` and higher, whose rates fall as ``rank**-skew``."""

    def __init__(self, keys_by_count: Floats, share: float, above: int, tuples: float) -> None:
        self._keys_by_count, self._share, self._above, self._tuples = keys_by_count, share, above, tuples

    def best_skew(self) -> float:
        """Return the most likely exponent, or 0 if 0 is hardly less likely."""
        likely = [self.likelihood(float(skew)) for skew in _SKEWS]
        best = float(_SKEWS[int(np.argmax(likely))])
        step = float(_SKEWS[1])
        skew = lowest(lambda s: -self.likelihood(s), max(0.0, best - step), best + step, 13)
        return skew if self.likelihood(skew) - likely[0] > _IN_DOUBT else 0.0

    def likelihood(self, skew: float) -> float:
        return self._likelihood(*self.rates(skew))

    def _likelihood(self, keys: Floats, rates: Floats) -> float:
        return _likelihood(self._keys_by_count, self._share * _expected(keys, rates))

    def rates(self, skew: float) -> tuple[Floats, Floats]:
        """Return the number of keys in each bucket, and the rate of each of these keys, for a tail with this exponent.

        The total number of keys is the most likely one, up to a limit (:data:`UNSEEN`).
        """
        sampled = float(self._keys_by_count.sum())
        least, most = max(sampled, 0.9 * sampled / self._share), UNSEEN * sampled / self._share
        keys = lowest(
            lambda k: -self._likelihood(*self._buckets(math.exp(k), skew)), math.log(least), math.log(most), 13
        )
        return self._buckets(math.exp(keys), skew)

    def _buckets(self, keys: float, skew: float) -> tuple[Floats, Floats]:
        first, last = self._above + 1.0, self._above + 1.0 + max(1.0, round(keys))
        edges = np.unique(np.round(np.geomspace(first, last, _BUCKETS))) - 0.5
        widths = np.diff(edges)
        weights = np.diff(np.log(edges) if abs(skew - 1) < 1e-9 else edges ** (1 - skew) / (1 - skew))
        weights = np.where(widths == 1, (edges[:-1] + 0.5) ** -skew, weights)
        return widths, self._tuples * weights / weights.sum() / widths


def _free(counts: Counts, keys_by_count: Floats, share: float) -> tuple[Floats, Floats]:
    """Return the number of keys in each bucket, and the rate of each of these keys.

    Counts below :data:`EXACT` are explained by the most likely free mixture, which has some number of keys at each of
    41 fixed rates. Any other count is taken as the rate of its key. ``share`` is the share of all keys that is in the
    sample.
    """
    values, numbers = np.unique(counts[counts >= EXACT], return_counts=True)
    low = keys_by_count[: EXACT - 1]
    if low.sum() == 0:
        return numbers / share, values.astype(np.float64)
    chances = np.exp(np.outer(_COUNTS[1:], np.log(_RATES)) - _RATES - _LOG_FACTORIALS[1:, None])
    chances /= chances.sum(axis=0)
    weights = np.full(len(_RATES), 1 / len(_RATES))
    for _ in range(_ROUNDS):  # expectation maximization
        weights *= chances.T @ (low / low.sum() / np.maximum(chances @ weights, 1e-300))
    keys = low.sum() * weights / -np.expm1(-_RATES)
    return np.concatenate([numbers, keys]) / share, np.concatenate([values, _RATES])
