"""What known frequencies would give: counted right, and less than the paper says MINER has."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from millrace_bench.experiments import ceiling
from millrace_bench.experiments.catalogue import EXPERIMENTS
from millrace_bench.experiments.inputs import open_inputs
from millrace_bench.experiments.online_points import OnlinePoint


def point(size: str, share: float, inputs: int = 4) -> OnlinePoint:
    for series, x, found in EXPERIMENTS["miner-20"].points(size):  # type: ignore[arg-type]
        if series.by == "known frequencies" and x == share:
            assert isinstance(found, OnlinePoint)
            return replace(found, parameters=(("inputs", float(inputs)),))
    raise AssertionError("no such point")


@pytest.mark.parametrize("inputs", [2, 3, 4])
def test_results_are_counted_as_by_looking_at_every_combination(inputs: int) -> None:
    found = open_inputs("chain", 60, seed=3, inputs=float(inputs))
    random = np.random.default_rng(inputs)
    stays = {}
    for name, table in found.tables.items():
        came = random.integers(0, 100, table.num_rows)
        stays[name] = came, came + random.integers(1, 60, table.num_rows)
    names = list(found.tables)
    rows = {name: table.to_pylist() for name, table in found.tables.items()}
    met = 0
    for some in product(*(range(len(rows[name])) for name in names)):
        tuples = dict(zip(names, some, strict=True))
        joined = [
            rows[a][tuples[a]][key] == rows[b][tuples[b]][key]
            for a, b, key in (("R1", "R2", "a1"), ("R2", "R3", "a2"), ("R3", "R4", "a3"))
            if a in tuples and b in tuples
        ]
        if all(joined):
            met += max(stays[n][0][i] for n, i in tuples.items()) < min(stays[n][1][i] for n, i in tuples.items())
    assert ceiling._count_results(found, stays) == met


def test_all_of_the_result_with_all_of_the_memory() -> None:
    everything = replace(point("small", 10), memory=100.0)
    assert ceiling.known_frequencies(Path(), everything, 1)["online share"] == 1.0


def test_the_papers_share_with_little_memory_is_beyond_known_frequencies() -> None:
    """Figure 20 has 55 % of the result of 4 inputs with 5 % of memory."""
    share = ceiling.known_frequencies(Path(), point("paper", 5), 11)["online share"]
    assert 0.2 < share < 0.4
