"""Statistics of the keys of a stream, in one pass: the number of keys, their skew, and the hot keys.

Every tuple goes into two sketches (:mod:`millrace.kernels.sketches`), from which the rank-frequency curve is computed::

    hot keys    ──► measured, key by key ─────────────┐
                                                      ├──► frequencies(): probabilities of keys that add up to 1
    key sample  ──► keys by count  ──► fitted tail ───┘
        └─────────► distinct keys

The statistics describe the stream, not only the tuples observed so far: :meth:`StreamStatistics.top_share` is what to
expect of later tuples if the stream does not change. For keys that occurred often there is no difference. But some rare
keys have occurred twice by chance, while others, which are just as frequent, have not occurred yet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.budget import MemoryBudget
from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError
from millrace.core.numeric import is_number
from millrace.core.sizes import format_size, parse_size
from millrace.kernels import sketches
from millrace.kernels.sampling import scattered
from millrace.kernels.sketches import ALL, ENTRY, HOT, SAMPLED, HotKeys, KeySample, most_entries
from millrace.rows.key_rates import EXACT, rates_of
from millrace.rows.rank_curve import Floats, RankCurve

Codes = npt.NDArray[np.int64]

LEAST_BYTES = 4096
_MOST_WEIGHT = 2**31 - 1  # what a count can hold
_CERTAIN = 2  # a hot key occurred at least this many times as often as a key without a count can have occurred


class StreamStatistics:
    """Estimates of the skew, the hot keys and the number of distinct keys of a stream, in bounded memory.

    Parameters
    ----------
    memory
        Size of both sketches in bytes, all allocated at the beginning. The error of the distinct count is about
        ``1 / sqrt(memory / 32)``, 1.1 % for the default (one standard deviation).
    budget
        The budget in which the bytes are reserved, as ``"statistics"``; :meth:`close` gives them back.

    Notes
    -----
    A tuple costs O(1), in compiled code. Nothing depends on how tuples are cut into batches. The key sample does not
    depend on their order either, and merging two gives the statistics of both streams together.

    See :meth:`hot_keys` for what is hot, and :meth:`frequencies` for how the tail is fitted.

    Examples
    --------
    >>> from millrace.datasets import ZipfSampler
    >>> zipf, seen = ZipfSampler(100_000, 1.0), StreamStatistics()
    >>> for _ in range(20):
    ...     seen.observe(zipf.sample(10_000))
    >>> seen.tuples, round(seen.skew, 1)
    (200000, 1.0)
    >>> real = zipf.probability(np.arange(1, 1001)).sum()
    >>> bool(abs(seen.top_share(1000) - real) < 0.02), bool(seen.misfit < 0.02)
    (True, True)
    >>> keys, probability = seen.frequencies()
    >>> round(float(keys @ probability), 9)
    1.0
    """

    def __init__(self, memory: str | int = "256KiB", *, budget: MemoryBudget | None = None) -> None:
        nbytes = parse_size(memory)
        if budget is not None and not isinstance(budget, MemoryBudget):
            raise ConfigError(f"budget: expected a MemoryBudget, or None; got {budget!r}")
        if nbytes < LEAST_BYTES:
            raise BudgetTooSmallError(
                f"statistics: expected at least {format_size(LEAST_BYTES)} of memory; got {format_size(nbytes)}",
                LEAST_BYTES,
            )
        hot = nbytes // 64
        self.nbytes = nbytes
        """Bytes of both sketches and of the working memory of :meth:`observe`. Other methods take about as much again
        while they run."""
        self._reservation = None if budget is None else budget.reserve("statistics", nbytes)
        # When hot keys are dropped, the entries (at most half of the places) are copied, and their counts sorted.
        left = nbytes - hot * HOT.itemsize - hot // 2 * (HOT.itemsize + 8)
        self._sample = KeySample(np.zeros(left // SAMPLED.itemsize, SAMPLED), np.array([ALL]), np.zeros(1, np.int64))
        self._hot = HotKeys(np.zeros(hot, HOT), np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
        self.tuples = 0
        """Number of tuples observed."""
        self.weight = 0
        """Number of tuples that the statistics represent: all that were observed, or fewer after :meth:`decay`."""
        self._decays = 0
        self._curve: RankCurve | None = None

    def observe(self, codes: Codes) -> None:
        """Count the key codes of some tuples. Leave out tuples without a key, as they have no code."""
        if not isinstance(codes, np.ndarray):
            raise SchemaError(
                f"codes: expected a NumPy array with one int64 for each tuple; got {type(codes).__name__}"
            )
        if codes.dtype != np.int64 or codes.ndim != 1:
            raise SchemaError(f"codes: expected one int64 for each tuple; got {codes.ndim}-dimensional {codes.dtype}")
        given = np.ascontiguousarray(codes).view()
        given.flags.writeable = False  # otherwise numba would compile a kernel for writable arrays too
        while len(given):
            part = given[: _MOST_WEIGHT // 2]
            if self.weight + len(part) > _MOST_WEIGHT:
                self.decay()
            sketches.sample(self._sample, part)
            sketches.count(self._hot, part)
            self.tuples += len(part)
            self.weight += len(part)
            given = given[len(part) :]
        self._curve = None

    # statistics

    @property
    def distinct(self) -> float:
        """Estimated number of distinct keys observed; exact while the sample holds all of them."""
        return float(self._sample.kept[0]) / self._share

    @property
    def _share(self) -> float:
        """The share of all keys that is in the sample."""
        return float(self._sample.limit[0]) / float(ALL)

    @property
    def _whole(self) -> bool:
        """Whether the sample has held every key from the beginning."""
        return bool(self._sample.limit[0] == ALL)

    def hot_keys(self) -> tuple[Codes, Floats]:
        """Return the keys that are certainly frequent, and their shares of the stream, most frequent first.

        A key is hot if it occurred at least 64 times, and at least twice as often as any key that has no count of its
        own can have occurred.
        """
        codes, counts = self._counted()
        hot = np.flatnonzero(counts >= self._least)
        hot = hot[np.argsort(-counts[hot], kind="stable")]
        return codes[hot], counts[hot] / max(1, self.weight)

    def _others(self, hot: Codes) -> npt.NDArray[Any]:
        """Return the sample's entries of keys that are not hot."""
        held = _held(self._sample.entries)
        others: npt.NDArray[Any] = held[~np.isin(held["code"], hot)]
        return others

    def _counted(self) -> tuple[Codes, Floats]:
        """Return all keys that have a count of their own, and an estimate of how often each occurred."""
        if self._whole:
            held = _held(self._sample.entries)
            return held["code"].copy(), held["count"].astype(np.float64)
        held = _held(self._hot.entries)
        missed = held["missed"] / 2 + np.where(held["missed"] > 0, ENTRY - 1, 0)
        return held["code"].copy(), held["count"] + missed

    @property
    def _least(self) -> int:
        """The least count with which a key is hot."""
        return EXACT if self._whole else max(EXACT, _CERTAIN * int(self._hot.floor[0]))

    def frequencies(self) -> RankCurve:
        """Return the rank-frequency curve of the stream, in which the probabilities of all keys add up to 1.

        Hot keys have their measured probabilities. Those of the other keys are estimated from the sample, where keys
        are counted exactly: the numbers of keys that occurred once, twice and so on say how many keys have which
        probability, including keys that have not occurred yet. They are assumed to follow Zipf's law unless that
        clearly contradicts the sample. The curve is fitted at the first call, which takes about a tenth of a second,
        and kept until the statistics change.
        """
        if self._curve is None:
            self._curve = self._fitted()
        return self._curve

    def _fitted(self) -> RankCurve:
        codes, shares = self.hot_keys()
        counts = self._others(codes)["count"].astype(np.int64)
        hot, numbers = np.unique(shares * self.weight, return_counts=True)
        if len(counts) == 0:
            return RankCurve.of(numbers.astype(np.float64), hot)
        keys, rates = rates_of(counts, self._share, len(shares), self.weight - float(numbers @ hot))
        return RankCurve.of(np.concatenate([numbers, keys]), np.concatenate([hot, rates]))

    def top_share(self, h: float) -> float:
        """Return the share of the tuples, from 0 to 1, whose key is among the ``h`` most frequent ones."""
        if not (is_number(h) and h >= 0):
            raise ConfigError(f"h: expected a number of keys of at least 0; got {h!r}")
        return self.frequencies().top_share(h)

    @property
    def skew(self) -> float:
        """The exponent of the Zipf distribution that fits the stream best, by maximum likelihood; 0 is uniform."""
        return self.frequencies().skew()

    @property
    def misfit(self) -> float:
        """Largest difference in :meth:`top_share` from the best Zipf distribution, from 0 to 1.

        Above 0.05, no Zipf distribution fits the stream.
        """
        curve = self.frequencies()
        return curve.misfit(curve.skew())

    def weighted_keys(self) -> tuple[Codes, Floats]:
        """Return keys that represent the stream, and the share of the stream that each represents; shares add up to 1.

        A hot key represents only itself; the other keys of the sample represent all keys that are not hot.
        """
        codes, shares = self.hot_keys()
        held = self._others(codes)
        counts = held["count"].astype(np.float64)
        rest = max(0.0, 1 - float(shares.sum())) if len(shares) else 1.0
        weights = np.concatenate([shares, counts * (rest / counts.sum()) if len(counts) else counts])
        return np.concatenate([codes, held["code"]]), weights / weights.sum() if weights.any() else weights

    # several streams, and streams that change

    def merge(self, other: StreamStatistics) -> None:
        """Add the tuples that other statistics have counted, such as those of another shard."""
        _check_statistics("merge", other)
        while self.weight + other.weight > _MOST_WEIGHT:
            other = other.copy()
            self.decay()
            other.decay()
        self._take_sample(np.concatenate([_held(s._sample.entries) for s in (self, other)]), other._sample.limit[0])
        mine, others = _held(self._hot.entries), _held(other._hot.entries)
        self._hot.floor[0] += other._hot.floor[0]
        mine["missed"] += np.where(np.isin(mine["code"], others["code"]), 0, other._hot.floor[0]).astype(np.int32)
        floor = self._hot.floor[0] - other._hot.floor[0]
        others["missed"] += np.where(np.isin(others["code"], mine["code"]), 0, floor).astype(np.int32)
        self._take_hot(np.concatenate([mine, others]))
        self._hot.tuples[0] += other._hot.tuples[0]
        self.tuples += other.tuples
        self.weight += other.weight
        self._curve = None

    def copy(self) -> StreamStatistics:
        """Return a copy, to compare with later; its memory is not charged to a budget."""
        twin = StreamStatistics(self.nbytes)
        for mine, its in ((self._sample, twin._sample), (self._hot, twin._hot)):
            for array, copied in zip(mine, its, strict=True):
                copied[:] = array
        twin.tuples, twin.weight, twin._decays = self.tuples, self.weight, self._decays
        return twin

    def decay(self) -> None:
        """Forget half of the tuples, so that tuples from now on have twice the weight.

        The tuples are chosen at random, with a fixed seed. What is left are the statistics of a stream half as long.
        When few keys are left, the sample admits more keys, whose earlier tuples are not known.
        """
        self._decays += 1
        held = _held(self._sample.entries)
        held["count"] = self._thinned(held)
        if len(held) * 4 < most_entries(len(self._sample.entries)) and not self._whole:
            self._sample.limit[0] = min(int(self._sample.limit[0]) * 2, int(ALL) - 1)  # never whole again
        self._take_sample(held, ALL)
        held = _held(self._hot.entries)
        held["count"] = self._thinned(held)
        held["missed"] = (held["missed"] + 1) // 2
        self._hot.floor[0] = (self._hot.floor[0] + 1) // 2
        self._take_hot(held)
        known = int(_held(self._sample.entries)["count"].sum(dtype=np.int64))
        self.weight = known if self._whole else max(self.weight // 2, known, int(held["count"].sum(dtype=np.int64)))
        self._curve = None

    def _thinned(self, held: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the counts after each tuple is dropped with probability 1/2; counts of 64 and more are just halved."""
        words, counts = np.empty(len(held), np.uint64), held["count"].astype(np.int64)
        scattered(np.ascontiguousarray(held["code"]), self._decays, words)
        few = counts < 64
        kept = np.bitwise_count(words & ((np.uint64(1) << np.where(few, counts, 1).astype(np.uint64)) - np.uint64(1)))
        return np.where(few, kept, counts // 2 + (counts & 1) * kept).astype(np.int32)

    def _take_sample(self, entries: npt.NDArray[Any], limit: np.uint64) -> None:
        """Replace the key sample by these entries, summed by code.

        The sample keeps only keys whose random bits are at most its limit. This is lowered to ``limit`` (but never
        raised), and then further until the entries fit.
        """
        entries = _summed(entries)
        words = np.empty(len(entries), np.uint64)
        scattered(np.ascontiguousarray(entries["code"]), sketches.SAMPLE_SEED, words)
        limit = min(limit, self._sample.limit[0])
        while (words <= limit).sum() > most_entries(len(self._sample.entries)):
            limit = np.uint64(sketches.lower(limit))
        kept = entries[words <= limit]
        sketches.fill(self._sample.entries, kept)
        self._sample.limit[0], self._sample.kept[0] = limit, len(kept)

    def _take_hot(self, entries: npt.NDArray[Any]) -> None:
        """Replace the hot keys by these entries, in which entries with the same code are added up.

        If they do not fit, the rarest keys are left out and the floor of the table is raised accordingly.
        """
        entries = _summed(entries)
        reach = entries["count"].astype(np.int64) + entries["missed"]
        most = len(self._hot.entries) // 2
        if len(entries) > most:
            self._hot.floor[0] = max(self._hot.floor[0], np.sort(reach)[::-1][most])
            entries = entries[reach > self._hot.floor[0]]
        sketches.fill(self._hot.entries, entries)
        self._hot.kept[0] = len(entries)

    def drifted(self, other: StreamStatistics) -> float:
        """Return how different another stream is, from 0 to 1: the larger of two distances.

        The first compares the curves: it is the largest difference in :meth:`top_share` for any number of keys. The
        second compares the hot keys: it is half the sum of the differences in share, over all keys that are hot in
        either stream. If only one of the two streams has a count of a key, only limits of its share in the other are
        known, and the closest share within these limits is used. For two parts of the same stream, the result is
        typically about 0.03; it can reach 0.07 if all keys have occurred about 64 times.
        """
        _check_statistics("drifted", other)
        return max(self.frequencies().distance(other.frequencies()), self._moved(other))

    def _moved(self, other: StreamStatistics) -> float:
        hot = np.union1d(self.hot_keys()[0], other.hot_keys()[0])
        (mine, mine_most), (others, others_most) = self._shares(hot), other._shares(hot)
        apart = np.maximum(np.maximum(mine - others_most, others - mine_most), 0)
        return min(1.0, float(apart.sum()) / 2)

    def _shares(self, codes: Codes) -> tuple[Floats, Floats]:
        """Return the least and the greatest share that each key can have; the two are equal for keys with a count."""
        known, counts = self._counted()
        order = np.argsort(known)
        known, counts = known[order], counts[order]
        at = np.minimum(np.searchsorted(known, codes), max(0, len(known) - 1))
        there = known[at] == codes if len(known) else np.zeros(len(codes), bool)
        least = np.where(there, counts[at], 0.0) if len(known) else np.zeros(len(codes))
        most = np.where(there, least, 0.0 if self._whole else float(self._hot.floor[0]) + ENTRY)
        weight = max(1, self.weight)
        return least / weight, most / weight

    def close(self) -> None:
        """Give the reserved bytes back to the budget."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def check_invariants(self) -> None:
        sample, hot = self._sample, self._hot
        size = sample.entries.nbytes + hot.entries.nbytes + len(hot.entries) // 2 * (HOT.itemsize + 8)
        assert size <= self.nbytes, f"the sketches take {size} bytes; expected at most {self.nbytes}"
        for entries, kept, most in (
            (sample.entries, sample.kept[0], most_entries(len(sample.entries))),
            (hot.entries, hot.kept[0], len(hot.entries) // 2),
        ):
            held = _held(entries)
            assert len(held) == kept <= most, f"the table has {len(held)} keys; expected {kept}, and at most {most}"
            assert len(np.unique(held["code"])) == kept, "a key is in the table twice"
            assert (held["count"] > 0).all()
        held = _held(hot.entries)
        assert (held["missed"] <= hot.floor[0]).all(), "a key has missed more tuples than the floor allows"
        assert int(held["count"].sum(dtype=np.int64)) <= self.weight + len(held)


def _check_statistics(subject: str, other: Any) -> None:
    if not isinstance(other, StreamStatistics):
        raise ConfigError(f"{subject}: expected StreamStatistics of another stream; got {other!r}")


def _held(entries: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of the entries of a table, without empty places."""
    held: npt.NDArray[Any] = entries[entries["count"] != 0]
    return held


def _summed(entries: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the entries added up by code; entries with a count of 0 are left out."""
    entries = entries[entries["count"] > 0]
    codes, where = np.unique(entries["code"], return_inverse=True)
    summed = np.zeros(len(codes), entries.dtype)
    summed["code"] = codes
    for name in set(entries.dtype.names or ()) - {"code"}:
        np.add.at(summed[name], where, entries[name])
    return summed
