"""Frequencies of the keys of a stream, in a form that stays small for any number of keys.

Keys are put into buckets of about equal frequency: each of the most frequent keys has a bucket of its own, the others
share buckets in which frequencies differ by a few per cent. Models then only need sums over some 150 buckets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.core.bisection import increasing_root
from millrace.core.errors import ConfigError
from millrace.core.numeric import is_number, is_whole

Floats = npt.NDArray[np.float64]
RowsPerKey = Sequence[tuple[int, float]]
"""Pairs (m, share): the share of the keys that have m master rows."""

ONE_ROW: RowsPerKey = ((1, 1.0),)
"""The :data:`RowsPerKey` of a master with unique keys: all keys (share 1.0) have one row."""

_SINGLE = 32
_RATIO = 1.18
_MOST_KEYS = 10**15  # up to here a float can represent every whole number


@dataclass(frozen=True)
class Split:
    """The contents of a cache: how many keys it holds, how many rows they have, and their share of the stream."""

    keys: float
    rows: float
    """Master rows of the cached keys."""
    share: float
    """Share of the stream's tuples that have a cached key."""


class Frequencies:
    """The frequencies of a stream's keys: the share of the tuples that have each key, by buckets of keys.

    Parameters
    ----------
    counts
        Number of keys in each bucket, which need not be a whole number.
    each
        For each bucket, the share of the stream's tuples that have one given key of the bucket. The shares are in
        descending order, and those of all keys add up to 1.

    Examples
    --------
    >>> zipf = Frequencies.zipf(1.0, 100_000_000)
    >>> len(zipf.counts) < 250, round(zipf.share(zipf.hottest(1_000_000)), 3)
    (True, 0.758)
    """

    def __init__(self, counts: npt.ArrayLike, each: npt.ArrayLike) -> None:
        self.counts: Floats = _numbers(counts, "numbers of keys")
        self.each: Floats = _numbers(each, "shares")
        if self.counts.shape != self.each.shape or self.counts.ndim != 1 or not len(self.counts):
            raise ConfigError(
                "frequencies: expected two lists of equal length, counts and each, with at least one bucket; "
                f"got shapes {self.counts.shape} and {self.each.shape}"
            )
        if not (np.isfinite(self.counts).all() and (self.counts >= 0).all() and (self.each >= 0).all()):
            raise ConfigError(
                "frequencies: expected finite numbers of keys and shares, none below 0; got numbers of keys "
                f"from {self.counts.min():g} to {self.counts.max():g}, "
                f"and shares from {self.each.min():g} to {self.each.max():g}"
            )
        if (self.each[1:] > self.each[:-1] * (1 + 1e-6)).any():
            raise ConfigError("frequencies: expected shares in descending order; got a share above the one before it")
        total = float((self.counts * self.each).sum())
        if not math.isclose(total, 1.0, rel_tol=1e-6):
            raise ConfigError(f"frequencies: expected shares of all keys that add up to 1; got a sum of {total:g}")

    @classmethod
    def zipf(cls, skew: float, keys: int) -> Frequencies:
        """Return Zipf frequencies of up to 10**15 keys: the key of rank r has a share in proportion to r**-skew."""
        if not (is_number(skew) and skew >= 0 and math.isfinite(skew)):
            raise ConfigError(f"skew: expected a finite number of at least 0; got {skew!r}")
        firsts = _bucket_starts(_checked_keys(keys))
        counts = np.diff(firsts)
        middle = _area(firsts[:-1] - 0.5, firsts[1:] - 0.5, float(skew))
        masses = np.where(counts == 1, firsts[:-1] ** -float(skew), middle)
        return cls(counts, masses / masses.sum() / counts)

    @classmethod
    def uniform(cls, keys: int) -> Frequencies:
        """Return frequencies with the same share for all keys."""
        keys = _checked_keys(keys)
        return cls([keys], [1 / keys])

    @classmethod
    def measured(cls, counts: npt.ArrayLike, keys: int | None = None) -> Frequencies:
        """Estimate frequencies from how often each key came in a sample of the stream, and from the number of keys.

        The share of tuples whose key came only once estimates the share of keys not seen so far (Good and Turing). It
        is divided equally among the unseen keys. If ``keys`` is not given, no key is unseen.

        >>> measured = Frequencies.measured([5, 3, 1, 1], keys=10)
        >>> measured.counts.tolist(), measured.each.round(3).tolist()
        ([1.0, 1.0, 2.0, 6.0], [0.4, 0.24, 0.08, 0.033])
        """
        seen = _numbers(counts, "counts")
        if keys is not None:
            _checked_keys(keys)
        if not (seen >= 0).all():
            raise ConfigError(f"frequencies: expected counts of at least 0; got {counts!r}")
        seen = seen[seen > 0]
        if not len(seen):
            raise ConfigError("frequencies: expected counts of at least one key; got none")
        unseen = 0 if keys is None else keys - len(seen)
        if unseen < 0:
            raise ConfigError(f"frequencies: got counts of {len(seen):,} keys; expected at most {keys:,}")
        tuples = float(seen.sum())
        new = float((seen == 1).sum()) / tuples if unseen else 0.0
        new = min(new, unseen / (unseen + len(seen)))  # no unseen key is more frequent than those seen on average
        values, numbers = np.unique(seen, return_counts=True)
        each, keys_of = values[::-1] / tuples * (1 - new), numbers[::-1].astype(np.float64)
        if unseen:
            each, keys_of = np.append(each, new / unseen), np.append(keys_of, unseen)
        return cls(keys_of, each)

    # sums

    @property
    def keys(self) -> float:
        return float(self.counts.sum())

    def share(self, kept: Floats) -> float:
        """Return the share of tuples with a selected key, where ``kept`` is the selected part of each bucket's keys."""
        return float((self.counts * self.each * kept).sum())

    def expected(self, tuples: float) -> Floats:
        """Return, for each bucket, how many of ``tuples`` tuples are expected to have one given key of the bucket."""
        return self.each * tuples

    def distinct(self, tuples: float) -> float:
        """Return how many different keys ``tuples`` tuples are expected to have.

        >>> round(Frequencies.uniform(1_000).distinct(1_000))  # 1 - 1/e of the keys
        632
        """
        return float(self.counts @ -np.expm1(-self.expected(tuples)))

    # which keys

    def hottest(self, keys: float) -> Floats:
        """Return, for each bucket, the share of its keys that are among the ``keys`` most frequent of all keys."""
        before = np.concatenate(([0.0], np.cumsum(self.counts)[:-1]))
        part: Floats = np.clip((keys - before) / self.counts, 0.0, 1.0)
        return part

    def noticed(self, keys: float, tuples: float) -> Floats:
        """Return the part of each bucket's keys that a cache keeps if it finds frequent keys in ``tuples`` tuples.

        It keeps the keys whose counts reach a threshold, chosen so that ``keys`` keys are kept on average. Counts are
        Poisson distributed.
        """
        if keys >= self.keys:
            return np.ones_like(self.each)
        if keys <= 0:
            return np.zeros_like(self.each)
        mean = self.expected(tuples)

        def left_out(log_least: float) -> float:
            return -math.log(max(float(self.counts @ at_least(math.exp(log_least), mean)), 1e-300))

        border = float(mean[np.searchsorted(np.cumsum(self.counts), keys)])
        low, high = math.log(border / 8 + 1e-3), math.log(border * 8 + 50)
        return at_least(math.exp(increasing_root(left_out, -math.log(keys), low, high, 1e-6, 1e-3)), mean)

    def balanced(self, tuples: float, v_R: float, v_S: float, rows: RowsPerKey = ONE_ROW) -> Split:
        """Return the contents of a cache that holds a key with m rows and n tuples in a turn if m · v_R < n · v_S.

        A turn has ``tuples`` tuples, and ``rows`` gives the numbers of rows of the keys. A key that occurs less than
        once a turn is never cached. A key without rows takes no bytes.
        """
        waiting = self.expected(tuples) * v_S
        keys = cached_rows = share = 0.0
        for m, part in rows:
            inside = np.where((m * v_R < waiting) & (waiting >= v_S), part, 0.0)
            keys += float((self.counts * inside).sum())
            cached_rows += m * float((self.counts * inside).sum())
            share += self.share(inside)
        return Split(keys, cached_rows, min(1.0, share))

    def without(self, kept: Floats) -> Frequencies:
        """Return the frequencies of the stream that is left after removing a share of the keys of each bucket.

        ``kept`` holds the share to remove from each bucket, such as the keys that a cache keeps.
        """
        left = 1 - self.share(kept)
        if left <= 1e-12:
            raise ConfigError("kept: expected less than all keys, so that part of the stream is left; got all keys")
        stays = kept < 1
        return Frequencies((self.counts * (1 - kept))[stays], self.each[stays] / left)


