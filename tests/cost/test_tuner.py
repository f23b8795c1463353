"""The tuner against searches by brute force, and what it says when nothing will do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import BudgetTooSmallError, OutOfReachError
from millrace.cost import meshjoin
from millrace.cost.engine import PREDICTED, predict
from millrace.cost.engine_room import least_memory
from millrace.cost.frequencies import Frequencies
from millrace.cost.symbols import Disk, Sizes, UnitCosts
from millrace.cost.tuner import flat_region, for_memory, for_rate, memory_for
from millrace.cost.workload import Workload

ZIPF = Frequencies.zipf(1.0, 1_000_000)
FACED = Workload(1_000_000, 120.0, 52.0, Disk(0.006, 120e6), ZIPF, 155.0)


def rates(workload: Workload, algorithm: str, memory: int, places: int = 80) -> dict[int, float]:
    found = {}
    for b in np.unique(np.geomspace(1, memory // 9, places).astype(int)).tolist():
        if least_memory(workload, b) <= memory:
            found[b] = predict(workload, algorithm, memory, b=b).rate
    return found


@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj", "hybridjoin"])
def test_the_best_b_is_as_good_as_any(algorithm: str) -> None:
    tuned = for_memory(FACED, algorithm, 2_000_000)
    searched = rates(FACED, algorithm, 2_000_000)
    assert tuned.rate >= 0.97 * max(searched.values())
    assert tuned.rate >= predict(FACED, algorithm, 2_000_000).rate
    low, high = flat_region(FACED, tuned)
    assert low <= tuned.b <= high
    for b in np.linspace(low, high, 7).astype(int).tolist():
        assert predict(FACED, algorithm, 2_000_000, b=b).rate >= 0.93 * tuned.rate
    outside = [b for b in searched if b < 0.9 * low or b > 1.1 * high]
    assert all(searched[b] < 0.96 * tuned.rate for b in outside)


def test_sscj_gets_a_cache_that_suits_the_stream() -> None:
    skewed = for_memory(FACED, "sscj", 2_000_000)
    tried = [predict(FACED, "sscj", 2_000_000, b=skewed.b, cache_share=share).rate for share in (0.05, 0.3, 0.6, 0.9)]
    assert skewed.rate >= 0.95 * max(tried)


@pytest.mark.parametrize("algorithm", [name for name in PREDICTED if name != "lookup"])
def test_rate_and_memory_are_two_sides_of_one_thing(algorithm: str) -> None:
    plain = predict(FACED, algorithm, 2_000_000)
    back = memory_for(FACED, algorithm, plain.rate)
    assert back.rate >= plain.rate
    assert back.memory == pytest.approx(2_000_000, rel=0.03)
    tuned = for_rate(FACED, algorithm, plain.rate)
    assert tuned.rate >= plain.rate
    assert tuned.memory <= back.memory
    again = predict(FACED, algorithm, tuned.memory, b=tuned.b, cache_share=tuned.cache_share or 0.3)
    assert again.rate == tuned.rate


def test_memory_is_nothing_to_a_look_up() -> None:
    rate = predict(FACED, "lookup", 2_000_000).rate
    found = for_rate(FACED, "lookup", rate)
    assert found.memory <= 1.1 * least_memory(FACED)
    assert flat_region(FACED, found) == (0, 0)


@settings(max_examples=15, deadline=None)
@given(seek=st.floats(1e-3, 0.05), memory=st.integers(2_000_000, 50_000_000))
def test_the_papers_closed_form_is_near_where_every_load_seeks(seek: float, memory: int) -> None:
    """The engine's load buffer has 8 bytes of a row: that is v_R for the closed form, and v_P is one row.

    The engine keeps a record of each step in the queue too, which the paper leaves out; it counts if loads are short.
    """
    disk, even = Disk(seek, 120e6), Frequencies.uniform(10_000_000)
    workload = Workload(10_000_000, 120.0, 52.0, disk, even, leave_early=False, every_load_seeks=True)
    sizes = Sizes(R_t=10_000_000, v_R=8, v_P=8, v_S=42, v_Q=8)
    closed = meshjoin.b_for_highest_rate(sizes, UnitCosts(), Disk(seek, 120e6 * 8 / 120), memory)
    at_closed = predict(workload, "meshjoin", memory, b=int(closed)).rate
    assert for_memory(workload, "meshjoin", memory).rate == pytest.approx(at_closed, rel=0.08)


def test_too_little_memory_says_the_least() -> None:
    with pytest.raises(BudgetTooSmallError, match="the least is") as error:
        for_memory(FACED, "meshjoin", 1_000)
    assert error.value.minimum == least_memory(FACED)
    with pytest.raises(BudgetTooSmallError, match="the least is"):
        memory_for(FACED, "hybridjoin", 10, most=1_000)


def test_too_high_a_rate_says_the_nearest_and_why() -> None:
    with pytest.raises(OutOfReachError, match=r"up to 1\.0 MB; the highest rate is .* the disk is the limit") as error:
        for_rate(FACED, "meshjoin", 1e9, most=1_000_000)
    assert error.value.nearest == pytest.approx(predict(FACED, "meshjoin", 1_000_000).rate, rel=0.01)
    slow = Workload(1_000_000, 120.0, 52.0, FACED.disk, ZIPF, 155.0, UnitCosts(c_A=1e-5))
    with pytest.raises(OutOfReachError, match="a tuple takes at least 1e-05 s without disk reads") as error:
        for_rate(slow, "meshjoin", 150_000)
    assert error.value.nearest < 100_000
