"""The papers' synthetic master: rows of 120 bytes, with unique keys or with keys drawn with repetition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError, one_of
from millrace.core.jit import kernel
from millrace.datasets.zipf import (
    MASTER_COLUMNS,
    MASTER_KEYS,
    MASTER_SHUFFLE,
    MAX_DOMAIN,
    Permutation,
    mix,
    random_words,
    whole_number,
)

Order = Literal["shuffled", "sorted"]

_INTEGERS = 5
_FLOATS = 6
_LABEL_BYTES = 24
_LABEL_DIGITS = 14

MASTER_SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        *((f"a{i}", pa.int64()) for i in range(1, _INTEGERS + 1)),
        *((f"x{i}", pa.float64()) for i in range(1, _FLOATS + 1)),
        ("label", pa.string()),
    ]
)
"""A master row of 120 bytes: an 8-byte key, 5 integers and 6 floats of 8 bytes each, and a string of 24 bytes."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TO_UNIT = 2.0**-53
_MAX_BATCH_ROWS = 2**24  # string offsets are int32: 24 bytes × 2**24 rows stay below 2**31

_KeySource = Callable[[int, int], npt.NDArray[np.int64]]


def synthetic_master(
    rows: int,
    *,
    seed: int = 0,
    unique: bool = True,
    domain: int | None = None,
    order: Order = "shuffled",
    batch_rows: int = 65536,
) -> pa.RecordBatchReader:
    """Make the synthetic master table of the papers, batch by batch.

    Parameters
    ----------
    rows
        Number of rows.
    seed
        Any whole number of at least 0. The rows depend on it and on the other options, but not on
        ``batch_rows``.
    unique
        True: every key of ``1..rows`` exactly once. False: keys drawn with repetition, uniformly from
        ``1..domain``, as in the SSBJ paper.
    domain
        Number of different keys to draw from if keys may repeat; the default is ``rows``.
    order
        ``"shuffled"``, as in the papers, or ``"sorted"`` by key.
    batch_rows
        Rows of a batch; the last batch may have fewer.

    Notes
    -----
    Only one batch is in memory, even if keys are sorted: repeated keys are then drawn as order statistics, one
    after the other, so the sorted master has the same distribution as the shuffled one, but other keys.
    Unique masters that differ only in ``order`` hold the same rows.

    With repetition and ``domain == rows`` the number of rows per key is about Poisson(1), so 36.8 % of the
    keys have no row at all. The paper does not state its domain.

    A label starts with its row's key in 14 digits. Arrow's 4-byte string offsets come on top of the 120 bytes.

    Examples
    --------
    >>> reader = synthetic_master(1000, batch_rows=300)
    >>> batch = reader.read_next_batch(); batch.num_rows, batch.schema == MASTER_SCHEMA
    (300, True)
    >>> synthetic_master(3, order="sorted").read_all()["key"].to_pylist()
    [1, 2, 3]
    """
    count = whole_number("rows", rows, 1, MAX_DOMAIN)
    step = whole_number("batch_rows", batch_rows, 1, _MAX_BATCH_ROWS)
    one_of("order", order, get_args(Order))
    column_keys = random_words(seed, MASTER_COLUMNS, _INTEGERS + _FLOATS + 1)
    if unique:
        if domain is not None and domain != count:
            raise ConfigError(f"domain: expected {count}, the number of rows, as the keys are unique; got {domain!r}")
        keys = _unique_keys(count, seed, order)
    else:
        drawn_from = count if domain is None else whole_number("domain", domain, 1, MAX_DOMAIN)
        keys = _drawn_keys(count, drawn_from, seed, order)
    return pa.RecordBatchReader.from_batches(MASTER_SCHEMA, _batches(count, step, keys, unique, column_keys))


