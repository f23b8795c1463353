"""Waits and rates."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.metrics import JoinMetrics, WaitHistogram


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 500), min_size=1), st.sampled_from([0.1, 0.5, 0.9, 0.99, 1.0]))
def test_quantiles_are_those_of_the_sorted_waits(waits: list[int], share: float) -> None:
    histogram = WaitHistogram()
    for part in np.array_split(np.array(waits), 3):
        histogram.record(part)
    within = sum(wait <= histogram.quantile(share) for wait in waits)
    below = sum(wait < histogram.quantile(share) for wait in waits)
    assert within >= share * len(waits) - 1e-9
    assert below < share * len(waits) + 1e-9
    assert histogram.most == max(waits)
    assert histogram.total == len(waits)


def test_waits_beyond_the_bins_are_kept_as_the_longest() -> None:
    histogram = WaitHistogram(bins=8)
    histogram.record(np.array([3, 100]))
    assert (histogram.most, histogram.total, histogram.quantile(1.0)) == (100, 2, 7)


def test_nothing_recorded() -> None:
    histogram = WaitHistogram()
    histogram.record(np.array([], np.int64))
    assert (histogram.quantile(0.5), histogram.most, histogram.total) == (0, 0, 0)


def test_metrics_are_plain_values() -> None:
    metrics = JoinMetrics(tuples_in=4, cache_hits=1)
    assert metrics.hit_rate == 0.25
    assert JoinMetrics().hit_rate == 0.0
    plain = json.loads(json.dumps(metrics.as_dict()))
    assert plain["hit_rate"] == 0.25
    assert plain["wait_steps_max"] == 0
    assert "waits" not in plain
