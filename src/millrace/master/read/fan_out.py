"""Functions that tell how many master rows a key has, and how much of a stream has matching master rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.core.errors import ConfigError
from millrace.kernels import bitfilter
from millrace.master.read.readable_store import ReadableStore

Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BLOCK_ROWS = 65_536
_MOST_CODES = 65_536


@dataclass(frozen=True)
class FanOut:
    """Numbers of rows and distinct keys of a master, and the mean and the largest number of rows per key."""

    rows: int
    keys: int
    mean: float
    largest: int


def fan_out(store: ReadableStore) -> FanOut:
    """Return how many rows the keys of a store have, from its manifest alone.

    >>> import tempfile, pyarrow as pa
    >>> from millrace.master.store import MasterStore
    >>> store = MasterStore.build(pa.table({"k": [1, 2, 2, 2]}), tempfile.mkdtemp() + "/m", key="k")
    >>> fan_out(store)
    FanOut(rows=4, keys=2, mean=2.0, largest=3)
    """
    m = store.manifest
    return FanOut(m.rows, m.keys, m.rows / m.keys if m.keys else 0.0, m.largest_group)


@dataclass(frozen=True)
class Matches:
    """How much of a stream matches a master.

    Parameters
    ----------
    share
        The share of the stream's tuples that have a match.
    rows
        Master rows that a tuple matches on average; a tuple without a match counts as 0.
    exact
        Whether every row that could match was considered. If not, ``share`` and ``rows`` are estimates.
    """

    share: float
    rows: float
    exact: bool


def matches(store: ReadableStore, codes: Codes, shares: Floats | None = None, *, sample: int = 1 << 24) -> Matches:
    """Return what share of a stream has a match, and how many master rows a tuple matches on average.

    Parameters
    ----------
    codes
        Key codes of the stream, all different, such as those of ``StreamStatistics.weighted_keys``; at most 65 536.
    shares
        Share of the stream that each key represents; by default, all keys represent the same share.
    sample
        For a master without an index, about how many of its rows are read, in pages drawn at random with a fixed seed.
        If the master has no more rows than that, all are read. With an index every key is looked up.

    Notes
    -----
    If only some rows are looked at, it is chance which of the few frequent keys have rows among them. So every key then
    counts the same, as if frequent keys had as many rows as others; and ``share`` is ``rows`` divided by the mean
    number of rows of a master key, at most 1.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> from millrace.master.store import MasterStore
    >>> store = MasterStore.build(pa.table({"k": [1, 2, 2, 2]}), tempfile.mkdtemp() + "/m", key="k")
    >>> matches(store, np.array([1, 2, 3, 4]), np.array([0.25, 0.5, 0.25, 0.0]))
    Matches(share=0.75, rows=1.75, exact=True)
    """
    different = len(np.unique(codes))
    if different > _MOST_CODES or different != len(codes):
        raise ConfigError(
            f"codes: expected at most {_MOST_CODES:,} codes, all different; "
            f"got {len(codes):,} codes, {different:,} of them different"
        )
    if shares is not None and (len(shares) != len(codes) or (shares < 0).any()):
        below = int(np.less(shares, 0).sum())
        raise ConfigError(
            f"shares: expected {len(codes):,} shares of at least 0; got {len(shares):,}, {below:,} of them below 0"
        )
    if sample < 1:
        raise ConfigError(f"sample: expected at least one row; got {sample}")
    weights = np.ones(len(codes)) if shares is None else shares
    total = float(weights.sum())
    if total == 0 or store.rows == 0:
        return Matches(0.0, 0.0, True)
    counts, looked_at = _looked_up(store, codes) if store.manifest.indexed else _scanned(store, codes, sample)
    if looked_at == 1:
        return Matches(float(weights @ (counts > 0)) / total, float(weights @ counts) / total, True)
    rows = float(counts.mean()) / looked_at
    return Matches(min(1.0, rows / fan_out(store).mean), rows, False)


def _looked_up(store: ReadableStore, codes: Codes) -> tuple[npt.NDArray[np.int64], float]:
    """Return how many rows each code has in the indexes of all shards, and the share of rows considered, always 1.0."""
    counts = np.zeros(len(codes), np.int64)
    for shard in range(len(store.manifest.shards)):
        counts += store.index(shard).ranges_of(np.ascontiguousarray(codes))[1]
    return counts, 1.0


def _scanned(store: ReadableStore, codes: Codes, sample: int) -> tuple[npt.NDArray[np.int64], float]:
    """Return how many rows each code has in some pages, and the share of all rows that are in these pages."""
    order = np.argsort(codes)
    ordered = codes[order]
    bits = np.zeros(bitfilter.filter_words(len(codes)), np.uint64)
    bitfilter.fill(bits, ordered)
    passed = np.empty(_BLOCK_ROWS, np.int32)
    found = np.zeros(len(codes), np.int64)
    looked_at = 0
    for shard, first, stop in _pages(store, sample):
        looked_at += stop - first
        for begin in range(first, stop, _BLOCK_ROWS):
            block = store.codes(shard)[begin : min(stop, begin + _BLOCK_ROWS)]
            some = block[passed[: bitfilter.candidates(bits, block, passed)]]
            at = np.minimum(np.searchsorted(ordered, some), len(ordered) - 1)
            found += np.bincount(at[ordered[at] == some], minlength=len(codes))
    counts = np.empty(len(codes), np.int64)
    counts[order] = found
    return counts, looked_at / store.rows


def _pages(store: ReadableStore, sample: int) -> list[tuple[int, int, int]]:
    """Return pages as (shard, first row, end row): all, or random ones if the store has more than ``sample`` rows."""
    size = store.manifest.page_rows
    pages = [
        (number, first, min(shard.rows, first + size))
        for number, shard in enumerate(store.manifest.shards)
        for first in range(0, shard.rows, size)
    ]
    if store.rows <= sample:
        return pages
    drawn = np.random.default_rng(0).permutation(len(pages))[: max(1, sample // size)]
    return [pages[i] for i in np.sort(drawn)]
