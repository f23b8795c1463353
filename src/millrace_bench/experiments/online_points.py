"""Run adaptive joins whose inputs arrive on a virtual clock.

Only arrivals, rows, results and blocks take time on this clock, so an outcome depends on the point and the seed alone.
The *online phase* ends :data:`WAIT` seconds after the last tuple arrives; results that a join puts out later are not
counted as online. *MaxNewArr* is a parameter of the paper: the number of rows that may wait before a join stops
working on disk to take them in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from millrace.adaptive.arrivals.events import ScheduledArrivals
from millrace.adaptive.arrivals.feeding import Costs, Feeding
from millrace.adaptive.join import StreamJoin
from millrace.core.errors import ConfigError, MillraceError
from millrace.datasets.adaptive_inputs import TUPLE_BYTES
from millrace_bench.experiments.experiment import SEEDS, Experiment, Run, Series, Size
from millrace_bench.experiments.inputs import ExperimentInputs, open_inputs

WAIT = 0.025
"""Seconds without arrivals after which a join reads from disk: the paper's WaitThresh."""
LINGER = 0.02
"""Seconds for which arriving tuples are collected and then pushed together; below WAIT, so that no pause is missed."""
BLOCK_SECONDS, BLOCK_BYTES = 1e-3, 10_000
"""Seconds to read or write a block of ``BLOCK_BYTES`` bytes, the paper's size; other sizes take time in proportion."""
READ_AT = tuple(range(10, 101, 10))
"""Percentages of the online phase at which results are counted."""

_LEAST_ROWS, _LEAST_BLOCK, _LEAST_ARRIVALS = 2_000, 1_000, 50
_PLENTY = 500_000_000  # bytes of memory of the join that computes the rest of the result, to count it
_JOIN = ("max_outer_blocks",)


@dataclass(frozen=True)
class OnlinePoint(Run):
    """A run of an adaptive join while its inputs arrive."""

    paper_rows: int
    """Number of tuples that the largest input has in the paper; ``rows`` is their number in this run."""
    memory: float
    """Memory as a percentage of the bytes of all inputs, or in bytes if it is above 100."""
    block: int
    max_new_arrivals: int
    delay: float = 0.0
    """Delay after each fragment of an input, in percent of the fragment's time."""
    result_us: float = 1.0
    """Microseconds that a result takes on the virtual clock."""
    parameters: tuple[tuple[str, Any], ...] = ()
    """Parameters of the data."""
    options: tuple[tuple[str, Any], ...] = ()

    rows_of: ClassVar[str] = "The largest input"
    whole: ClassVar[str] = "all inputs"

    @property
    def costs(self) -> Costs:
        """Seconds that each kind of work takes, as on a processor and a disk from the time of the paper."""
        seconds = BLOCK_SECONDS * self.block / BLOCK_BYTES
        return Costs(row=10e-6, result=self.result_us * 1e-6, read=seconds, write=seconds)

    @property
    def conditions(self) -> str:
        costs = self.costs
        return (
            f"blocks of {self.block:,} bytes, {1e3 * costs.read:g} ms each; {1e6 * costs.row:g} µs for a tuple that is "
            f"taken in, {1e6 * costs.result:g} µs for a result; tuples of an input every ms on average, every "
            f"{max(1, round(self.paper_rows / self.rows)):,}th of the paper's; MaxNewArr {self.max_new_arrivals}"
        )


