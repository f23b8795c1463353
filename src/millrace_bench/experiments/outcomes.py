"""Measure the points of figures: with joins on the device model, the cost model, or the papers' equations.

A point is a run of a join; its outcome is the measured figures by name. Joins use one thread, whatever the machine has,
and read whole rows from the disk; in joins that read the master in turns, tuples stay for a whole turn, as in the
papers. So an outcome depends on the point and the seed alone. Without a disk model, a join has its default settings,
and its time is wall time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.core.errors import BudgetTooSmallError, ConfigError, one_of
from millrace.core.sizes import parse_size
from millrace.cost import meshjoin
from millrace.cost.engine import predict
from millrace.cost.symbols import Disk, Sizes, UnitCosts
from millrace.master.device import DISKS, Device, DiskModel
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.choose.join_workload import workload_of
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.experiments.ceiling import known_frequencies
from millrace_bench.experiments.experiment import Point, Run
from millrace_bench.experiments.online_points import online
from millrace_bench.experiments.sets import DataSet, open_set
from millrace_bench.experiments.steady import LOOKED_UP, WorkClock, paced, saturated

_BATCHES = 16  # batches that fill the waiting room
_LEAST_BATCH, _LARGEST_BATCH, _LOOKED_UP_BATCH = 20, 20_000, 1_000
_MOST_RUNS, _NEAR = 6, 0.02  # runs to find the memory for a rate, and how near the rate has to be, in logarithms
_FIRST_SHARE = 0.02
_LEAST_SECONDS = 1.0  # a measurement in wall time takes at least so long

Outcome = dict[str, float]


def outcome(directory: Path, point: Run, seed: int) -> Outcome:
    """Measure a point with the stream of a seed; return the measured figures by name."""
    return MEASURES[one_of("by", point.by, MEASURES)](directory, point, seed)


def make_data(directory: Path, point: Run) -> None:
    """Write the data that a point needs, if it is missing."""
    if isinstance(point, Point) and point.by != "equations":
        _open(directory, point)


def _open(directory: Path, point: Point) -> DataSet:
    found = open_set(directory, point.data, point.rows, point.skew, point.z_R)
    return found.indexed() if ALGORITHMS[point.algorithm].needs_index else found


def _run(directory: Path, point: Point, seed: int) -> Outcome:
    found = _open(directory, point)
    return _measured(found, point, seed, parse_size(point.memory, of=found.store.nbytes))


def disk_of(point: Point) -> DiskModel:
    """Return the point's disk model, with its seek time multiplied by the point's ``seek``."""
    disk = DISKS.get(point.disk)
    if disk is None:
        raise ConfigError(f"disk: expected the name of a disk model; got {point.disk!r}")
    return DiskModel(disk.seek * point.seek, disk.bandwidth)


def _join(found: DataSet, point: Point, memory: int) -> SemiStreamJoin:
    as_papers: dict[str, Any] = {}
    if not _without_disk(point):
        as_papers = {"device": Device(disk_of(point), reads="rows"), "leave_early": False, "threads": 1}
    join = SemiStreamJoin(
        found.store,
        on=found.on,
        algorithm=point.algorithm,
        memory=memory,
        suffix=found.suffix,
        b=point.b,
        **as_papers,
        **dict(point.options),
    )
    join.bind(found.schema)
    return join


def _without_disk(point: Point) -> bool:
    return point.disk == "none"


def _measured(found: DataSet, point: Point, seed: int, memory: int) -> Outcome:
    join = _join(found, point, memory)
    batch_rows = max(_LEAST_BATCH, min(_LARGEST_BATCH, join.capacity // _BATCHES)) if join.waits else _LOOKED_UP_BATCH
    stream = found.stream(seed, batch_rows)
    if point.by == "paced":
        assert point.rate is not None
        result = paced(join, stream, point.rate, point.settle, point.rooms)
    elif _without_disk(point):
        clock = WorkClock()
        measured = (point.settle, point.rooms, min(LOOKED_UP, point.rows))
        result = saturated(join, clock.outside(stream), *measured, clock=clock, least_seconds=_LEAST_SECONDS)
    else:
        result = saturated(join, stream, point.settle, point.rooms, min(LOOKED_UP, point.rows))
    return result | {"disk rate": result["rate"] * (1 - result["hits"])}


def _memory_for(directory: Path, point: Point, seed: int) -> Outcome:
    """Run a join with several budgets, to find the memory that it needs for the point's rate.

    Return the figures of the last run, with the budget of the run whose rate came nearest as ``memory``.
    """
    assert point.rate is not None
    found = _open(directory, point)
    wanted = math.log(point.rate)
    memory, result = int(_FIRST_SHARE * found.store.nbytes), {}
    tried: list[tuple[float, float]] = []
    for _ in range(_MOST_RUNS):
        try:
            result = _measured(found, point, seed, memory)
        except BudgetTooSmallError as error:
            memory = error.minimum
            result = _measured(found, point, seed, memory)
        tried.append((math.log(memory), math.log(result["rate"])))
        if abs(tried[-1][1] - wanted) < _NEAR:
            break
        slope = 1.0
        if len(tried) > 1 and tried[-1][0] != tried[-2][0]:
            slope = (tried[-1][1] - tried[-2][1]) / (tried[-1][0] - tried[-2][0])
        memory = int(math.exp(tried[-1][0] + (wanted - tried[-1][1]) / min(4.0, max(0.5, slope))))
    return result | {"memory": float(math.exp(min(tried, key=lambda t: abs(t[1] - wanted))[0]))}


def _predicted(directory: Path, point: Point, _: int) -> Outcome:
    """Return the figures that the cost model predicts for a run of the point."""
    found = _open(directory, point)
    if found.frequencies is None:
        raise ConfigError(f"model: predictions need key frequencies; those of data {point.data!r} are not known")
    join = _join(found, point, parse_size(point.memory, of=found.store.nbytes))
    options = {name: value for name, value in point.options if name in ("cache_share", "l")}
    situation = workload_of(join.arguments, join.loop.parts.binding, found.frequencies)
    prediction = predict(situation, point.algorithm, join.budget.total, b=join.b, **options)
    return {
        "rate": prediction.rate,
        "c_loop": prediction.c_loop,
        "hits": prediction.hit_share,
        "disk rate": prediction.rate * (1 - prediction.hit_share),
        "memory": float(prediction.memory),
    }


def _equations(_: Path, point: Point, __: int) -> Outcome:
    """Return the result of the MESHJOIN paper's equations: the memory if the point has a rate, else the rate."""
    assert point.b is not None
    sizes = Sizes(R_t=point.rows, v_R=120.0, v_S=20.0)
    model = disk_of(point)
    disk, costs = Disk(model.seek, model.bandwidth), UnitCosts()
    b = point.b * sizes.v_R / sizes.v_P
    if point.rate is not None:
        return {"memory": meshjoin.memory(sizes, b, meshjoin.w_for(sizes, costs, disk, point.rate, b))}
    memory = parse_size(point.memory, of=int(sizes.R_t * sizes.v_R))
    w = max(0.0, meshjoin.w_in(sizes, memory, b))
    return {"rate": meshjoin.mu(w, meshjoin.c_loop(sizes, costs, disk, b, w)), "memory": float(memory)}


MEASURES: dict[str, Callable[[Path, Any, int], Outcome]] = {
    "join": _run,
    "paced": _run,
    "memory for a rate": _memory_for,
    "model": _predicted,
    "equations": _equations,
    "online": online,
    "known frequencies": known_frequencies,
}
"""Functions that measure a point; the keys are the values that the point's field ``by`` can have.

What they measure, in this order: a join that always has tuples, a join with an arrival rate, joins with several budgets
until one has the rate, the engine's cost model, the paper's equations, an adaptive join while its inputs arrive, and an
estimate for a policy that knows the inputs' frequencies. To measure another kind of join, add a function here.
"""
