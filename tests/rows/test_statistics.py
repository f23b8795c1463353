"""Statistics of a stream against exact counts and known distributions."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.budget import MemoryBudget
from millrace.core.errors import BudgetExceededError, BudgetTooSmallError, ConfigError, SchemaError
from millrace.datasets import ZipfSampler
from millrace.datasets.zipf import harmonic
from millrace.rows import stream_statistics as statistics_module
from millrace.rows.rank_curve import RankCurve
from millrace.rows.stream_statistics import LEAST_BYTES, StreamStatistics

Codes = npt.NDArray[np.int64]

KEYS = 1_000_000
TUPLES = 1_000_000
SKEWS = (0.0, 0.5, 1.0, 1.5)
SMALL = 8_192  # bytes; everything that is rare happens soon


def observed(codes: Codes, memory: str | int = "256KiB", batches: int = 7) -> StreamStatistics:
    seen = StreamStatistics(memory)
    for part in np.array_split(codes, batches):
        seen.observe(part)
    seen.check_invariants()
    return seen


def distinct(codes: Codes) -> int:
    return len(np.unique(codes))


@pytest.fixture(scope="module")
def streams() -> dict[float, Codes]:
    return {skew: ZipfSampler(KEYS, skew, seed=11).sample(TUPLES) for skew in SKEWS}


@pytest.fixture(scope="module")
def seen(streams: dict[float, Codes]) -> dict[float, StreamStatistics]:
    return {skew: observed(codes) for skew, codes in streams.items()}


@pytest.mark.parametrize("skew", SKEWS)
class TestZipf:
    def test_distinct_keys(self, skew: float, streams: dict[float, Codes], seen: dict[float, StreamStatistics]) -> None:
        real = distinct(streams[skew])
        assert abs(seen[skew].distinct - real) < 0.05 * real

    def test_skew(self, skew: float, seen: dict[float, StreamStatistics]) -> None:
        assert abs(seen[skew].skew - skew) < 0.05
        assert seen[skew].misfit < 0.02

    @pytest.mark.parametrize("h", [1, 1_000, 10_000, 100_000, 2 * KEYS])
    def test_top_share(self, skew: float, h: int, seen: dict[float, StreamStatistics]) -> None:
        real = harmonic(min(h, KEYS), skew) / harmonic(KEYS, skew)
        assert abs(seen[skew].top_share(h) - real) < 0.03

    def test_the_curve_is_whole_and_falls(self, skew: float, seen: dict[float, StreamStatistics]) -> None:
        keys, probability = seen[skew].frequencies()
        assert keys @ probability == pytest.approx(1)
        assert (keys > 0).all()
        assert (np.diff(probability) <= 0).all()
        assert len(keys) < 5_000

    def test_hot_keys_are_those_that_came_most(
        self, skew: float, streams: dict[float, Codes], seen: dict[float, StreamStatistics]
    ) -> None:
        came = Counter(streams[skew].tolist())
        codes, shares = seen[skew].hot_keys()
        assert (len(codes) > 300) == (skew >= 1)
        errors = shares * TUPLES / np.array([came[code] for code in codes.tolist()]) - 1
        assert np.abs(errors).max(initial=0) < 0.3
        assert len(codes) < 300 or abs(errors.mean()) < 0.01
        most = [code for code, _ in came.most_common(len(codes) // 2)]
        assert set(most) <= set(codes.tolist())


@pytest.mark.parametrize(("tuples", "memory"), [(50_000, "256KiB"), (3_000_000, "256KiB"), (1_000_000, "32KiB")])
@pytest.mark.parametrize("skew", [0.0, 0.75])
def test_streams_and_memory_of_other_sizes(skew: float, tuples: int, memory: str) -> None:
    seen = observed(ZipfSampler(200_000, skew, seed=5).sample(tuples), memory)
    assert abs(seen.skew - skew) < 0.08
    for h in (1_000, 10_000, 100_000):
        assert abs(seen.top_share(h) - harmonic(h, skew) / harmonic(200_000, skew)) < 0.04


# streams that follow no law


def test_nothing() -> None:
    seen = StreamStatistics()
    seen.observe(np.empty(0, np.int64))
    assert (seen.distinct, seen.skew, seen.misfit, seen.top_share(10)) == (0, 0, 0, 0)
    assert [len(array) for array in (*seen.frequencies(), *seen.hot_keys(), *seen.weighted_keys())] == [0] * 6
    assert seen.drifted(StreamStatistics()) == 0


@pytest.mark.parametrize("tuples", [1, 10, 100_000])
def test_one_key(tuples: int) -> None:
    seen = observed(np.full(tuples, -5))
    assert seen.distinct == 1
    assert seen.top_share(100) == pytest.approx(1)
    assert seen.skew == pytest.approx(0, abs=1e-6)
    if tuples > 1:
        assert seen.top_share(1) == pytest.approx(1)


def test_keys_that_never_come_again() -> None:
    seen = observed(np.arange(500_000))
    assert abs(seen.distinct - 500_000) < 25_000
    assert seen.skew < 0.05
    assert seen.top_share(50_000) < 0.01, "a cache of them would answer nothing"
    assert len(seen.hot_keys()[0]) == 0


@pytest.mark.parametrize("hot", [100, 10_000])
def test_two_levels(hot: int) -> None:
    random = np.random.default_rng(2)
    first = random.random(TUPLES) < 0.5
    seen = observed(np.where(first, random.integers(0, hot, TUPLES), random.integers(hot, KEYS, TUPLES)))
    for h in (hot // 2, hot, 100_000):
        real = 0.5 * min(1, h / hot) + 0.5 * max(0, h - hot) / (KEYS - hot)
        assert abs(seen.top_share(h) - real) < 0.03
    assert seen.misfit > 0.1, "this is no Zipf"


def test_few_keys_are_counted_exactly() -> None:
    stream = ZipfSampler(2_000, 1.0, seed=3).sample(300_000)
    seen = observed(stream)
    codes, counts = np.unique(stream, return_counts=True)
    assert seen.distinct == len(codes)
    hot, shares = seen.hot_keys()
    assert dict(zip(hot.tolist(), np.rint(shares * 300_000).tolist(), strict=True)) == {
        code: count for code, count in zip(codes.tolist(), counts.tolist(), strict=True) if count >= 64
    }


def test_a_uniform_stream_over_few_keys() -> None:
    seen = observed(np.random.default_rng(4).integers(0, 3_000, 900_000))
    assert seen.skew < 0.1
    assert seen.misfit < 0.03
    assert abs(seen.top_share(1_000) - 1 / 3) < 0.03


# batches, shards, time


def state(seen: StreamStatistics) -> tuple[object, ...]:
    tables = [np.sort(entries, order="code") for entries in (seen._sample.entries, seen._hot.entries)]
    held = [table[table["count"] > 0].tolist() for table in tables]
    return *held, seen._sample.limit.tolist(), seen._hot.floor.tolist(), seen.tuples, seen.weight


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.8, 1.5]),
    st.lists(st.integers(0, 6_000), max_size=12),
    st.sampled_from([LEAST_BYTES, SMALL]),
)
def test_batches_do_not_matter(seed: int, skew: float, cuts: list[int], memory: int) -> None:
    codes = ZipfSampler(3_000, skew, seed=seed).sample(6_000)
    whole, parts = StreamStatistics(memory), StreamStatistics(memory)
    whole.observe(codes)
    for a, b in itertools.pairwise(sorted([0, 6_000, *cuts])):
        parts.observe(codes[a:b])
        parts.check_invariants()
    assert state(parts) == state(whole)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(0, 8_000), st.sampled_from([0.0, 1.0]), st.booleans())
def test_a_merged_sample_is_that_of_both_streams(seed: int, cut: int, skew: float, uneven: bool) -> None:
    codes = ZipfSampler(5_000, skew, seed=seed).sample(8_000)
    one, two, whole = StreamStatistics(SMALL), StreamStatistics(SMALL * (1 + uneven)), StreamStatistics(SMALL)
    one.observe(codes[:cut])
    two.observe(codes[cut:])
    whole.observe(codes)
    one.merge(two)
    one.check_invariants()
    assert state(one)[0] == state(whole)[0]
    assert one.distinct == whole.distinct
    assert (one.tuples, one.weight) == (8_000, 8_000)


def test_what_a_merged_hot_key_can_have_missed() -> None:
    one, two = (observed(ZipfSampler(50_000, 0.7, seed=seed).sample(100_000), SMALL) for seed in (1, 2))
    before = [{code: rest for code, *rest in state(seen)[1]} for seen in (one, two)]  # type: ignore[attr-defined]
    floors = [int(seen._hot.floor[0]) for seen in (one, two)]
    one.merge(two)
    after = {code: rest for code, *rest in state(one)[1]}  # type: ignore[attr-defined]
    assert len(after) > 20
    for code, (count, missed) in after.items():
        parts = [side.get(code, [0, floor]) for side, floor in zip(before, floors, strict=True)]
        assert [count, missed] == np.sum(parts, axis=0).tolist()
    gone = (before[0].keys() | before[1].keys()) - after.keys()
    for code in gone:
        assert (
            sum(sum(side.get(code, [floor])) for side, floor in zip(before, floors, strict=True)) <= one._hot.floor[0]
        )


@pytest.mark.parametrize("skew", [0.5, 1.0, 1.5])
def test_merged_shards_are_the_stream(
    skew: float, streams: dict[float, Codes], seen: dict[float, StreamStatistics]
) -> None:
    shards = [observed(streams[skew][streams[skew] % 4 == shard]) for shard in range(4)]
    merged = StreamStatistics()
    for shard in shards:
        merged.merge(shard)
        merged.check_invariants()
    assert merged.distinct == seen[skew].distinct
    assert abs(merged.skew - skew) < 0.05
    for h in (1_000, 10_000, 100_000):
        assert abs(merged.top_share(h) - seen[skew].top_share(h)) < 0.02
    assert merged.drifted(seen[skew]) < 0.03


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_decay_keeps_what_the_stream_is_like(skew: float, seen: dict[float, StreamStatistics]) -> None:
    half = seen[skew].copy()
    half.decay()
    half.check_invariants()
    assert (half.tuples, half.weight) == (TUPLES, TUPLES // 2)
    assert abs(half.skew - skew) < 0.05
    for h in (1_000, 10_000, 100_000):
        assert abs(half.top_share(h) - harmonic(h, skew) / harmonic(KEYS, skew)) < 0.03
    expected = distinct(ZipfSampler(KEYS, skew, seed=11).sample(TUPLES // 2))
    assert abs(half.distinct - expected) < 0.05 * expected


def test_decay_follows_a_stream_that_changes() -> None:
    before, after = ZipfSampler(KEYS, 0.5, seed=1), ZipfSampler(20_000, 1.2, seed=2)
    seen, fresh = observed(before.sample(400_000)), observed(after.sample(400_000))
    for _ in range(12):
        seen.decay()
        seen.observe(after.sample(100_000))
        seen.check_invariants()
    assert abs(seen.skew - 1.2) < 0.05
    assert abs(seen.top_share(1_000) - harmonic(1_000, 1.2) / harmonic(20_000, 1.2)) < 0.03
    assert seen.drifted(fresh) < 0.04
    assert seen.distinct < 30_000


def test_the_sample_grows_again_when_few_keys_are_left() -> None:
    seen, random = observed(np.arange(400_000)), np.random.default_rng(1)
    for _ in range(12):
        seen.decay()
        seen.observe(random.integers(-2_000, 0, 50_000))
        seen.check_invariants()
    assert abs(seen.distinct - 2_000) < 100
    assert seen.skew < 0.15
    assert abs(seen.top_share(1_000) - 0.5) < 0.05


def test_hot_keys_outlast_the_growing_of_the_sample() -> None:
    random = np.random.default_rng(1)
    hot = random.integers(-100, 0, 400_000)
    seen = observed(np.where(random.random(400_000) < 0.5, hot, np.arange(400_000)))
    for _ in range(12):
        seen.decay()
        codes, shares = seen.hot_keys()
        assert set(codes.tolist()) <= set(range(-100, 0))
        if seen.weight > 20_000:
            assert len(codes) == 100
            assert shares.sum() == pytest.approx(0.5, abs=0.03)


def test_drift_is_noticed_in_the_curve_and_in_the_hot_keys(seen: dict[float, StreamStatistics]) -> None:
    again = observed(ZipfSampler(KEYS, 1.0, seed=11).sample(2 * TUPLES)[TUPLES:])
    others = observed(ZipfSampler(KEYS, 1.0, seed=12).sample(TUPLES))
    flatter = seen[0.5]
    assert seen[1.0].drifted(seen[1.0]) == 0
    assert seen[1.0].drifted(again) < 0.03
    hot = seen[1.0].hot_keys()[1].sum()
    assert hot - 0.05 < seen[1.0].drifted(others) < hot, "all hot keys are others, the curve is the same"
    assert seen[1.0].frequencies().distance(others.frequencies()) < 0.02
    real = [harmonic(h, 1.0) / harmonic(KEYS, 1.0) - harmonic(h, 0.5) / harmonic(KEYS, 0.5) for h in range(1, 9_999, 9)]
    assert seen[1.0].drifted(flatter) == pytest.approx(max(real), abs=0.03)
    assert seen[1.0].drifted(others) == others.drifted(seen[1.0])


def test_a_key_that_becomes_hot_is_noticed() -> None:
    stream = ZipfSampler(100_000, 0.5, seed=1).sample(300_000)
    with_one = np.where(np.random.default_rng(1).random(300_000) < 0.1, np.int64(-1), stream)
    assert observed(stream).drifted(observed(with_one)) == pytest.approx(0.1, abs=0.04)


def test_weighted_keys_stand_for_the_stream(streams: dict[float, Codes], seen: dict[float, StreamStatistics]) -> None:
    for skew in SKEWS:
        codes, shares = seen[skew].weighted_keys()
        assert shares.sum() == pytest.approx(1)
        assert distinct(codes) == len(codes)
        assert abs(shares[codes % 3 == 0].sum() - (streams[skew] % 3 == 0).mean()) < 0.03


def test_counts_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_module, "_MOST_WEIGHT", 10_000)
    one, two = StreamStatistics(SMALL), StreamStatistics(SMALL)
    for seed in range(20):
        one.observe(ZipfSampler(1_000, 1.0, seed=1).sample(1_000 * (seed + 1))[-1_000:])
        two.observe(ZipfSampler(1_000, 1.0, seed=1).sample(1_000 * (seed + 1))[-1_000:])
        assert one.weight <= 10_000
    one.observe(np.zeros(30_000, np.int64))
    one.merge(two)
    one.check_invariants()
    assert one.weight <= 10_000
    assert one.tuples == 70_000


# memory, and what is refused


@pytest.mark.parametrize("memory", [LEAST_BYTES, LEAST_BYTES + 1, "100kB", "256KiB"])
def test_memory_is_taken_at_once_and_kept_to(memory: str | int) -> None:
    budget = MemoryBudget(300_000)
    seen = StreamStatistics(memory, budget=budget)
    taken = budget.used
    assert budget.parts() == {"statistics": seen.nbytes}
    for skew in (0.0, 1.0):
        seen.observe(ZipfSampler(10**9, skew).sample(100_000))
        seen.check_invariants()
    arrays = [*seen._sample, *seen._hot]
    assert 0.7 * taken < sum(array.nbytes for array in arrays) <= taken + 64
    assert budget.used == taken
    seen.close()
    assert budget.used == 0


def test_too_little_memory() -> None:
    with pytest.raises(BudgetTooSmallError, match=r"statistics: expected at least 4.1 kB of memory; got 4.1 kB"):
        StreamStatistics(LEAST_BYTES - 1)
    with pytest.raises(BudgetExceededError, match="statistics"):
        StreamStatistics(budget=MemoryBudget(1000))


def test_what_is_no_array_of_codes() -> None:
    for wrong in (np.zeros(3), np.zeros(3, np.int32), np.zeros((2, 2), np.int64)):
        with pytest.raises(SchemaError, match="codes: expected one int64 for each tuple"):
            StreamStatistics().observe(wrong)  # type: ignore[arg-type]
    for wrong_type in ([1, 2], None, "abc"):
        with pytest.raises(SchemaError, match="codes: expected a NumPy array with one int64 for each tuple; got"):
            StreamStatistics().observe(wrong_type)  # type: ignore[arg-type]


def test_what_is_no_statistics_or_no_number() -> None:
    seen: Any = StreamStatistics()
    for memory in (-1, "x", 1e5, None, True, "1%"):
        with pytest.raises(ConfigError, match="memory: "):
            StreamStatistics(memory)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="budget: expected a MemoryBudget"):
        StreamStatistics("64kB", budget=5)  # type: ignore[arg-type]
    for call in (seen.merge, seen.drifted):
        with pytest.raises(ConfigError, match="expected StreamStatistics of another stream; got 3"):
            call(3)
    for keys in ("a", -1, float("nan")):
        with pytest.raises(ConfigError, match="h: expected a number of keys"):
            seen.top_share(keys)


def test_any_kind_of_array_of_codes() -> None:
    codes = np.arange(20_000)
    frozen = codes.copy()
    frozen.flags.writeable = False
    whole = observed(codes[::2].copy(), SMALL)
    assert state(observed(codes[::2], SMALL)) == state(whole)
    assert state(observed(frozen[::2], SMALL)) == state(whole)


# the curve by itself


@pytest.mark.parametrize("skew", [0.0, 0.3, 1.0, 2.5])
def test_the_skew_of_an_exact_curve(skew: float) -> None:
    ranks = np.arange(1, 10_001, dtype=np.float64)
    curve = RankCurve.of(np.ones(10_000), ranks**-skew)
    assert curve.skew() == pytest.approx(skew, abs=1e-3)
    assert curve.misfit(curve.skew()) < 1e-3
    assert curve.misfit(skew + 1) > 0.1


def test_buckets_come_in_any_order() -> None:
    curve = RankCurve.of(np.array([10.0, 0.0, 2.0, 5.0]), np.array([1.0, 9.0, 4.0, 0.0]))
    assert curve.keys.tolist() == [2, 10]
    assert curve.probability.tolist() == pytest.approx([4 / 18, 1 / 18])
    assert [curve.top_share(h) for h in (0, 1, 2, 7, 12, 99)] == pytest.approx([0, 4 / 18, 8 / 18, 13 / 18, 1, 1])


@pytest.mark.parametrize("key", range(0, 400, 7))
def test_what_is_forgotten_and_what_is_left_add_up(key: int) -> None:
    seen = StreamStatistics()
    seen.observe(np.full(63, key))
    for _ in range(3):
        seen.decay()
        seen.check_invariants()
        seen.observe(np.full(64, key))
        codes, shares = seen.hot_keys()
        assert codes.tolist() == [key]
        assert shares.tolist() == [1.0]