def layout(experiment: Experiment, size: Size, series: Series, given: dict[str, Any]) -> OnlinePoint:
    """Return a run of an adaptive join, made from the paper's numbers and scaled to a size.

    The numbers of tuples, the size of a block and MaxNewArr are multiplied by the same factor; each has a minimum.
    """
    factor = experiment.factor(size)
    paper_rows = int(given.pop("rows"))
    rows = min(paper_rows, max(_LEAST_ROWS, round(paper_rows * factor)))
    scaled = rows / paper_rows
    share, tuples = given.pop("share", None), given.pop("tuples", None)
    if (share is None) == (tuples is None):
        raise ConfigError(
            f"{experiment.name}: expected the memory as either share or tuples; "
            f"got {'neither' if share is None else 'both'}"
        )
    if "smaller" in given:
        given["smaller"] = round(given["smaller"] * scaled)
    return OnlinePoint(
        by=series.by,
        algorithm=series.algorithm,
        data=given.pop("data"),
        rows=rows,
        paper_rows=paper_rows,
        memory=float(share) if tuples is None else tuples * scaled * TUPLE_BYTES,
        block=max(_LEAST_BLOCK, round(given.pop("block", BLOCK_BYTES) * scaled)),
        max_new_arrivals=max(_LEAST_ARRIVALS, round(given.pop("max_new_arrivals", 1000) * scaled)),
        delay=float(given.pop("delay", 0.0)),
        result_us=float(given.pop("result_us", 1.0)),
        options=tuple((name, int(given.pop(name))) for name in _JOIN if name in given),
        parameters=tuple(sorted((name, float(value)) for name, value in given.items())),
    )


def online(directory: Path, point: OnlinePoint, seed: int) -> dict[str, float]:
    """Run a point; return how many results come out while tuples arrive, how many tuples wait, and other counts.

    With seed 11, the first seed of every size, the whole result is counted too; MillraceError is raised if its size is
    wrong.
    """
    inputs = open_inputs(point.data, point.rows, seed, directory=directory, **dict(point.parameters))
    times = inputs.times(point.paper_rows, point.delay, seed)
    end = max(float(each[-1]) for each in times.values())
    arrivals = ScheduledArrivals(
        {name: (table, times[name]) for name, table in inputs.tables.items()},
        wait=WAIT,
        linger=LINGER,
        batch_rows=point.rows,
    )
    memory = point.memory if point.memory > 100 else point.memory / 100 * inputs.nbytes
    join = _join(inputs, point, int(memory), seed)
    came: list[tuple[float, int]] = [(0.0, 0)]
    for batch in Feeding(join, arrivals, point.costs).online():
        came.append((arrivals.clock.now(), came[-1][1] + len(batch)))
    spilled, read = join.metrics.spilled_rows, join.metrics.bytes_read
    moments, counts = np.array([moment for moment, _ in came]), [count for _, count in came]
    if seed == SEEDS["default"][0]:
        _check(inputs, point, counts[-1] + _rest(inputs, point, join, seed))
    at = {x: counts[int(np.searchsorted(moments, end * x / 100 + WAIT, "right")) - 1] for x in READ_AT}
    metrics = join.metrics
    join.close()
    return {
        "online": float(at[100]),
        "online share": at[100] / max(1, inputs.results),
        "most waiting": metrics.most_waiting / point.max_new_arrivals,
        "mean waiting": metrics.mean_waiting / point.max_new_arrivals,
        "reactive units": float(metrics.reactive_units),
        "reactive": float(metrics.rows_reactive),
        "spilled": float(spilled),
        "bytes read": float(read),
        "late": arrivals.clock.now() - end,
        **{f"results at {x}": float(count) for x, count in at.items()},
    }


def _join(inputs: ExperimentInputs, point: OnlinePoint, memory: int, seed: int) -> StreamJoin:
    return StreamJoin(
        inputs.on,
        point.algorithm,
        memory,
        inputs.band,
        block=point.block,
        wait_threshold=WAIT,
        max_new_arrivals=point.max_new_arrivals,
        seed=seed,
        **dict(point.options),
    )


def _rest(inputs: ExperimentInputs, point: OnlinePoint, join: StreamJoin, seed: int) -> int:
    """Count the results that follow the online phase, by finishing a copy of the join with plenty of memory."""
    other = _join(inputs, point, _PLENTY, seed)
    other.restore(join.snapshot())
    rest = sum(len(batch) for batch in other.finish())
    other.close()
    return rest


def _check(inputs: ExperimentInputs, point: OnlinePoint, found: int) -> None:
    if found != inputs.results:
        raise MillraceError(f"{point.algorithm} on {point.data}: expected {inputs.results:,} results; got {found:,}")
