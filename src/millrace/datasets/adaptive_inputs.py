"""Inputs of the DINER and MINER experiments: values of the join attribute, and tuples of 200 bytes with these values.

Everything is synthetic, even the stock and weather data: the papers' files are no longer available, so these data only
match the documented size and have a plausible distribution. The same arguments always give the same input.

References
----------
M. A. Bornea, V. Vassalos, Y. Kotidis, A. Deligiannakis: Adaptive Join Operators for Result Rate Optimization on
Streaming Inputs. IEEE TKDE 22(8), 2010.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError
from millrace.datasets.arrival_times import generator
from millrace.datasets.zipf import Permutation, ZipfSampler, whole_number

Values = npt.NDArray[np.int64]

TUPLE_BYTES = 200
"""Bytes of a tuple in the experiments; a disk block of 10 kB holds 50 tuples."""

_NORMAL, _INTERVALS, _FILLER, _UNIQUE, _STOCK, _WEATHER = range(30, 36)


# values of the join attribute


def zipf_values(
    count: int, skew: float, *, low: int = 1, high: int = 999, shuffle: int | None = None, seed: int = 0
) -> Values:
    """Draw Zipf-distributed values from ``low``, the most frequent, to ``high`` (figure 10: skew 1 to 5).

    ``shuffle`` is the seed of a permutation that spreads the frequent values; inputs with the same ``shuffle`` have
    the same frequent values.

    >>> values = zipf_values(10_000, 1.0)
    >>> counts = np.bincount(values); bool(counts[1] > counts[2] > counts[10]), int(values.max()) <= 999
    (True, True)
    """
    domain = high - low + 1
    ranks = ZipfSampler(domain, skew, seed=seed, shuffled=False).sample(count)
    return (ranks if shuffle is None else Permutation(domain, seed=shuffle).apply(ranks)) + (low - 1)


def normal_values(count: int, mean: float = 500.0, variance: float = 50.0, *, seed: int = 0) -> Values:
    """Draw values with a normal distribution, rounded to whole numbers so that some are equal.

    In figures 11 and 12, the first input has mean 500 and variance 50. The second input has mean ``500 + x`` in one
    figure, and variance ``50 + x`` in the other.
    """
    if variance < 0:
        raise ConfigError(f"variance: expected a number of at least 0; got {variance!r}")
    drawn = generator(_NORMAL, seed).normal(mean, variance**0.5, whole_number("count", count, 0))
    return np.rint(drawn).astype(np.int64)


def partially_sorted(values: npt.NDArray[Any], intervals: int, *, seed: int = 0) -> npt.NDArray[Any]:
    """Sort values, cut them into ``intervals`` pieces of equal length, and shuffle the pieces (figure 14).

    >>> partially_sorted(np.array([4, 1, 3, 2]), 1).tolist()
    [1, 2, 3, 4]
    """
    pieces = np.array_split(np.sort(values), whole_number("intervals", intervals, 1))
    order = generator(_INTERVALS, seed).permutation(len(pieces))
    return np.concatenate([pieces[i] for i in order])


def drifting_normal(
    count: int,
    shift: float,
    *,
    periods: int = 10,
    mean: float = 75.0,
    variance: float = 15.0,
    times: npt.ArrayLike | None = None,
    seed: int = 0,
) -> Values:
    """Draw values whose mean moves up by ``shift`` from one period to the next (figure 15).

    The values of period 0 have the mean ``mean``. The periods are equal parts of the time from 0 to the last of
    ``times``, the arrival times. Without ``times``, they have equal numbers of tuples.
    """
    number = whole_number("periods", periods, 1)
    moments = np.arange(1, count + 1) if times is None else np.asarray(times, np.float64)
    if moments.shape != (count,):
        raise ConfigError(f"times: expected {count} times, one for each tuple; got shape {moments.shape}")
    period = np.minimum(np.ceil(moments * (number / moments[-1])) - 1, number - 1) if count else np.zeros(0)
    drawn = generator(_NORMAL, seed).normal(0.0, variance**0.5, count)
    return np.rint(mean + shift * np.maximum(period, 0) + drawn).astype(np.int64)


# tuples


def wide_tuples(columns: Mapping[str, npt.NDArray[Any]], *, tuple_bytes: int = TUPLE_BYTES, seed: int = 0) -> pa.Table:
    """Return a table of the columns, a tuple number ``row`` and a string ``filler``, with ``tuple_bytes`` per tuple.

    Arrow's 4-byte string offsets come on top.

    >>> table = wide_tuples({"key": np.array([7, 8])}); table.column_names, table.nbytes
    (['key', 'row', 'filler'], 408)
    """
    count = len(next(iter(columns.values())))
    named = {**columns, "row": np.arange(count)}
    rest = tuple_bytes - sum(column.dtype.itemsize for column in named.values())
    if rest < 0:
        raise ConfigError(f"tuple_bytes: expected at least {tuple_bytes - rest}, for the columns; got {tuple_bytes}")
    if count * rest >= 2**31:
        raise ConfigError(f"tuple_bytes: expected strings of less than 2**31 bytes in all; got {count} of {rest} bytes")
    letters = np.frombuffer(generator(_FILLER, seed).bytes(count * rest), np.uint8) % 26 + 97
    offsets = np.arange(0, (count + 1) * rest, rest, dtype=np.int32) if rest else np.zeros(count + 1, np.int32)
    filler = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters.astype(np.uint8)))
    return pa.table({**named, "filler": filler})


def chain_inputs(
    inputs: int = 4,
    *,
    rows: int = 100_000,
    keys: int = 10_000,
    skew: float = 1.0,
    shuffle: int | None = None,
    seed: int = 0,
) -> dict[str, pa.Table]:
    """Make the chain R1 -a1- R2 -a2- R3 -a3- R4 of the MINER experiments (figures 20 and 21).

    R2 and R3 have ``rows`` tuples whose attributes have a Zipf distribution over ``0 … keys - 1``, and are joined many
    to many. With 3 inputs R1 is added, and with 4 inputs R4. These two contain every value once, so that they do
    not change the number of results. 0 is the most frequent value of every attribute, unless ``shuffle`` is given as in
    :func:`zipf_values`.

    Notes
    -----
    With the paper's numbers, the same values are frequent in R2 and R3: the 4-way join of full size has some 170
    million results.
    """
    _check_inputs(inputs)

    def attribute(number: int) -> Values:
        return zipf_values(rows, skew, low=0, high=keys - 1, shuffle=shuffle, seed=4 * seed + number)

    columns: dict[str, dict[str, Values]] = {
        "R1": {"a1": _every_key(keys, 2 * seed)},
        "R2": {"a1": attribute(0), "a2": attribute(1)},
        "R3": {"a2": attribute(2), "a3": attribute(3)},
        "R4": {"a3": _every_key(keys, 2 * seed + 1)},
    }
    return _first(inputs, columns, seed)


def star_inputs(
    inputs: int = 4,
    *,
    rows: int = 100_000,
    keys: int = 10_000,
    skew: float = 1.0,
    shuffle: int | None = None,
    seed: int = 0,
) -> dict[str, pa.Table]:
    """Make the inputs of :func:`chain_inputs` with one attribute ``a`` that all are joined on (figure 22)."""
    _check_inputs(inputs)
    zipf = [zipf_values(rows, skew, low=0, high=keys - 1, shuffle=shuffle, seed=4 * seed + i) for i in (1, 2)]
    columns = {
        "R1": {"a": _every_key(keys, 2 * seed)},
        "R2": {"a": zipf[0]},
        "R3": {"a": zipf[1]},
        "R4": {"a": _every_key(keys, 2 * seed + 1)},
    }
    return _first(inputs, columns, seed)


def stock_orders(
    total: int = 20_710, *, start: int = 2000, spread: float = 3.0, bound: int = 60, seed: int = 0
) -> dict[str, pa.Table]:
    """Make ``total`` buy and sell orders for the stock of one company in one day, half of them buy orders.

    The default is the number of orders in the paper's CSCO data; its IPIX data has 45,568. The column ``price`` is in
    cents. The market price moves up or down by a cent with every tenth order on average, and turns back at
    ``start ± bound``. Buyers offer less than the market price, and sellers ask for more. The distance has an
    exponential distribution with a mean of ``spread`` cents. The experiments join prices that are equal, or that differ
    by less than 5 cents.
    """
    half = whole_number("total", total, 2) // 2
    random = generator(_STOCK, seed)
    steps = random.choice([-1, 0, 1], size=2 * half, p=[0.05, 0.9, 0.05])
    steps[0] += random.integers(0, 2 * bound)
    walk = np.abs((np.cumsum(steps) + bound) % (4 * bound) - 2 * bound) - bound  # reflected at both ends
    distance = np.rint(random.exponential(spread, 2 * half)).astype(np.int64)
    market = start + walk.astype(np.int64)
    sides = {"buy": market[0::2] - distance[0::2], "sell": market[1::2] + distance[1::2]}
    return {name: wide_tuples({"price": price}, seed=2 * seed + i) for i, (name, price) in enumerate(sides.items())}


def weather_stations(rows: int = 45_000, *, seed: int = 0) -> dict[str, pa.Table]:
    """Make hourly air temperatures of two stations, in whole degrees Fahrenheit, by default as many as in the paper.

    A temperature is the sum of a yearly wave, a daily wave, weather that lasts for days and is the same at both
    stations, and noise that differs between the stations. The northern station is 3 degrees cooler and varies less over
    the day. Temperatures are joined if they are equal, or if they differ by less than 5 degrees.
    """
    count = whole_number("rows", rows, 1)
    random = generator(_WEATHER, seed)
    hours = np.arange(count)
    year = -18 * np.cos(2 * np.pi * hours / 8766)
    day = -np.cos(2 * np.pi * (hours - 3) / 24)
    days = random.normal(0.0, 1.0, count // 24 + 12)
    fronts = np.convolve(days, np.exp(-np.arange(10) / 3), "valid")  # one a day, which fades over ten days
    shared = 4 * np.interp(hours / 24, np.arange(len(fronts)), fronts)
    stations = {}
    for number, (name, mean, swing) in enumerate([("north", 47, 5.0), ("south", 50, 8.0)]):
        degrees = mean + year + swing * day + shared + random.normal(0.0, 2.0, count)
        temperature = np.rint(degrees).astype(np.int64)
        stations[name] = wide_tuples({"temperature": temperature}, seed=2 * seed + number)
    return stations


def _every_key(keys: int, seed: int) -> Values:
    return generator(_UNIQUE, seed).permutation(keys).astype(np.int64)


def _check_inputs(inputs: int) -> None:
    whole_number("inputs", inputs, 2, 4)


def _first(inputs: int, columns: Mapping[str, Mapping[str, Values]], seed: int) -> dict[str, pa.Table]:
    """Return tables by name for the first ``inputs`` of R2, R3, R1 and R4, in the order of the chain."""
    taken = ["R2", "R3", "R1", "R4"][:inputs]
    return {
        name: wide_tuples(each, seed=4 * seed + number)
        for number, (name, each) in enumerate(columns.items())
        if name in taken
    }
