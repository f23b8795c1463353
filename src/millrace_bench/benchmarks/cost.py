"""Compare the cost model with the engine: time of a step, service rate and memory, predicted and measured.

Time is measured on the device model's virtual clock, in the join's steady state; loads transfer whole rows, and tuples
are always available. :mod:`machine <millrace_bench.benchmarks.machine>` measures without a disk model.
Joins run with their own defaults; MESHJOIN on the disk of its paper keeps tuples for a whole turn, as in the paper.
To check the memory, the model predicts the memory for a rate that lies between two measured rates. A join runs with
that memory, and the prediction is compared with the memory that is interpolated between the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace.cost.engine import predict
from millrace.cost.frequencies import Frequencies
from millrace.cost.measured import Calibration
from millrace.cost.tuner import for_rate, memory_for
from millrace.cost.workload import Workload
from millrace.datasets import STREAM_SCHEMA, zipf_stream
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.semistream.choose.join_workload import workload_of
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.shared import data


@dataclass(frozen=True)
class CostSetting:
    """A join that is predicted and measured."""

    disk: str
    algorithm: str
    skew: float
    leave_early: bool = True

    def __str__(self) -> str:
        whole = "" if self.leave_early else ", tuples stay for a turn"
        return f"{self.algorithm}, {self.disk}, skew {self.skew:g}{whole}"


PERIODS: dict[str, tuple[float, float]] = {
    "meshjoin": (3, 4),
    "ssbj": (8, 4),
    "hybridjoin": (4, 12),
    "sscj": (10, 8),
    "lookup": (0.1, 0.5),
}
"""Number of periods until a join has reached a steady state, and number of periods to measure, by algorithm.

A period is a turn of the wheel, a waiting room full of tuples, or, for ``lookup``, as many look-ups as master rows.
"""

_BATCHES = 250  # a batch has 1/250 of the master's number of rows, but at least 1,000 and at most 20,000


def run(
    directory: Path,
    *,
    rows: int = 2_000_000,
    shares: Sequence[float] = (0.5, 1, 2, 5, 10),
    skews: Sequence[float] = (0.0, 1.0),
    algorithms: Sequence[str] = ("meshjoin", "hybridjoin", "sscj", "ssbj"),
    seed: int = 11,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure joins with several budgets; print and return predictions beside measurements."""
    console = console or Console()
    store = data.master(directory, rows)
    settings = [CostSetting("hdd-2013", name, skew) for name in algorithms for skew in skews]
    settings += [CostSetting("hdd-2007", "meshjoin", skew, leave_early=False) for skew in skews]
    points: list[dict[str, Any]] = []
    demands: list[dict[str, Any]] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("joining", total=len(settings) * (len(shares) + 2))
        for setting in settings:
            mine = []
            for share in shares:
                progress.update(task, description=f"{setting}, {share:g}%")
                mine.append(_point(store, setting, share, seed))
                progress.advance(task)
            progress.update(task, description=f"{setting}, memory for a rate")
            demands.append(_demand(store, setting, mine, seed))
            progress.advance(task, 2)
            points += mine
    errors = {name: errors_of(points, name) for name in ("rate_error", "c_loop_error")}
    errors["memory_error"] = errors_of(demands, "memory_error")
    print_points(console, f"{rows / 1e6:g} M master rows: device time", points, demands, errors)
    return {"rows": rows, "points": points, "demands": demands, "errors": errors}


