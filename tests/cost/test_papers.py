"""The papers' formulas: by hand, against searches, and where the papers say what comes out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import BudgetTooSmallError, ConfigError, OutOfReachError
from millrace.cost import hybridjoin, meshjoin, ssbj, sscj
from millrace.cost.frequencies import Frequencies
from millrace.cost.symbols import Disk, Sizes, UnitCosts

# 3.5 M tuples of 120 bytes, the paper's disk of 2007
SIZES = Sizes(R_t=3_500_000, v_R=120, v_S=20, v_P=8192, v_Q=4, f=1.5)
COSTS = UnitCosts(c_H=0.3e-6, c_O=0.2e-6, c_E=1e-6, c_S=0.5e-6, c_A=1.5e-6, c_F=0.1e-6, c_B=0.4e-6)
DISK = Disk(seek=0.008, bandwidth=60e6)


def test_meshjoin_by_hand() -> None:
    sizes = Sizes(R_t=1_000, v_R=100, v_S=20, v_P=1_000, v_Q=4, f=2, sigma=0.5)
    costs = UnitCosts(c_H=2.0, c_O=4.0, c_E=1.0, c_S=2.0, c_A=3.0)
    disk = Disk(seek=7.0, bandwidth=1_000)
    assert sizes.N_R == 100
    # b = 5 pages, w = 3: buffers 5,000 + 60; 20 loads in a cycle, 60 tuples of 4 + 40 bytes
    assert meshjoin.memory(sizes, b=5, w=3) == 5_000 + 60 + 60 * 44
    # 7 + 5 s to read, 3 · 6 s for the tuples, 50 rows · (2 + 0.5 · 4) s
    assert meshjoin.c_loop(sizes, costs, disk, b=5, w=3) == 12 + 18 + 200
    assert meshjoin.mu(3, 230) == pytest.approx(0.013043, abs=1e-6)
    assert meshjoin.ios_per_tuple(5, 3) == pytest.approx(5 / 3)
    assert meshjoin.ios_per_second(5, 230) == pytest.approx(5 / 230)
    assert meshjoin.keeps_up(0.013, 3, 230)
    assert not meshjoin.keeps_up(0.0131, 3, 230)
    assert meshjoin.w_in(sizes, meshjoin.memory(sizes, 5, 3), 5) == pytest.approx(3)
    # R-MESHJOIN with two loads a step: half as many steps in a cycle, twice the reading
    assert meshjoin.memory(sizes, b=5, w=3, l=2) == 5_000 + 60 + 30 * 44
    assert meshjoin.c_loop(sizes, costs, disk, b=5, w=3, l=2) == 2 * (12 + 200) + 18


def test_r_meshjoin_is_no_faster_with_as_many_waiting_tuples() -> None:
    def rate(l: int) -> float:  # noqa: E741
        b, waiting = 100, 400_000
        w = waiting * l * b / SIZES.N_R
        return meshjoin.mu(w, meshjoin.c_loop(SIZES, COSTS, DISK, b, w, l))

    assert rate(1) == pytest.approx(rate(4)) == pytest.approx(rate(16))


@settings(max_examples=60, deadline=None)
@given(rate=st.floats(100, 300_000), seek=st.floats(1e-4, 0.05), f=st.floats(1, 8), rows=st.integers(10_000, 10**8))
def test_the_closed_form_of_b_takes_the_least_memory(rate: float, seek: float, f: float, rows: int) -> None:
    sizes, disk = Sizes(rows, 120, 20, f=f), Disk(seek, 60e6)

    def needed(b: float) -> float:
        return meshjoin.memory(sizes, b, meshjoin.w_for(sizes, COSTS, disk, rate, b))

    best = meshjoin.b_for_least_memory(sizes, COSTS, disk, rate)
    w = meshjoin.w_for(sizes, COSTS, disk, rate, best)
    assert meshjoin.mu(w, meshjoin.c_loop(sizes, COSTS, disk, best, w)) == pytest.approx(rate)
    searched = min(needed(b) for b in best * np.geomspace(0.2, 5, 401))
    assert needed(best) <= searched * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(M=st.floats(1e6, 1e9), seek=st.floats(1e-4, 0.05), f=st.floats(1, 8))
def test_the_closed_form_of_b_gives_nearly_the_highest_rate(M: float, seek: float, f: float) -> None:
    sizes, disk = Sizes(3_500_000, 120, 20, f=f), Disk(seek, 60e6)

    def rate(b: float) -> float:
        w = meshjoin.w_in(sizes, M, b)
        return meshjoin.mu(w, meshjoin.c_loop(sizes, COSTS, disk, b, w))

    closed = meshjoin.b_for_highest_rate(sizes, COSTS, disk, M)
    searched = max(rate(b) for b in np.geomspace(0.1, M / sizes.v_P * 0.999, 2_000))
    assert rate(closed) >= 0.99 * searched  # the stream buffer is left out of the closed form


def test_whole_pages_are_found_where_the_closed_forms_say() -> None:
    def needed(b: float) -> float:
        return meshjoin.memory(SIZES, b, meshjoin.w_for(SIZES, COSTS, DISK, 6_000, b))

    def rate(b: float) -> float:
        w = meshjoin.w_in(SIZES, 21e6, b)
        return meshjoin.mu(w, meshjoin.c_loop(SIZES, COSTS, DISK, b, w))

    least = min(range(1, 2_000), key=needed)
    assert abs(least - meshjoin.b_for_least_memory(SIZES, COSTS, DISK, 6_000)) <= 0.51
    highest = max(range(1, 2_000), key=rate)
    assert highest == pytest.approx(meshjoin.b_for_highest_rate(SIZES, COSTS, DISK, 21e6), rel=0.02)


def test_shapes_of_the_papers_figures() -> None:
    needed = [meshjoin.memory(SIZES, b, meshjoin.w_for(SIZES, COSTS, DISK, 6_000, b)) for b in range(5, 1_000, 5)]
    falls = np.diff(needed) < 0
    assert falls[0]
    assert not falls[-1]
    assert (np.diff(falls.astype(int)) != 0).sum() == 1, "memory has one minimum"


def test_no_memory_is_enough_when_the_tuples_themselves_take_too_long() -> None:
    with pytest.raises(OutOfReachError, match=r"400,000 tuples/s .*the limit is 333,333 tuples/s") as error:
        meshjoin.b_for_least_memory(SIZES, COSTS, DISK, 400_000)
    assert error.value.nearest == pytest.approx(1 / 3e-6)


def test_hybridjoin_by_hand() -> None:
    sizes = Sizes(R_t=100_000, v_R=100, v_S=20, v_P=10_000, v_Q=12, f=1.4)
    assert hybridjoin.h_S(sizes, 410_000) == 10_000
    assert hybridjoin.memory(sizes, 10_000) == 410_000
    assert hybridjoin.alpha(sizes) == pytest.approx(28 / 40)
    costs, disk = UnitCosts(c_H=1e-6, c_O=1e-5, c_E=1e-5, c_S=1e-5, c_A=1e-5), Disk(0.01, 1e6)
    assert hybridjoin.c_loop(sizes, costs, disk, w=20) == pytest.approx(0.01 + 0.01 + 1e-4 + 8e-4)
    # uniform pages: x + x / (1 + x) = 2 h_S / P = 20, so x = 19.05
    x = (18 + math.sqrt(18**2 + 80)) / 2
    assert x + x / (1 + x) == pytest.approx(20)
    assert hybridjoin.w(sizes, Frequencies.uniform(100_000), 10_000) == pytest.approx(1 + x, rel=1e-4)


def test_sscj_by_hand_and_its_best_cache() -> None:
    sizes = Sizes(R_t=1_000_000, v_R=120, v_S=20, v_Q=12, f=1.5)
    assert sscj.memory(sizes, d=100, h_R=50, h_S=1_000) == 12_000 + 50 * 128 + 42_000
    assert sscj.h_S(sizes, 60_400, 100, 50) == pytest.approx(1_000)
    assert sscj.h_S(sizes, 60_000, 100, 50, recorder=0) == pytest.approx(1_000)  # CACHEJOIN
    assert sscj.c_loop(sizes, UnitCosts(1, 2, 3, 4, 5, 6), Disk(7, 1e9), d=0, w_N=10, w_S=1) == 7 + 14 + 70
    assert sscj.mu(10, 1, 91) == pytest.approx(11 / 91)
    zipf, disk = Frequencies.zipf(1.0, 1_000_000), Disk(0.006, 120e6)
    best = sscj.best_h_R(sizes, UnitCosts(), disk, zipf, 6e6, 250)
    plain, cached = (sscj.rate(sizes, UnitCosts(), disk, zipf, 6e6, 250, h_R) for h_R in (0, best))
    assert cached > 2 * plain
    uniform = Frequencies.uniform(1_000_000)
    assert sscj.best_h_R(sizes, UnitCosts(), disk, uniform, 6e6, 250) == 0
    with pytest.raises(BudgetTooSmallError, match="the least is"):
        sscj.rate(sizes, UnitCosts(), disk, zipf, 10_000, 250, 0)


def test_ssbj_by_hand() -> None:
    sizes = Sizes(R_t=1_000, v_R=120, v_S=20, v_Q=4, f=2)
    assert ssbj.memory(sizes, b=100, h_R=30, w_S=5) == 160 * 120 + 50 * 44
    costs, disk = UnitCosts(c_H=1, c_O=2, c_E=3, c_S=4, c_A=5, c_B=6), Disk(7, 1_000)
    assert ssbj.c_loop(sizes, costs, disk, b=100, w_N=10, w_S=5) == 7 + 12 + 700 + 10 * 7 + 5 * 14
    assert ssbj.mu(10, 5, 859) == pytest.approx(15 / 859)
    assert ssbj.keeps_up(15 / 859, 10, 5, 859)
    slow = UnitCosts(c_S=0.01, c_A=0.01)
    w = ssbj.w_for(sizes, slow, disk, 20, 100, 0.25)
    assert ssbj.mu(w / 4, 3 * w / 4, ssbj.c_loop(sizes, slow, disk, 100, w / 4, 3 * w / 4)) == pytest.approx(20)
    with pytest.raises(OutOfReachError, match="the limit is 57 tuples/s"):
        ssbj.w_for(sizes, slow, disk, 60, 100, 0.25)


@pytest.mark.parametrize("M", [1e7, 1e8, 1e9])
def test_ssbj_settles_where_memory_and_inequality_agree(M: float) -> None:
    sizes, zipf, disk = Sizes(20_000_000, 120, 20), Frequencies.zipf(1.0, 20_000_000), Disk(0.006, 120e6)
    at = ssbj.settled(sizes, zipf, M, 10_000)
    assert ssbj.memory(sizes, 10_000, at.h_R, at.w_S) == pytest.approx(M, rel=1e-3)
    n = zipf.expected((at.w_N + at.w_S) * sizes.R_t / 10_000)
    assert at.h_R == pytest.approx(zipf.counts[n * 20 > 120].sum(), rel=0.2)
    rate = ssbj.mu(at.w_N, at.w_S, ssbj.c_loop(sizes, UnitCosts(), disk, 10_000, at.w_N, at.w_S))
    assert ssbj.memory_for(sizes, UnitCosts(), disk, zipf, rate, 10_000) == pytest.approx(M, rel=0.02)


@pytest.mark.parametrize(("f", "hits", "ratios"), [(4.8, (0.58, 0.72), (2.2, 3.3)), (1.0, (0.67, 0.82), (2.8, 4.8))])
def test_ssbj_with_a_hundred_million_rows(f: float, hits: tuple[float, float], ratios: tuple[float, float]) -> None:
    """1 and 10 % memory, skew 1, keys drawn with repetition from as many: multiplicities are Poisson(1)."""
    rows = [(m, math.exp(-1) / math.factorial(m)) for m in range(12)]
    sizes, zipf = Sizes(100_000_000, 120, 20, f=f), Frequencies.zipf(1.0, 100_000_000)
    for share, hit, ratio in zip((0.01, 0.1), hits, ratios, strict=True):
        M, b = share * 12e9, 100_000
        at = ssbj.settled(sizes, zipf, M, b, rows)
        mesh = (M - b * sizes.v_R) * b / sizes.R_t / sizes.q
        assert at.hit_share == pytest.approx(hit, abs=0.01)
        assert (at.w_N + at.w_S) / mesh == pytest.approx(ratio, rel=0.03)


def test_symbols_refuse_nonsense() -> None:
    with pytest.raises(ConfigError, match="v_R: expected a number above 0; got 0"):
        Sizes(1, 0, 20)
    with pytest.raises(ConfigError, match="bandwidth > 0"):
        Disk(0.1, 0)
    with pytest.raises(ConfigError, match="at least two lengths"):
        Disk.measured([5, 5], [1, 2])
    with pytest.raises(ConfigError, match="longer reads took no longer"):
        Disk.measured([1, 2], [2, 1])
    with pytest.raises(BudgetTooSmallError, match="disk buffer"):
        ssbj.settled(SIZES, Frequencies.uniform(10), 100, 1_000)
