from __future__ import annotations

import math
import tracemalloc
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import ConfigError
from millrace.datasets import STREAM_SCHEMA, ZipfSampler, zipf_stream
from millrace.datasets.zipf import MAX_DOMAIN, Permutation, harmonic

SKEWS = [0.0, 0.5, 1.0, 1.5]


def chi_square_excess(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> float:
    """Standard deviations by which chi-square exceeds its mean; ``expected`` must not be small anywhere."""
    assert expected.min() > 5
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("domain", [2, 3, 50, 64])
@pytest.mark.parametrize("skew", [*SKEWS, 3.0])
def test_frequencies_follow_the_law(domain: int, skew: float) -> None:
    draws = 400_000
    zipf = ZipfSampler(domain, skew, seed=11, shuffled=False)
    counts = np.bincount(zipf.sample(draws), minlength=domain + 1)
    assert counts[0] == 0
    assert len(counts) == domain + 1
    expected = zipf.probability(np.arange(1, domain + 1)) * draws
    common = expected > 5
    assert abs(chi_square_excess(counts[1:][common], expected[common])) < 4
    assert counts[1:][~common].sum() <= expected[~common].sum() + 5 * math.sqrt(expected[~common].sum() + 1)


@pytest.mark.parametrize("skew", SKEWS)
def test_shuffled_keys_have_the_probability_of_their_rank(skew: float) -> None:
    domain, draws = 40, 200_000
    zipf = ZipfSampler(domain, skew, seed=5)
    counts = np.bincount(zipf.sample(draws), minlength=domain + 1)
    ranks = np.arange(1, domain + 1)
    assert abs(chi_square_excess(counts[zipf.keys_of(ranks)], zipf.probability(ranks) * draws)) < 4


@pytest.mark.parametrize("skew", [*SKEWS, 0.999999999])
def test_a_domain_of_a_billion_is_cut_at_the_right_quantiles(skew: float) -> None:
    domain, draws = 10**9, 200_000
    ranks = ZipfSampler(domain, skew, seed=3, shuffled=False).sample(draws)
    assert ranks.min() >= 1
    assert ranks.max() <= domain
    for cut in (1, 1000, 10**6, 5 * 10**8):
        share = harmonic(cut, skew) / harmonic(domain, skew)
        error = math.sqrt(share * (1 - share) / draws)
        assert abs((ranks <= cut).mean() - share) <= 5 * error + 1e-9


@pytest.mark.parametrize("skew", [20.0, 60.0, 1000.0, 1e6])
def test_extreme_skew_gives_almost_only_the_first_rank(skew: float) -> None:
    assert ZipfSampler(10**9, skew, shuffled=False).sample(10_000).max() <= 2


@pytest.mark.parametrize("skew", [0.0, 0.3, 0.999999, 1.0, 1.000001, 1.5, 4.0, 30.0])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 100_000])
def test_harmonic_numbers_equal_the_sum(count: int, skew: float) -> None:
    exact = math.fsum(rank**-skew for rank in map(float, range(1, count + 1)))
    assert harmonic(count, skew) == pytest.approx(exact, rel=1e-14)


def test_probabilities_add_up_to_one() -> None:
    for skew in SKEWS:
        assert ZipfSampler(5000, skew).probability(np.arange(1, 5001)).sum() == pytest.approx(1)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 40), max_size=8),
    skew=st.sampled_from([*SKEWS, 2.5]),
    domain=st.integers(1, 10**9),
    shuffled=st.booleans(),
)
def test_draws_do_not_depend_on_batch_sizes(sizes: list[int], skew: float, domain: int, shuffled: bool) -> None:
    whole = ZipfSampler(domain, skew, seed=1, shuffled=shuffled).sample(sum(sizes))
    zipf = ZipfSampler(domain, skew, seed=1, shuffled=shuffled)
    parts = [zipf.sample(size) for size in sizes]
    assert np.array_equal(np.concatenate([*parts, np.empty(0, np.int64)]), whole)


def test_seeds_repeat_and_differ() -> None:
    first = ZipfSampler(10**6, 0.5, seed=1).sample(1000)
    assert np.array_equal(first, ZipfSampler(10**6, 0.5, seed=1).sample(1000))
    assert (first == ZipfSampler(10**6, 0.5, seed=2).sample(1000)).mean() < 0.05
    ZipfSampler(10, 1.0, seed=10**30).sample(1)


