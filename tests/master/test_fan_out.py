"""Rows per key and matching shares against what NumPy counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.core.errors import ConfigError
from millrace.datasets import ZipfSampler
from millrace.master.read.fan_out import FanOut, Matches, fan_out, matches
from millrace.master.store import MasterStore
from millrace.rows.stream_statistics import StreamStatistics


def build(keys: object, path: Path, **options: object) -> MasterStore:
    table = pa.table({"k": keys, "v": np.arange(len(keys))})  # type: ignore[arg-type]
    return MasterStore.build(table, path, "k", **options)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(-5, 20) | st.integers(-(2**63), 2**63 - 1), max_size=60),
    st.lists(st.tuples(st.integers(-8, 25), st.integers(0, 9)), max_size=20, unique_by=lambda pair: pair[0]),
    st.booleans(),
    st.sampled_from([1, 3]),
)
def test_everything_is_exact(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], asked: list[tuple[int, int]], index: bool, shards: int
) -> None:
    array = np.array(keys, np.int64)
    store = build(array, tmp_path_factory.mktemp("m") / "m", index=index, shards=shards, page_rows=7)
    uniques, counts = np.unique(array, return_counts=True)
    assert fan_out(store) == FanOut(
        len(keys), len(uniques), len(keys) / len(uniques) if keys else 0.0, int(counts.max(initial=0))
    )
    codes = np.array([code for code, _ in asked], np.int64)
    shares = np.array([share for _, share in asked], np.float64)
    got = matches(store, codes, shares)
    rows = np.array([(array == code).sum() for code in codes], np.float64)
    total = max(1.0, shares.sum())
    assert got.exact
    assert got.share == pytest.approx(float(shares @ (rows > 0)) / total)
    assert got.rows == pytest.approx(float(shares @ rows) / total)


@pytest.mark.parametrize("repeats", [1, 4])
def test_some_pages_tell_about_all(tmp_path: Path, repeats: int) -> None:
    rng = np.random.default_rng(1)
    keys = rng.permutation(np.repeat(np.arange(0, 200_000, 2), repeats))
    store = build(keys, tmp_path / "m", index=False, page_rows=1_000, shards=2)
    stream = rng.permutation(120_000)[:20_000]  # half of them are there
    got = matches(store, stream, sample=60_000)
    assert not got.exact
    assert abs(got.share - 0.5) < 0.03
    assert abs(got.rows - 0.5 * repeats) < 0.03 * repeats
    assert matches(store, stream, sample=60_000) == got
    skewed = matches(store, stream, 1 / np.arange(1.0, 20_001.0), sample=60_000)
    assert abs(skewed.share - 0.5) < 0.03, "whether the most frequent key is in these pages means nothing"
    whole = matches(store, stream, sample=len(keys))
    assert whole == Matches(float((stream % 2 == 0).mean()), float((stream % 2 == 0).mean()) * repeats, True)


def test_keys_of_text(tmp_path: Path) -> None:
    store = build(["a", "b", "b", None, "c"], tmp_path / "m")
    codes, _ = store.coder.codes([pa.array(["a", "b", "x"])])
    assert fan_out(store) == FanOut(4, 3, 4 / 3, 2)
    assert matches(store, codes) == Matches(2 / 3, 1.0, True)


@pytest.mark.parametrize("index", [True, False])
def test_the_keys_of_a_sampled_stream_tell_about_the_stream(tmp_path: Path, index: bool) -> None:
    zipf = ZipfSampler(200_000, 0.9, seed=3)
    stream = zipf.sample(400_000)
    multiplicity = np.arange(200_001) % 3  # a third of the keys has no row, a third has two
    store = build(np.repeat(np.arange(200_001), multiplicity), tmp_path / "m", index=index)
    seen = StreamStatistics()
    seen.observe(stream)
    got = matches(store, *seen.weighted_keys())
    assert got.exact
    assert abs(got.share - (multiplicity[stream] > 0).mean()) < 0.03
    assert abs(got.rows - multiplicity[stream].mean()) < 0.06


def test_what_is_refused(tmp_path: Path) -> None:
    store = build([1, 2], tmp_path / "m")
    with pytest.raises(ConfigError, match=r"65,536 codes, all different; got 2 codes, 1 of them different"):
        matches(store, np.array([1, 1]))
    with pytest.raises(ConfigError, match=r"shares: expected 2 shares of at least 0; got 1, 0 of them below 0"):
        matches(store, np.array([1, 2]), np.array([1.0]))
    with pytest.raises(ConfigError, match=r"shares: expected 2 shares of at least 0; got 2, 1 of them below 0"):
        matches(store, np.array([1, 2]), np.array([1.0, -1.0]))
    with pytest.raises(ConfigError, match=r"sample: expected at least one row; got 0"):
        matches(store, np.array([1, 2]), sample=0)
