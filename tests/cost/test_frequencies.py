"""Frequencies in buckets against every key by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.core.bisection import increasing_root
from millrace.core.errors import ConfigError
from millrace.cost.frequencies import Frequencies, at_least
from millrace.cost.page_loads import PageLoads
from millrace.cost.symbols import Disk, Sizes, UnitCosts
from millrace.datasets import ZipfSampler

KEYS = 30_000


def explicit(skew: float, keys: int = KEYS) -> npt.NDArray[np.float64]:
    weights = np.arange(1, keys + 1) ** -skew
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


@settings(max_examples=60, deadline=None)
@given(skew=st.floats(0, 2), keys=st.integers(1, 50_000))
def test_buckets_hold_all_keys_and_all_of_the_stream(skew: float, keys: int) -> None:
    zipf = Frequencies.zipf(skew, keys)
    assert zipf.keys == keys
    assert zipf.share(np.ones_like(zipf.each)) == pytest.approx(1)
    assert (np.diff(zipf.each) <= 1e-15).all()
    distinct = -np.expm1(-1_000 * explicit(skew, keys)).sum()
    assert zipf.distinct(1_000) == pytest.approx(distinct, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(skew=st.floats(0, 2), h=st.integers(0, KEYS))
def test_the_hottest_keys_have_their_share(skew: float, h: int) -> None:
    zipf = Frequencies.zipf(skew, KEYS)
    assert zipf.share(zipf.hottest(h)) == pytest.approx(explicit(skew)[:h].sum(), abs=2e-3)


@settings(max_examples=60, deadline=None)
@given(skew=st.floats(0, 1.5), tuples=st.floats(100, 1e6), v_S=st.floats(1, 200))
@example(skew=0.5, tuples=667_165.0, v_S=9.5)  # the border lies in the middle of a large bucket
def test_the_inequality_splits_as_key_by_key(skew: float, tuples: float, v_S: float) -> None:
    """Only the bucket in which the border lies is rounded, up or down."""
    shares = explicit(skew)
    zipf = Frequencies.zipf(skew, KEYS)
    split = zipf.balanced(tuples, 120, v_S)
    fewer, more = (
        int(((n * shares * v_S > 120) & (n * shares >= 1)).sum()) for n in (tuples * (1 - 1e-4), tuples * (1 + 1e-4))
    )
    ends = np.concatenate(([0], np.cumsum(zipf.counts))).astype(np.int64)
    least, most = ends[ends <= fewer].max(), ends[ends >= more].min()
    assert least <= split.keys <= most
    assert shares[:least].sum() - 2e-3 <= split.share <= shares[:most].sum() + 2e-3
    assert split.rows == split.keys


def test_the_inequality_with_several_rows_to_a_key_and_none() -> None:
    flat = Frequencies.uniform(100)
    # 600 tuples: 6 for a key, 120 bytes; two rows of 50 fit, three do not, none always
    split = flat.balanced(600, 50, 20, [(0, 0.25), (2, 0.25), (3, 0.5)])
    assert (split.keys, split.rows, split.share) == (50, 50, 0.5)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.3])
@pytest.mark.parametrize("d", [1, 20, 300])
def test_page_loads_against_pages_one_by_one(skew: float, d: int) -> None:
    """Laplace transform over buckets against the same fluid solved over explicit pages of shuffled keys."""
    shares = np.random.default_rng(5).permutation(explicit(skew))
    pages = np.add.reduceat(shares, np.arange(0, KEYS, d))
    loads = PageLoads(Frequencies.zipf(skew, KEYS), KEYS, d)
    for waiting in (500, 5_000, 50_000):
        span = increasing_root(lambda T: T + (pages * T / (1 + pages * T)).sum(), 2 * waiting, 0, 2 * waiting)
        expected = span / (pages * span / (1 + pages * span)).sum()
        assert loads.per_load(waiting) == pytest.approx(expected, rel=0.02)


def test_page_loads_against_a_queue_that_is_played_out() -> None:
    """Tuples one by one: the oldest one's page is loaded and frees all who wait for it."""
    pages_of = np.random.default_rng(2).permutation(KEYS) // 50
    keys = ZipfSampler(KEYS, 1.0, seed=3, shuffled=False).sample(400_000) - 1
    waiting_for = pages_of[keys]
    room, h_S = dict.fromkeys(range(KEYS // 50), 0), 3_000
    queue, left, loads = 0, 0, 0
    loaded_at = np.full(KEYS // 50, -1)
    inside = 0
    for arrived, page in enumerate(waiting_for.tolist()):
        room[page] += 1
        inside += 1
        if inside < h_S:
            continue
        while queue <= loaded_at[waiting_for[queue]]:
            queue += 1
        head = int(waiting_for[queue])
        loaded_at[head] = arrived
        inside -= room[head]
        if arrived > 40_000:
            left, loads = left + room[head], loads + 1
        room[head] = 0
    predicted = PageLoads(Frequencies.zipf(1.0, KEYS), KEYS, 50).per_load(h_S)
    assert predicted == pytest.approx(left / loads, rel=0.05)


def test_counting_finds_the_hottest_if_enough_is_counted() -> None:
    zipf = Frequencies.zipf(1.0, 1_000_000)
    for keys in (100, 10_000):
        best = zipf.share(zipf.hottest(keys))
        seen = [zipf.share(zipf.noticed(keys, tuples)) for tuples in (1e4, 1e6, 1e8)]
        assert seen == sorted(seen)
        assert seen[-1] == pytest.approx(best, rel=0.03)
        assert float((zipf.counts * zipf.noticed(keys, 1e6)).sum()) == pytest.approx(keys, rel=0.01)
    assert zipf.share(zipf.noticed(0, 1e6)) == 0
    assert zipf.share(zipf.noticed(1e7, 1e6)) == pytest.approx(1)


def test_chances_of_poisson_numbers() -> None:
    for mean in (0.5, 3.0, 8.0, 40.0):
        for least in (1, 2, 7, 40):
            exact = 1 - sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(least))
            assert at_least(least, np.array([mean]))[0] == pytest.approx(exact, abs=0.01)
    assert at_least(3, np.array([0.0]))[0] == 0


def test_what_a_cache_leaves() -> None:
    zipf = Frequencies.zipf(1.0, 1_000)
    rest = zipf.without(zipf.hottest(10))
    assert rest.keys == 990
    assert rest.each[0] == pytest.approx(explicit(1.0, 1_000)[10] / explicit(1.0, 1_000)[10:].sum(), rel=0.01)
    with pytest.raises(ConfigError, match=r"kept: expected less than all keys, .*; got all keys"):
        zipf.without(zipf.hottest(1_000))


def test_measured_counts_tell_what_zipf_does() -> None:
    sample = ZipfSampler(100_000, 1.0, seed=4).sample(200_000)
    counts = np.bincount(sample)
    measured, zipf = Frequencies.measured(counts, 100_000), Frequencies.zipf(1.0, 100_000)
    assert measured.keys == 100_000
    for keys in (100, 5_000, 50_000):
        assert measured.share(measured.hottest(keys)) == pytest.approx(zipf.share(zipf.hottest(keys)), abs=0.08)
    ours, exact = (PageLoads(f, 100_000, 100).per_load(5_000) for f in (measured, zipf))
    assert ours == pytest.approx(exact, rel=0.05)
    assert Frequencies.measured([2, 2]).each.tolist() == [0.5]


def test_a_hundred_million_keys_are_as_many_buckets_as_a_few() -> None:
    zipf = Frequencies.zipf(1.0, 100_000_000)
    assert len(zipf.counts) < 200
    assert PageLoads(zipf, 100_000_000, 256).per_load(1_000_000) > 2


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="skew"):
        Frequencies.zipf(-1, 5)
    with pytest.raises(ConfigError, match=r"keys: expected a whole number of at least 1 and at most 10\*\*15; got 0"):
        Frequencies.uniform(0)
    with pytest.raises(ConfigError, match="add up to 1"):
        Frequencies([1], [0.5])
    with pytest.raises(ConfigError, match="counts of 2 keys; expected at most 1"):
        Frequencies.measured([1, 2], 1)
    with pytest.raises(ConfigError, match="at least one key"):
        Frequencies.measured([])
    for skew in ("a", True, None, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="skew: expected a finite number of at least 0; got"):
            Frequencies.zipf(skew, 5)  # type: ignore[arg-type]
    for keys in (10**18, 10**15 + 1, 10**5000, 5.0, True, None, "5"):
        for made in (Frequencies.uniform, lambda keys: Frequencies.zipf(1, keys)):
            with pytest.raises(ConfigError, match="keys: expected a whole number"):
                made(keys)  # type: ignore[arg-type]
    for counts in ("ab", None, [-1, 2], [float("nan")]):
        with pytest.raises(ConfigError, match="frequencies: expected counts"):
            Frequencies.measured(counts)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="keys: expected a whole number"):
        Frequencies.measured([1, 2], "many")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected numbers of keys; got 'a'"):
        Frequencies("a", [1])


@pytest.mark.parametrize("skew", [0, 0.5, 1, 2.0, 300])
def test_as_many_keys_as_there_can_be(skew: float) -> None:
    most = Frequencies.zipf(np.float32(skew), np.int64(10**15))  # type: ignore[arg-type]
    assert most.keys == pytest.approx(1e15)
    assert (most.each >= 0).all()


@pytest.mark.parametrize("wrong", ["a", None, float("nan"), -1, True])
def test_costs_are_numbers(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="c_H: expected seconds, at least 0; got"):
        UnitCosts(c_H=wrong)
    with pytest.raises(ConfigError, match="disk: expected seek"):
        Disk(wrong, 1e6)
    with pytest.raises(ConfigError, match="v_R: expected a number above 0"):
        Sizes(R_t=5, v_R=wrong, v_S=8)