def errors_of(figures: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Return the median and the largest absolute value of the errors with the key ``name`` in ``figures``."""
    sizes = [abs(f[name]) for f in figures]
    return {"median": median(sizes), "worst": max(sizes)}


def measure(
    store: MasterStore,
    setting: CostSetting,
    memory: str | int,
    seed: int,
    *,
    periods: tuple[float, float] | None = None,
    **options: Any,
) -> dict[str, float]:
    """Measure a join in a steady state; return its rate, seconds per step, tuples per step, hit share and memory."""
    join, device = join_of(store, setting, memory, **options)
    settle, more = periods or PERIODS[setting.algorithm]
    mark: tuple[int, int, int, float] | None = None
    size = batch_rows(store)
    for batch in zipf_stream(store.rows, setting.skew, batch_rows=size, seed=seed):
        for _ in join.push(batch):
            continue
        m = join.metrics
        if mark is None and m.cycles >= settle:
            mark = m.tuples_in, m.cache_hits, m.steps, device.clock.now()
        elif mark is not None and m.cycles >= settle + more:
            break
    assert mark is not None
    tuples, hits, seconds = m.tuples_in - mark[0], m.cache_hits - mark[1], device.clock.now() - mark[3]
    steps = m.steps - mark[2] or tuples / size
    return {
        "rate": tuples / seconds,
        "c_loop": seconds / steps,
        "w": tuples / steps,
        "hit_share": hits / tuples,
        "memory": float(join.budget.total),
    }


def join_workload(store: MasterStore, setting: CostSetting, found: Calibration | None = None) -> Workload:
    """Return the input of the cost model for a setting, with unit costs from a calibration if one is given."""
    join, _ = join_of(store, setting, "1%")
    join.bind(STREAM_SCHEMA)
    frequencies = Frequencies.zipf(setting.skew, store.rows)
    if found is None:
        return workload_of(join.arguments, join.loop.parts.binding, frequencies)
    disk, costs, batch = found.disk, found.costs, batch_rows(store)
    return workload_of(join.arguments, join.loop.parts.binding, frequencies, disk=disk, costs=costs, batch=batch)


def batch_rows(store: MasterStore) -> int:
    """Return the number of tuples in a batch of the stream."""
    return max(1_000, min(20_000, store.rows // _BATCHES))


def join_of(
    store: MasterStore, setting: CostSetting, memory: str | int, **options: Any
) -> tuple[SemiStreamJoin, Device]:
    """Return a join of the setting, and the device that it reads the master from."""
    device = Device(setting.disk, reads="columns" if setting.disk == "none" else "rows")
    join = SemiStreamJoin(
        store,
        on="key",
        algorithm=setting.algorithm,
        memory=memory,
        device=device,
        leave_early=setting.leave_early,
        **options,
    )
    return join, device


def _point(store: MasterStore, setting: CostSetting, share: float, seed: int) -> dict[str, Any]:
    found = measure(store, setting, f"{share}%", seed)
    return {**asdict(setting), "share": share, **predicted_and_measured(join_workload(store, setting), setting, found)}


def predicted_and_measured(model_input: Workload, setting: CostSetting, found: dict[str, float]) -> dict[str, Any]:
    """Return a join's measured figures, the model's predictions, and the relative errors of the predictions."""
    expected = predict(model_input, setting.algorithm, int(found["memory"]))
    names = ("rate", "c_loop", "w", "hit_share", "mean_wait", "worst_wait")
    return {
        "measured": found,
        "predicted": {name: getattr(expected, name) for name in names},
        "rate_error": expected.rate / found["rate"] - 1,
        "c_loop_error": expected.c_loop / found["c_loop"] - 1,
    }


def _demand(store: MasterStore, setting: CostSetting, points: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Compare the memory that the model predicts for a rate with the memory interpolated from the measured points.

    The rate lies between the two measured rates in the middle. It is also measured with the predicted memory.
    """
    rates = [p["measured"]["rate"] for p in points]
    memories = [p["measured"]["memory"] for p in points]
    middle = len(points) // 2
    rate = float(np.sqrt(rates[max(0, middle - 1)] * rates[middle]))
    model_input = join_workload(store, setting)
    needed = memory_for(model_input, setting.algorithm, rate)
    really = float(np.exp(np.interp(np.log(rate), np.log(rates), np.log(memories))))
    got = measure(store, setting, needed.memory, seed)["rate"]
    tuned = for_rate(model_input, setting.algorithm, rate)
    options: dict[str, Any] = {"b": tuned.b}
    if tuned.cache_share is not None:
        options["cache_share"] = tuned.cache_share
    got_tuned = measure(store, setting, tuned.memory, seed, **options)["rate"]
    return {
        **asdict(setting),
        "rate": rate,
        "memory": needed.memory,
        "really": really,
        "memory_error": needed.memory / really - 1,
        "rate_with_it": got,
        "rate_error": got / rate - 1,
        "tuned_memory": tuned.memory,
        "tuned_options": options,
        "tuned_rate": got_tuned,
        "tuned_rate_error": got_tuned / rate - 1,
    }


def print_points(
    console: Console,
    title: str,
    points: list[dict[str, Any]],
    demands: list[dict[str, Any]],
    errors: dict[str, dict[str, float]],
) -> None:
    """Print predictions beside measurements, and a summary of the errors."""
    table = Table(title=f"Predicted and measured, {title}")
    for column in ("memory", "c_loop, ms: model", "measured", "", "tuples/s: model", "measured", "", "hits: model", ""):
        table.add_column(column, justify="right")
    for setting in dict.fromkeys(_setting_of(p) for p in points):
        table.add_section()
        table.add_row(f"[bold]{setting}")
        for p in points:
            if _setting_of(p) == setting:
                model, engine = p["predicted"], p["measured"]
                table.add_row(
                    f"{p['share']:g}%",
                    f"{model['c_loop'] * 1e3:,.1f}",
                    f"{engine['c_loop'] * 1e3:,.1f}",
                    f"{p['c_loop_error']:+.1%}",
                    f"{model['rate']:,.0f}",
                    f"{engine['rate']:,.0f}",
                    f"{p['rate_error']:+.1%}",
                    f"{model['hit_share']:.1%}",
                    f"{engine['hit_share']:.1%}",
                )
    console.print(table)
    if demands:
        console.print(_demand_table(demands))
    for name, error in errors.items():
        console.print(f"{name.replace('_', ' ')}: median {error['median']:.1%}, worst {error['worst']:.1%}")


def _demand_table(demands: list[dict[str, Any]]) -> Table:
    table = Table(title="Memory for a rate")
    for column in ("", "tuples/s", "MB: model", "really", "", "rate with it", "", "MB: tuned", "its rate", ""):
        table.add_column(column, justify="right")
    for d in demands:
        table.add_row(
            str(_setting_of(d)),
            f"{d['rate']:,.0f}",
            f"{d['memory'] / 1e6:.2f}",
            f"{d['really'] / 1e6:.2f}",
            f"{d['memory_error']:+.1%}",
            f"{d['rate_with_it']:,.0f}",
            f"{d['rate_error']:+.1%}",
            f"{d['tuned_memory'] / 1e6:.2f}",
            f"{d['tuned_rate']:,.0f}",
            f"{d['tuned_rate_error']:+.1%}",
        )
    return table


def _setting_of(figures: dict[str, Any]) -> CostSetting:
    return CostSetting(figures["disk"], figures["algorithm"], figures["skew"], figures["leave_early"])
