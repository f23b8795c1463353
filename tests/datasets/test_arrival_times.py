from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from millrace.core.errors import ConfigError
from millrace.datasets.arrival_times import bursts, exponential, pareto, steady, with_stalls

SEEDED: list[Callable[..., Any]] = [exponential, pareto, bursts, lambda *a, **k: bursts(*a, shape=1.5, **k)]


@pytest.mark.parametrize("make", SEEDED)
def test_times_ascend_and_depend_on_the_seed_alone(make: Callable[..., Any]) -> None:
    times = make(5000, seed=3)
    assert times.shape == (5000,)
    assert times.dtype == np.float64
    assert times[0] > 0
    assert (np.diff(times) >= 0).all()
    assert np.array_equal(times, make(5000, seed=3))
    assert not np.array_equal(times, make(5000, seed=4))
    assert len(make(0)) == 0


def test_exponential_gaps() -> None:
    gaps = np.diff(exponential(200_000, 0.01, seed=1))
    assert gaps.mean() == pytest.approx(0.01, rel=0.02)
    assert gaps.std() == pytest.approx(0.01, rel=0.02)
    assert (gaps > 0.01).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_pareto_gaps() -> None:
    gaps = np.diff(pareto(200_000, 0.01, shape=3.0, seed=1))
    assert gaps.mean() == pytest.approx(0.01, rel=0.02)
    least = 0.01 * 2 / 3
    assert gaps.min() == pytest.approx(least, rel=0.001)
    assert (gaps > 2 * least).mean() == pytest.approx(2.0**-3, abs=0.005)


@pytest.mark.parametrize("shape", [None, 3.0])
def test_bursts_and_pauses(shape: float | None) -> None:
    gaps = np.diff(bursts(200_000, 1e-6, tuples=100, pause=1.0, shape=shape, seed=2))
    pauses = gaps[gaps > 1e-4]
    assert len(pauses) == pytest.approx(2000, rel=0.1)
    assert pauses.mean() == pytest.approx(1.0, rel=0.1)
    assert gaps[gaps <= 1e-4].mean() == pytest.approx(1e-6, rel=0.02)
    if shape:
        assert pauses.min() == pytest.approx(2 / 3, rel=0.01)


def test_bursts_of_one_pause_after_every_tuple() -> None:
    assert np.diff(bursts(50, 1e-9, tuples=1, pause=1.0)).min() > 1e-6


def test_stalls_are_a_share_of_the_time_their_fragment_took() -> None:
    before = exponential(1000, seed=5)
    after = with_stalls(before, 30, fragments=10)
    gaps = np.diff(after) - np.diff(before)
    where = np.flatnonzero(gaps > 1e-9)
    assert where.tolist() == list(range(99, 999, 100)), "after each fragment of 100 tuples"
    lasts = before[99::100]
    assert gaps[where] == pytest.approx(0.3 * np.diff(lasts, prepend=0)[:-1])
    assert after[-1] == pytest.approx(before[-1] + 0.3 * lasts[-2])
    assert np.array_equal(with_stalls(before, 0), before)
    assert np.array_equal(with_stalls(before, 50, fragments=1), before)


def test_more_fragments_than_tuples() -> None:
    assert with_stalls([1, 2], 100, fragments=10).tolist() == [1, 3]
    assert len(with_stalls([], 10)) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: exponential(-1), "count: expected a whole number of at least 0; got -1"),
        (lambda: exponential(5, 0), "gap: expected seconds above 0; got 0"),
        (lambda: steady(5, -1.0), "gap: expected seconds above 0; got -1"),
        (lambda: pareto(5, shape=1), "shape: expected a number above 1; got 1"),
        (lambda: bursts(5, shape=0.5), "shape: expected a number above 1; got 0.5"),
        (lambda: bursts(5, tuples=0), "tuples: expected a number of at least 1; got 0"),
        (lambda: with_stalls([1], -5), "percent: expected a number of at least 0; got -5"),
        (lambda: with_stalls([1], 5, fragments=0), "fragments: expected a whole number of at least 1; got 0"),
        (lambda: exponential(5, seed=-1), "seed: expected a whole number of at least 0; got -1"),
    ],
)
def test_bad_options_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
