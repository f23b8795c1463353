"""The sketches hold what they promise, whatever comes and however it is cut."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.datasets import ZipfSampler
from millrace.kernels import sketches
from millrace.kernels.sampling import scattered
from millrace.kernels.sketches import ALL, ENTRY, HOT, SAMPLED, HotKeys, KeySample, most_entries

STREAMS = st.lists(st.integers(-20, 20) | st.integers(-(2**63), 2**63 - 1), max_size=400)
CUTS = st.lists(st.integers(0, 400), max_size=6)


def new_sample(places: int) -> KeySample:
    return KeySample(np.zeros(places, SAMPLED), np.array([ALL]), np.zeros(1, np.int64))


def new_hot(places: int) -> HotKeys:
    return HotKeys(np.zeros(places, HOT), np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))


def held(entries: npt.NDArray[Any]) -> dict[int, tuple[int, ...]]:
    found = [tuple(entry) for entry in entries[entries["count"] != 0].tolist()]
    assert len({code for code, *_ in found}) == len(found)
    return {code: tuple(rest) for code, *rest in found}


def pieces(stream: list[int], cuts: list[int]) -> list[npt.NDArray[np.int64]]:
    ends = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    return [np.array(stream[a:b], np.int64) for a, b in itertools.pairwise(ends)]


def bits(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    out = np.empty(len(codes), np.uint64)
    scattered(codes, sketches.SAMPLE_SEED, out)
    return out


@settings(max_examples=80, deadline=None, derandomize=True)
@given(STREAMS, CUTS, st.integers(4, 60), st.randoms(use_true_random=False))
def test_a_sample_has_every_key_below_its_limit_with_its_count(
    stream: list[int], cuts: list[int], places: int, random: Any
) -> None:
    sample, other = new_sample(places), new_sample(places)
    for part in pieces(stream, cuts):
        sketches.sample(sample, part)
    counts = Counter(stream)
    codes = np.array(sorted(counts), np.int64)
    below = codes[bits(codes) <= sample.limit[0]].tolist()
    assert held(sample.entries) == {code: (counts[code],) for code in below}
    assert sample.kept[0] == len(below) <= most_entries(places)
    random.shuffle(stream)
    sketches.sample(other, np.array(stream, np.int64))
    assert other.limit[0] == sample.limit[0]
    assert held(other.entries) == held(sample.entries), "the order does not matter"


@pytest.mark.parametrize("keys", ["consecutive", "strided", "random"])
def test_a_sample_is_a_fair_share_of_the_keys(keys: str) -> None:
    n = 300_000
    codes = {
        "consecutive": np.arange(n),
        "strided": np.arange(n) << 24,
        "random": np.random.default_rng(1).integers(-(2**63), 2**63 - 1, n),
    }[keys]
    sample = new_sample(12_288)
    sketches.sample(sample, codes)
    share = float(sample.limit[0]) / 2**64
    assert abs(sample.kept[0] / share - n) < 0.035 * n
    assert sample.kept[0] >= most_entries(12_288) * 3 // 4


@settings(max_examples=80, deadline=None, derandomize=True)
@given(STREAMS, CUTS, st.integers(8, 60))
def test_hot_keys_do_not_depend_on_the_cuts(stream: list[int], cuts: list[int], places: int) -> None:
    one, other = new_hot(places), new_hot(places)
    sketches.count(one, np.array(stream, np.int64))
    for part in pieces(stream, cuts):
        sketches.count(other, part)
    assert held(one.entries) == held(other.entries)
    assert one.floor[0] == other.floor[0]
    counts = Counter(stream)
    for code, (count, missed) in held(one.entries).items():
        assert count <= counts[code]
        assert 0 <= missed <= one.floor[0]
    if one.floor[0] == 0:
        assert held(one.entries) == {code: (count, 0) for code, count in counts.items()}


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 1.5])
def test_hot_keys_are_counted_but_for_the_floor_and_chance(skew: float) -> None:
    stream = ZipfSampler(50_000, skew, seed=4).sample(300_000)
    hot = new_hot(1024)
    sketches.count(hot, stream)
    codes, counts = np.unique(stream, return_counts=True)
    found, floor = held(hot.entries), int(hot.floor[0])
    assert 0 < floor <= 2 * len(stream) / ENTRY / 512 + 1
    unlikely = floor + 12 * ENTRY  # exp(-12) for each of at most 50 000 keys
    for code, came in zip(codes.tolist(), counts.tolist(), strict=True):
        if code in found:
            count, missed = found[code]
            assert count <= came <= count + missed + 12 * ENTRY
        else:
            assert came <= unlikely


def test_filling_replaces_what_was_there() -> None:
    entries = np.zeros(40, HOT)
    for size in (20, 7, 0):
        given = np.array([(code * 1000, code + 1, 3) for code in range(size)], HOT)
        sketches.fill(entries, given)
        assert held(entries) == {code * 1000: (code + 1, 3) for code in range(size)}
