"""Results of experiments as one JSON file: the values by seed, their intervals, the machine and the versions."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

from millrace.core.errors import ConfigError, StoreError
from millrace.core.files.atomic import write_file
from millrace.semistream.choose.unit_cost_file import processor
from millrace_bench.experiments import inputs
from millrace_bench.experiments.experiment import AXES, METRICS, SEEDS, Experiment, Run, Size
from millrace_bench.experiments.runner import OutcomeJournal, with_real_data
from millrace_bench.experiments.sets import DESCRIPTIONS
from millrace_bench.experiments.verdict import Interval, Values, Verdict, judge

FORMAT = 1
_DESCRIPTIONS = DESCRIPTIONS | inputs.DESCRIPTIONS
_NAME = re.compile(r"[\w.-]+")
_TEXTS = ("paper", "reference", "figure", "title", "says", "varies", "x_label", "y_label", "better", "disk", "rows_of")
_PACKAGES = ("python", "millrace", "numpy", "pyarrow", "numba")


def collect(
    experiments: Sequence[Experiment],
    size: Size,
    directory: Path,
    journal: OutcomeJournal,
    seeds: Sequence[int] | None = None,
    also: Iterable[Experiment] = (),
) -> dict[str, Any]:
    """Return the results of all ``experiments``, and of those experiments in ``also`` whose results are complete."""
    used = list(SEEDS[size] if seeds is None else seeds)
    figures = {e.name: _figure(e, size, directory, journal, used) for e in experiments}
    others = {e.name: _figure(e, size, directory, journal, used) for e in also if e.name not in figures}
    figures |= {name: figure for name, figure in others.items() if figure["complete"]}
    return {
        "format": FORMAT,
        "size": size,
        "on": _timed_by(figures.values()),
        "seeds": used,
        "repetitions": len(used),
        "machine": _machine(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "experiments": {name: figure for name, figure in figures.items() if any(figure["series"].values())},
    }


def _figure(
    experiment: Experiment, size: Size, directory: Path, journal: OutcomeJournal, seeds: Sequence[int]
) -> dict[str, Any]:
    metric = METRICS[experiment.metric]
    values: Values = {}
    series: dict[str, list[dict[str, Any]]] = {line.name: [] for line in experiment.series}
    shown: list[Run] = []
    for line, x, planned in experiment.points(size):
        point = with_real_data(planned, directory)
        found = {seed: journal.get(point, seed) for seed in seeds}
        measured = {seed: one[experiment.reading(x)] * metric.factor for seed, one in found.items() if one is not None}
        if not measured:
            continue
        shown.append(point)
        interval = Interval.of(list(measured.values()))
        values.setdefault(line.name, {})[x] = measured
        series[line.name].append(
            {
                "x": x,
                "mean": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "values": {str(seed): value for seed, value in measured.items()},
            }
        )
    rows = sorted({point.rows for point in shown})
    return {
        "paper": experiment.source.name,
        "reference": experiment.source.reference,
        "figure": experiment.figure,
        "title": experiment.title,
        "says": experiment.says,
        "varies": experiment.varies,
        "x_label": AXES[experiment.varies].format(whole=(shown[0] if shown else Run).whole),
        "log_x": experiment.log_x,
        "metric": experiment.metric,
        "y_label": metric.label,
        "log_y": metric.log,
        "better": metric.better,
        "data": [_described(point) for point in _one_of_each(shown)],
        "rows": [rows[0], rows[-1]] if rows else [],
        "factor": experiment.factor(size),
        "rows_of": shown[0].rows_of if shown else "",
        "disk": shown[0].conditions if shown else "",
        "fixed": {
            name: value
            for name, value in experiment.parameters.items()
            if name not in ("data", "scaled_seek") and value is not None
        },
        "complete": _is_complete(series, len(experiment.series) * len(experiment.at(size)), len(seeds)),
        "series": series,
        "claims": [judge(experiment, claim, values).as_dict() for claim in experiment.claims],
    }


def _is_complete(series: dict[str, list[dict[str, Any]]], points: int, seeds: int) -> bool:
    """Return whether all points of a figure were run with all seeds."""
    found = [point for line in series.values() for point in line]
    return len(found) == points and all(len(point["values"]) == seeds for point in found)


def _timed_by(figures: Iterable[dict[str, Any]]) -> str:
    """Return ``"machine"`` if times were measured on this machine, ``"model"`` if they are the disk model's."""
    return "machine" if any(figure["fixed"].get("disk") == "none" for figure in figures) else "model"


def _one_of_each(points: Sequence[Run]) -> list[Run]:
    return list({("equations" if point.by == "equations" else point.data): point for point in points}.values())


def _described(point: Run) -> str:
    return "no data: the paper's equations" if point.by == "equations" else _DESCRIPTIONS[point.data]


def _machine() -> dict[str, Any]:
    return {"cpu": processor(), "cores": os.cpu_count(), "system": platform.system()}


def _version(name: str) -> str:
    if name == "python":
        return platform.python_version()
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def write(results: dict[str, Any], path: Path) -> None:
    """Write results to a JSON file, as a whole or not at all."""
    write_whole(path, json.dumps(results, indent=1, allow_nan=False).encode() + b"\n")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file as a whole, or leave it as it was and raise StoreError with its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)
    except OSError as error:
        raise StoreError(f"{path}: could not be written: {error.strerror or error}") from error


def read(path: Path) -> dict[str, Any]:
    """Return the results in a file; raise ConfigError that says what is wrong if the file is not valid."""
    if not path.is_file():
        raise ConfigError(f"results: expected a file that `millrace bench run` wrote; {path} does not exist")
    try:
        found: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    needed = {"size", "seeds", "machine", "versions"}
    if not isinstance(found, dict) or found.get("format") != FORMAT or not needed <= found.keys():
        raise ConfigError(
            f"{path}: expected results that `millrace bench run` wrote, in format {FORMAT}; "
            "this file has another format or lacks fields"
        )
    if not isinstance(found.get("experiments"), dict):
        raise ConfigError(f"{path}: expected an object with figures by name under 'experiments'; there is none")
    for name, figure in found["experiments"].items():
        if not _NAME.fullmatch(name) or not _is_valid(figure):
            raise ConfigError(
                f"{path}: {name}: expected a figure as `millrace bench run` writes it; its "
                "name is not allowed, or a field is missing or not valid"
            )
    return found


def _is_valid(figure: Any) -> bool:
    """Return whether a figure has all fields, and finite numbers where numbers are expected."""
    try:
        points = [point for line in figure["series"].values() for point in line]
        numbers = [value for point in points for value in (point["x"], point["mean"], *point["values"].values())]
        numbers += [end for point in points for end in (point["low"], point["high"]) if end is not None]
        verdicts = {claim["verdict"] for claim in figure["claims"]}
        texts = [claim[name] for claim in figure["claims"] for name in ("says", "measured", "because")]
        texts += [figure[name] for name in _TEXTS]
        low, high = figure["rows"]
        return (
            all(math.isfinite(number) for number in (*numbers, low, high))
            and figure["factor"] > 0
            and verdicts <= set(get_args(Verdict))
            and all(isinstance(text, str) for text in (*texts, *figure["data"]))
            and isinstance(figure["fixed"], dict)
            and {"log_x", "log_y", "complete"} <= figure.keys()
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