def at_least(least: float, mean: Floats) -> Floats:
    """Return the chance that a Poisson variable with this mean is at least ``least``, which need not be whole.

    This is Wilson and Hilferty's approximation of the gamma distribution, with an error of about 0.005 at most.

    >>> at_least(7, np.array([2.0, 7.0, 20.0])).round(2).tolist()
    [0.0, 0.55, 1.0]
    """
    ratio = np.cbrt(np.maximum(mean, 1e-300) / least)
    return np.where(mean > 0, _normal(3 * math.sqrt(least) * (ratio - 1 + 1 / (9 * least))), 0.0)


def _normal(x: Floats) -> Floats:
    """Return the chance that a standard normal variable is at most x (Abramowitz and Stegun 26.2.17, error 1e-7)."""
    t = 1 / (1 + 0.2316419 * np.abs(x))
    tail = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    tail *= t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    return np.where(x > 0, 1 - tail, tail)


def _checked_keys(keys: int) -> int:
    if not is_whole(keys) or not 1 <= keys <= _MOST_KEYS:
        shown = "a number above 10**40" if is_whole(keys) and keys > 10**40 else repr(keys)
        raise ConfigError(f"keys: expected a whole number of at least 1 and at most 10**15; got {shown}")
    return int(keys)


def _numbers(values: npt.ArrayLike, what: str) -> Floats:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"frequencies: expected {what}; got {values!r}") from None


def _bucket_starts(keys: int) -> Floats:
    """Return the first rank of each bucket and, as the last item, ``keys + 1``."""
    starts = list(range(1, min(keys, _SINGLE) + 1))
    while starts[-1] < keys and len(starts) >= _SINGLE:
        starts.append(min(keys, int(starts[-1] * _RATIO) + 1))
    return np.array([*dict.fromkeys(starts), keys + 1], np.float64)


def _area(low: Floats, high: Floats, skew: float) -> Floats:
    """Return the area under t**-skew from ``low`` to ``high``.

    The sum of rank**-skew over consecutive ranks is about the area from the first rank - 1/2 to the last rank + 1/2.
    """
    logarithm = np.log(high / low)
    if skew == 1:
        return logarithm
    area: Floats = low ** (1 - skew) * np.expm1((1 - skew) * logarithm) / (1 - skew)
    return area
