"""Estimate the share of a chain join's result that comes out online if each row's number of results is known.

*Online* means before the inputs have ended. A chain joins R1 with R2, R2 with R3 and R3 with R4, on three columns.
All memory is used for rows; of the rows that have arrived, the policy keeps those that take part in the most results.
The estimate is not proven to be the maximum, but a policy that has to learn from arriving rows will hardly reach more.
"""

from __future__ import annotations

import heapq
from pathlib import Path

import numpy as np
import numpy.typing as npt

from millrace_bench.experiments.inputs import ExperimentInputs, open_inputs
from millrace_bench.experiments.online_points import OnlinePoint

_WEIGHTS = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Factors to try. The numbers of results of rows of R1 and R4, which are very large, are multiplied by a factor."""

Numbers = npt.NDArray[np.int64]


def known_frequencies(_: Path, point: OnlinePoint, seed: int) -> dict[str, float]:
    """Estimate the share of a chain join's result that can come out before the inputs have ended.

    The share, from 0 to 1, is returned as ``online share``.
    """
    inputs = open_inputs(point.data, point.rows, seed, **dict(point.parameters))
    times = inputs.times(point.paper_rows, point.delay, seed)
    order = np.argsort(np.concatenate([times[name] for name in inputs.tables]), kind="stable")
    capacity = int(point.memory / 100 * len(order))
    shares = (_share(inputs, order, capacity, weight) for weight in _WEIGHTS[: 1 if len(times) == 2 else None])
    return {"online share": max(shares)}


def _share(inputs: ExperimentInputs, order: Numbers, capacity: int, weight: float) -> float:
    worth = _worth(inputs, weight)
    came, left = _stays(np.concatenate([worth[name] for name in inputs.tables])[order], capacity)
    arrivals, departures = np.empty_like(came), np.empty_like(left)
    arrivals[order], departures[order] = came, left
    ends = np.cumsum([0, *(len(worth[name]) for name in inputs.tables)])
    stays = {
        name: (arrivals[start:end], departures[start:end])
        for name, start, end in zip(inputs.tables, ends[:-1], ends[1:], strict=True)
    }
    return _count_results(inputs, stays) / max(1, inputs.results)


def _worth(inputs: ExperimentInputs, weight: float) -> dict[str, Numbers]:
    """Return each row's number of results, multiplied by ``weight`` for R1 and R4, which contain every key once."""
    shared = {name: inputs.tables[name]["a2"].to_numpy() for name in ("R2", "R3")}
    keys = 1 + max(int(values.max()) for values in shared.values())
    counts = {name: np.bincount(values, minlength=keys) for name, values in shared.items()}
    worth = {"R2": counts["R3"][shared["R2"]], "R3": counts["R2"][shared["R3"]]}
    for end, inner, column in (("R1", "R2", "a1"), ("R4", "R3", "a3")):
        if end in inputs.tables:
            own = inputs.tables[end][column].to_numpy()
            sums = np.bincount(inputs.tables[inner][column].to_numpy(), worth[inner], minlength=int(own.max()) + 1)
            worth[end] = (weight * sums[own]).astype(np.int64)
    return worth


def _stays(worth: Numbers, capacity: int) -> tuple[Numbers, Numbers]:
    """Return the times at which each row enters memory and leaves it.

    Row ``i`` arrives at time ``2 * i``. When more than ``capacity`` rows are in memory, the row of least worth leaves.

    >>> [each.tolist() for each in _stays(np.array([5, 1, 7, 6]), 2)]
    [[0, 2, 4, 6], [7, 5, 9, 9]]
    """
    came = 2 * np.arange(len(worth))
    left = np.full(len(worth), 2 * len(worth) + 1)
    held: list[tuple[int, int]] = []
    for row, each in enumerate(worth.tolist()):
        heapq.heappush(held, (each, row))
        if len(held) > capacity:
            left[heapq.heappop(held)[1]] = 2 * row + 1  # just after this arrival, so that the two rows can still join
    return came, left


def _count_results(inputs: ExperimentInputs, stays: dict[str, tuple[Numbers, Numbers]]) -> int:
    """Return the number of results whose rows were all in memory at the same time."""
    halves = []
    for inner, end, column in (("R2", "R1", "a1"), ("R3", "R4", "a3")):
        came, left = stays[inner]
        if end in stays:
            at = np.argsort(inputs.tables[end][column].to_numpy())[inputs.tables[inner][column].to_numpy()]
            came, left = np.maximum(came, stays[end][0][at]), np.minimum(left, stays[end][1][at])
        together = came < left
        halves.append((inputs.tables[inner]["a2"].to_numpy()[together], came[together], left[together]))
    (ours, came, left), (theirs, other_came, other_left) = halves
    pairs = _pairs_from(ours, np.full_like(came, -1), theirs, other_came)
    return pairs - _pairs_from(ours, left, theirs, other_came) - _pairs_from(theirs, other_left, ours, came)


def _pairs_from(keys: Numbers, moments: Numbers, others: Numbers, came: Numbers) -> int:
    """Count pairs of equal keys, one from ``keys`` and one from ``others`` that is not earlier than the first.

    ``moments`` holds the times of ``keys``, and ``came`` the times of ``others``.
    """
    far = 1 + max(int(moments.max(initial=0)), int(came.max(initial=0)))
    ordered = np.sort(others * far + came)
    ends = np.searchsorted(ordered, (keys + 1) * far)
    return int((ends - np.searchsorted(ordered, keys * far + np.maximum(moments, 0))).sum())
