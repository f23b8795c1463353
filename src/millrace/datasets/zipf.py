"""Zipf-distributed keys over domains of any size, drawn without tables in memory."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError
from millrace.core.jit import kernel

MAX_DOMAIN = 2**40
"""The largest number of keys. For more keys, the 53 random bits of a draw would be too few."""

STREAM_SCHEMA = pa.schema([("key", pa.int64()), ("sid", pa.int64()), ("qty", pa.int32())])
"""A stream tuple of 20 bytes: the join key, the tuple's number in the stream, and a quantity from 1 to 50."""

# Purposes of the random words that are derived from a seed: for each purpose, the words are different.
DRAWS, SHUFFLE, QUANTITY, MASTER_SHUFFLE, MASTER_KEYS, MASTER_COLUMNS = range(6)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TO_UNIT = 2.0**-53
_HALF_ROUNDS = 4
_SUMMED_TERMS = 64


def whole_number(option: str, value: object, least: int, most: int | None = None) -> int:
    """Return ``value`` as an int if it is from ``least`` to ``most``, else raise an error that names the option."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{option}: expected a whole number {bounds}; got {value!r}")
    return number


def random_words(seed: int, purpose: int, count: int) -> npt.NDArray[np.uint64]:
    """Return ``count`` random 64-bit words, always the same for a seed and a purpose such as ``DRAWS``."""
    seed = whole_number("seed", seed, 0)
    words: npt.NDArray[np.uint64] = np.empty(count, dtype=np.uint64)
    words[:] = np.random.SeedSequence((purpose, seed)).generate_state(count, np.uint64)
    return words


@kernel
def mix(word: np.uint64) -> np.uint64:
    """Apply the finalizer of SplitMix64: every bit of the result depends on every bit of ``word``."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