def test_state_resumes_in_another_sampler() -> None:
    zipf = ZipfSampler(1000, 1.5, seed=9)
    zipf.sample(777)
    other = ZipfSampler(1000, 1.5, seed=9)
    other.restore(zipf.state())
    assert np.array_equal(zipf.sample(100), other.sample(100))


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**70))
def test_permutations_are_bijections(size: int, seed: int) -> None:
    images = Permutation(size, seed=seed).apply(np.arange(1, size + 1))
    assert np.array_equal(np.sort(images), np.arange(1, size + 1))


def test_permutations_of_huge_domains_stay_inside_and_are_injective() -> None:
    for size in (2**31 - 1, 10**9, 2**32 + 1, MAX_DOMAIN):
        values = np.concatenate([np.arange(1, 20_001), np.arange(size - 19_999, size + 1)])
        images = Permutation(size).apply(values)
        assert images.min() >= 1
        assert images.max() <= size
        assert len(np.unique(images)) == len(values)


def test_popular_keys_are_spread_over_the_key_space() -> None:
    domain = 10**7
    keys = ZipfSampler(domain, 1.0, seed=4).keys_of(np.arange(1, 2001))
    tenths = np.bincount((keys - 1) * 10 // domain, minlength=10)
    assert abs(chi_square_excess(tenths, np.full(10, 200.0))) < 4
    assert abs(np.corrcoef(np.arange(2000), keys)[0, 1]) < 0.1


def test_permutations_of_different_seeds_differ() -> None:
    values = np.arange(1, 1001)
    assert (Permutation(1000, seed=1).apply(values) == Permutation(1000, seed=2).apply(values)).mean() < 0.05
    assert (Permutation(1000, seed=1).apply(values) == values).mean() < 0.05


def test_memory_does_not_grow_with_the_domain() -> None:
    ZipfSampler(10, 1.0).sample(1)  # compile
    tracemalloc.start()
    try:
        zipf = ZipfSampler(10**8, 1.0)
        zipf.sample(10_000)
        zipf.probability([1, 10**8])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((0, 1.0), "domain: expected a whole number from 1 to .*; got 0"),
        ((2.5, 1.0), "domain: .*; got 2.5"),
        ((True, 1.0), "domain: .*; got True"),
        ((MAX_DOMAIN + 1, 1.0), "domain: "),
        ((10, -0.1), "skew: expected a finite number of at least 0; got -0.1"),
        ((10, math.nan), "skew: .*; got nan"),
        ((10, math.inf), "skew: .*; got inf"),
        ((10, "steep"), "skew: expected a number of at least 0; got 'steep'"),
    ],
)
def test_bad_options_are_named(options: tuple[int, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ZipfSampler(*options)


def test_bad_arguments_are_named() -> None:
    zipf = ZipfSampler(10, 1.0)
    with pytest.raises(ConfigError, match="seed: expected a whole number of at least 0; got -1"):
        ZipfSampler(10, 1.0, seed=-1)
    with pytest.raises(ConfigError, match=r"n: .*; got -1"):
        zipf.sample(-1)
    with pytest.raises(ConfigError, match="ranks: expected whole numbers from 1 to 10; got 0 to 3"):
        zipf.keys_of([0, 3])
    with pytest.raises(ConfigError, match=r"ranks: .*; got 11 to 11"):
        zipf.probability([11])
    with pytest.raises(ConfigError, match=r"ranks: .*; got float64"):
        zipf.probability([1.5])
    with pytest.raises(ConfigError, match="state: "):
        zipf.restore(-1)
    with pytest.raises(ConfigError, match=r"batch_rows: .*; got 0"):
        zipf_stream(10, 1.0, batch_rows=0)


def test_stream_tuples_take_20_bytes_and_are_numbered() -> None:
    table = pa.Table.from_batches(zipf_stream(1000, 1.0, batch_rows=500, batches=4), STREAM_SCHEMA)
    assert table.nbytes == 20 * 2000
    assert table["sid"].to_pylist() == list(range(2000))
    assert set(table["qty"].to_pylist()) == set(range(1, 51))
    assert np.array_equal(table["key"].to_numpy(), ZipfSampler(1000, 1.0).sample(2000))


def test_streams_do_not_depend_on_batch_rows() -> None:
    large = pa.Table.from_batches(zipf_stream(99, 0.7, batch_rows=60, batches=2, seed=8))
    small = pa.Table.from_batches(zipf_stream(99, 0.7, batch_rows=8, batches=15, seed=8))
    assert large.equals(small)


def test_streams_are_endless_by_default() -> None:
    assert sum(batch.num_rows for batch in islice(zipf_stream(10, 1.0, batch_rows=2), 100)) == 200
    assert list(zipf_stream(10, 1.0, batch_rows=2, batches=0)) == []