def _batches(
    rows: int, batch_rows: int, keys: _KeySource, unique: bool, column_keys: npt.NDArray[np.uint64]
) -> Iterator[pa.RecordBatch]:
    offsets = np.arange(0, (min(rows, batch_rows) + 1) * _LABEL_BYTES, _LABEL_BYTES, dtype=np.int32)
    for start in range(0, rows, batch_rows):
        count = min(batch_rows, rows - start)
        key = keys(start, count)
        # Rows with the same key must differ, so the row number makes them different.
        identity = key if unique else np.arange(start, start + count, dtype=np.int64)
        integers = np.empty((_INTEGERS, count), dtype=np.int64)
        floats = np.empty((_FLOATS, count), dtype=np.float64)
        labels = np.empty((count, _LABEL_BYTES), dtype=np.uint8)
        _fill(key, identity, column_keys, integers, floats, labels)
        label = pa.StringArray.from_buffers(count, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(labels))
        yield pa.record_batch([key, *integers, *floats, label], schema=MASTER_SCHEMA)


def _unique_keys(rows: int, seed: int, order: Order) -> _KeySource:
    permutation = Permutation(rows, seed=seed, purpose=MASTER_SHUFFLE)

    def keys(start: int, count: int) -> npt.NDArray[np.int64]:
        ascending = np.arange(start + 1, start + count + 1, dtype=np.int64)
        return ascending if order == "sorted" else permutation.apply(ascending)

    return keys


def _drawn_keys(rows: int, domain: int, seed: int, order: Order) -> _KeySource:
    word = random_words(seed, MASTER_KEYS, 1)[0]
    passed = np.zeros(1)  # how far the order statistics have come, as -log(1 - quantile)

    def keys(start: int, count: int) -> npt.NDArray[np.int64]:
        drawn = np.empty(count, dtype=np.int64)
        if order == "sorted":
            _draw_ascending(word, start, rows, domain, passed, drawn)
        else:
            _draw_uniform(word, start, domain, drawn)
        return drawn

    return keys


@kernel
def _draw_uniform(word: np.uint64, start: int, domain: int, drawn: npt.NDArray[np.int64]) -> None:
    for i in range(drawn.size):
        unit = np.int64(mix(word + np.uint64(start + i) * _GOLDEN) >> np.uint64(11)) * _TO_UNIT
        drawn[i] = min(int(unit * domain), domain - 1) + 1


@kernel
def _draw_ascending(
    word: np.uint64,
    start: int,
    rows: int,
    domain: int,
    passed: npt.NDArray[np.float64],
    drawn: npt.NDArray[np.int64],
) -> None:
    # Gaps between sorted exponential variates are exponential, with mean 1 / (number of variates still to come).
    for i in range(drawn.size):
        unit = (np.int64(mix(word + np.uint64(start + i) * _GOLDEN) >> np.uint64(11)) + 1) * _TO_UNIT
        passed[0] -= math.log(unit) / (rows - start - i)
        drawn[i] = min(int(-math.expm1(-passed[0]) * domain), domain - 1) + 1


@kernel
def _fill(
    key: npt.NDArray[np.int64],
    identity: npt.NDArray[np.int64],
    column_keys: npt.NDArray[np.uint64],
    integers: npt.NDArray[np.int64],
    floats: npt.NDArray[np.float64],
    labels: npt.NDArray[np.uint8],
) -> None:
    rows = key.size
    count = integers.shape[0]
    for column in range(count):
        for i in range(rows):
            word = mix(column_keys[column] + np.uint64(identity[i]) * _GOLDEN)
            integers[column, i] = np.int64(word >> np.uint64(32))
    for column in range(floats.shape[0]):
        for i in range(rows):
            word = mix(column_keys[count + column] + np.uint64(identity[i]) * _GOLDEN)
            floats[column, i] = np.int64(word >> np.uint64(11)) * _TO_UNIT
    for i in range(rows):
        rest = np.uint64(key[i])
        for place in range(_LABEL_DIGITS - 1, -1, -1):
            labels[i, place] = np.uint8(48 + rest % np.uint64(10))
            rest //= np.uint64(10)
        labels[i, _LABEL_DIGITS] = np.uint8(45)
        letters = mix(column_keys[-1] + np.uint64(identity[i]) * _GOLDEN)
        for place in range(_LABEL_DIGITS + 1, _LABEL_BYTES):
            labels[i, place] = np.uint8(65 + (letters & np.uint64(15)))
            letters >>= np.uint64(4)