class Permutation:
    """A random permutation of ``1..size``, made from a seed, that needs no table in memory.

    Notes
    -----
    This is a Feistel network on the least number of bits that can hold ``size`` values. Results outside of
    ``1..size`` are put through the network again ("cycle walking"). As these are less than half of the values,
    the expected number of passes is below two. Constant memory, O(1) expected time per value.

    Examples
    --------
    >>> shuffle = Permutation(5, seed=1)
    >>> sorted(shuffle.apply(np.arange(1, 6)).tolist())
    [1, 2, 3, 4, 5]

    References
    ----------
    J. Black, P. Rogaway: Ciphers with Arbitrary Finite Domains. CT-RSA 2002.
    """

    def __init__(self, size: int, *, seed: int = 0, purpose: int = SHUFFLE) -> None:
        self.size = whole_number("size", size, 1, MAX_DOMAIN)
        self._round_keys = random_words(seed, purpose, _HALF_ROUNDS)

    def apply(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the image of each value under the permutation; values must be from 1 to ``size``."""
        numbers = _in_domain("values", values, self.size)
        images = np.empty_like(numbers)
        _permute(numbers.ravel(), self.size, (self.size - 1).bit_length(), self._round_keys, images.ravel())
        return images


@kernel
def _permute(
    values: npt.NDArray[np.int64],
    size: int,
    bits: int,
    round_keys: npt.NDArray[np.uint64],
    images: npt.NDArray[np.int64],
) -> None:
    domain = np.uint64(size)
    low_bits = np.uint64((bits + 1) // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(bits // 2)) - np.uint64(1)
    for i in range(values.size):
        value = np.uint64(values[i] - 1)
        while True:
            low = value & low_mask
            high = value >> low_bits
            for half in range(0, round_keys.size, 2):
                low ^= mix(high + round_keys[half]) & low_mask
                high ^= mix(low + round_keys[half + 1]) & high_mask
            value = (high << low_bits) | low
            if value < domain:
                break
        images[i] = np.int64(value) + 1


def _in_domain(subject: str, values: npt.ArrayLike, domain: int) -> npt.NDArray[np.int64]:
    numbers = np.asarray(values)
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise ConfigError(f"{subject}: expected whole numbers from 1 to {domain}; got {numbers.dtype}")
    if numbers.size and not (numbers.min() >= 1 and numbers.max() <= domain):
        raise ConfigError(
            f"{subject}: expected whole numbers from 1 to {domain}; got {numbers.min()} to {numbers.max()}"
        )
    return np.ascontiguousarray(numbers, dtype=np.int64)


def harmonic(count: int, skew: float) -> float:
    """Return the generalized harmonic number, the sum of ``rank**-skew`` over the ranks ``1..count``.

    The first terms are added up, and the Euler-Maclaurin formula gives the sum of the rest: O(1) for any
    ``count``, with a relative error near the precision of a float.

    >>> harmonic(3, 1.0) == 1 + 1 / 2 + 1 / 3
    True
    >>> round(harmonic(10**9, 1.0), 12)
    21.300481502348
    """
    start = min(count, _SUMMED_TERMS)
    head = math.fsum(float(rank) ** -skew for rank in range(1, start + 1))
    if count == start:
        return head
    first, last = float(start), float(count)
    ratio = math.log(last / first)
    exponent = (1 - skew) * ratio
    stretch = math.expm1(exponent) / exponent if exponent else 1.0
    tail = [first ** (1 - skew) * ratio * stretch, (last**-skew - first**-skew) / 2]
    # ``derivative`` is skew (skew+1) … (skew+2j-2), the factor of the (2j-1)-th derivative of x**-skew.
    derivative = skew
    for order, bernoulli in zip((1, 3, 5, 7), (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600), strict=True):
        tail.append(bernoulli * derivative * (first ** (-skew - order) - last ** (-skew - order)))
        derivative *= (skew + order) * (skew + order + 1)
    return head + math.fsum(tail)


class ZipfSampler:
    """Draws keys from ``1..domain`` with a Zipf distribution: a key's probability is proportional to ``rank**-skew``.

    The draws depend on the options alone, not on how they are split into calls: sampling 10 keys and then 5
    gives the same keys as sampling 15. Memory is O(1) besides the result; a draw takes O(1) expected time.

    Parameters
    ----------
    domain
        Number of keys, up to 2**40.
    skew
        The Zipf exponent, a finite number of at least 0. With 0, all keys have the same probability.
    seed
        Any whole number of at least 0.
    shuffled
        Whether a seeded :class:`Permutation` spreads the popular keys over the domain. If false, a key is its
        rank: 1 is the most frequent.

    Notes
    -----
    The method is rejection-inversion: the histogram of the weights lies within the area under ``x**-skew``,
    which can be inverted in closed form. At worst, about one draw in fifty is rejected. A uniform number is
    SplitMix64's finalizer of a counter, so the whole state is that counter. As it has 53 bits, ranks with a
    probability below about 1e-15 are drawn less exactly than :meth:`probability` says.

    Examples
    --------
    >>> zipf = ZipfSampler(1000, 1.0, seed=7, shuffled=False)
    >>> keys = zipf.sample(10_000)
    >>> counts = np.bincount(keys, minlength=1001)
    >>> bool(counts[1] > counts[2] > counts[10] > counts[100])
    True
    >>> zipf.probability([1, 2, 10]).round(4).tolist()
    [0.1336, 0.0668, 0.0134]

    References
    ----------
    W. Hörmann, G. Derflinger: Rejection-inversion to generate variates from monotone discrete distributions.
    ACM TOMACS 6(3), 1996.
    """

    def __init__(self, domain: int, skew: float, *, seed: int = 0, shuffled: bool = True) -> None:
        self.domain = whole_number("domain", domain, 1, MAX_DOMAIN)
        self.skew = _skew(skew)
        self.shuffled = shuffled
        self._total = harmonic(self.domain, self.skew)
        self._permutation = Permutation(self.domain, seed=seed)
        self._random = np.array([random_words(seed, DRAWS, 1)[0], 0], dtype=np.uint64)  # key, counter

    def sample(self, n: int) -> npt.NDArray[np.int64]:
        """Return the next ``n`` keys."""
        ranks = np.empty(whole_number("n", n, 0), dtype=np.int64)
        _draw_ranks(self.domain, self.skew, self._random, ranks)
        return self.keys_of(ranks)

    def keys_of(self, ranks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the key of each rank; rank 1 is the most frequent key."""
        numbers = _in_domain("ranks", ranks, self.domain)
        return self._permutation.apply(numbers) if self.shuffled else numbers

    def probability(self, ranks: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the probability of drawing the key of each rank."""
        numbers = _in_domain("ranks", ranks, self.domain)
        chances: npt.NDArray[np.float64] = numbers.astype(np.float64) ** -self.skew / self._total
        return chances

    def state(self) -> int:
        """Return the position in the sequence of random numbers, so that :meth:`restore` can continue from there.

        >>> zipf = ZipfSampler(100, 0.5)
        >>> here = zipf.state(); first = zipf.sample(3)
        >>> zipf.restore(here); bool((zipf.sample(3) == first).all())
        True
        """
        return int(self._random[1])

    def restore(self, state: int) -> None:
        """Continue from the position ``state``, which :meth:`state` of a sampler with the same options returned."""
        self._random[1] = whole_number("state", state, 0, 2**64 - 1)


def _skew(skew: object) -> float:
    if isinstance(skew, bool) or not isinstance(skew, int | float | np.integer | np.floating):
        raise ConfigError(f"skew: expected a number of at least 0; got {skew!r}")
    number = float(skew)
    if not (number >= 0 and math.isfinite(number)):
        raise ConfigError(f"skew: expected a finite number of at least 0; got {skew!r}")
    return number


@kernel
def _area(x: float, skew: float) -> float:
    """Return the area under ``t**-skew`` from 1 to ``x``."""
    log_x = math.log(x)
    exponent = (1.0 - skew) * log_x
    if abs(exponent) < 1e-8:
        return log_x * (1.0 + exponent / 2.0)
    return math.expm1(exponent) / (1.0 - skew)


@kernel
def _inverse_area(area: float, skew: float) -> float:
    """Return the ``x`` for which the area under ``t**-skew`` from 1 to ``x`` is ``area``."""
    scaled = max(area * (1.0 - skew), -1.0)
    if abs(scaled) < 1e-8:
        return math.exp(area * (1.0 - scaled / 2.0))
    return math.exp(math.log1p(scaled) / (1.0 - skew))


@kernel
def _draw_ranks(domain: int, skew: float, random: npt.NDArray[np.uint64], ranks: npt.NDArray[np.int64]) -> None:
    key, counter = random[0], random[1]
    last = float(domain)
    # An area from _area(k + 1/2) - k**-skew to _area(k + 1/2) belongs to rank k: its length is the weight of k.
    lowest = _area(1.5, skew) - 1.0
    highest = _area(last + 0.5, skew)
    # An x at most this far below its rank always belongs to the rank.
    surely = 2.0 - _inverse_area(_area(2.5, skew) - 2.0**-skew, skew)
    for i in range(ranks.size):
        while True:
            counter += np.uint64(1)
            unit = (np.int64(mix(key + counter * _GOLDEN) >> np.uint64(11)) + 1) * _TO_UNIT
            area = highest + unit * (lowest - highest)
            x = min(max(_inverse_area(area, skew), 1.0), last)
            rank = math.floor(x + 0.5)
            if rank - x <= surely or area >= _area(rank + 0.5, skew) - rank**-skew:
                ranks[i] = np.int64(rank)
                break
    random[1] = counter


def zipf_stream(
    domain: int,
    skew: float,
    *,
    batch_rows: int,
    batches: int | None = None,
    seed: int = 0,
    shuffled: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield a stream of 20-byte tuples with Zipf-distributed keys; it never ends unless ``batches`` is given.

    The tuples do not depend on ``batch_rows``. Only one batch is in memory.

    >>> stream = zipf_stream(10**6, 1.0, batch_rows=3)
    >>> batch = next(stream); batch.num_rows, next(stream)["sid"].to_pylist()
    (3, [3, 4, 5])
    >>> batch.schema == STREAM_SCHEMA, batch.nbytes
    (True, 60)
    """
    sampler = ZipfSampler(domain, skew, seed=seed, shuffled=shuffled)
    rows = whole_number("batch_rows", batch_rows, 1)
    numbers = itertools.count() if batches is None else range(whole_number("batches", batches, 0))
    quantity_key = random_words(seed, QUANTITY, 1)[0]
    return (_stream_batch(sampler, number * rows, rows, quantity_key) for number in numbers)


def _stream_batch(sampler: ZipfSampler, start: int, rows: int, quantity_key: np.uint64) -> pa.RecordBatch:
    sid = np.arange(start, start + rows, dtype=np.int64)
    quantity = np.empty(rows, dtype=np.int32)
    _draw_quantities(quantity_key, sid, quantity)
    return pa.record_batch([sampler.sample(rows), sid, quantity], schema=STREAM_SCHEMA)


@kernel
def _draw_quantities(key: np.uint64, sid: npt.NDArray[np.int64], quantity: npt.NDArray[np.int32]) -> None:
    for i in range(sid.size):
        quantity[i] = np.int32(mix(key + np.uint64(sid[i]) * _GOLDEN) % np.uint64(50)) + 1
