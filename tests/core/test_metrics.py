"""Waits and rates."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

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


def test_counts_of_several_joins_add_up() -> None:
    every = [field.name for field in fields(JoinMetrics) if field.type == "int"]
    one, other, both = JoinMetrics(), JoinMetrics(), JoinMetrics()
    for number, name in enumerate(every):
        setattr(one, name, 1_000 + number)
        setattr(other, name, 10_000 + number)
    both.add_up([one, other])
    own = {"tuples_in", "rows_out", "batches_out", "steps", "pages_read", "bytes_read", "seeks"}  # of the star itself
    assert {name for name in every if not getattr(both, name)} == own
    assert all(getattr(both, name) == getattr(one, name) + getattr(other, name) for name in set(every) - own)


def test_lasting_counts_go_on() -> None:
    before, after = JoinMetrics(tuples_in=7, waiting=3, probes=9), JoinMetrics()
    after.go_on_from(before.lasting() | {"unknown": 1, "waiting": 3})
    assert (after.tuples_in, after.probes, after.waiting) == (7, 9, 0)


def test_metrics_are_plain_values() -> None:
    metrics = JoinMetrics(tuples_in=4, cache_hits=1)
    assert metrics.hit_rate == 0.25
    assert JoinMetrics().hit_rate == 0.0
    plain = json.loads(json.dumps(metrics.as_dict()))
    assert plain["hit_rate"] == 0.25
    assert plain["wait_steps_max"] == 0
    assert "waits" not in plain


def test_the_reference_names_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/semi-stream-join.md").read_text()
    table = page.split("## Metrics")[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if "|" in line]
    named = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted({*(each.name for each in fields(JoinMetrics)), "hit_rate", "sampling_rate"})
