"""Compare two result files: find the points that got worse by more than their values differ between seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from millrace.core.errors import ConfigError
from millrace_bench.experiments.verdict import Interval

TOLERANCE = 0.03
"""Share by which a value may get worse without being reported."""


@dataclass(frozen=True)
class Change:
    """A point of a figure that both result files contain, with its values before and after."""

    experiment: str
    series: str
    x: float
    before: float
    after: float
    change: Interval
    """Mean and interval of the logarithm of the ratio of the values, over the seeds that both files have.

    It is above 0 for an improvement.
    """
    tolerance: float = TOLERANCE
    repeats: bool = True
    """Whether the same code gives the same value again, as on a modelled disk."""

    @property
    def sure(self) -> bool:
        """Whether the change is too large to be explained by the seeds or by the machine's varying speed."""
        low, high = self.change.low, self.change.high
        if low is None or high is None:
            return self.repeats or not math.isfinite(self.change.mean)
        return low > 0 or high < 0

    @property
    def factor(self) -> str:
        """The change in percent of the value before, as text; ``"from nothing"`` if that value was 0."""
        share = self.after / self.before - 1 if self.before else math.inf
        return f"{share:+.1%}" if math.isfinite(share) else "from nothing"

    @property
    def regression(self) -> bool:
        return self.sure and self.change.mean < math.log1p(-self.tolerance)

    @property
    def improvement(self) -> bool:
        return self.sure and self.change.mean > math.log1p(self.tolerance)


def compare(before: dict[str, Any], after: dict[str, Any], tolerance: float = TOLERANCE) -> list[Change]:
    """Return the changes of all points that both results contain, in figures where higher or lower is better."""
    if not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance: expected a share from 0 to below 1; got {tolerance}")
    if before["size"] != after["size"]:
        raise ConfigError(f"compare: expected results of the same size; got {before['size']!r} and {after['size']!r}")
    on = [results.get("on", "model") for results in (before, after)]
    if on[0] != on[1]:
        raise ConfigError(
            "compare: expected results measured in the same way, on a disk model or on the machine; "
            f"got {on[0]!r} and {on[1]!r}"
        )
    found = list(_changes(before["experiments"], after["experiments"], tolerance, on[0] == "model"))
    if not found:
        raise ConfigError(
            "compare: expected points that both files contain with the same seed, in figures where higher or lower is "
            "better; there is no point in common"
        )
    return found


def left_out(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return lines of text that list what the comparison leaves out.

    These are figures with points that ``after`` lacks, and figures for which neither higher nor lower values are
    better.
    """
    gone, neutral = [], []
    for name, figure in before["experiments"].items():
        new = after["experiments"].get(name, {"series": {}, "better": figure["better"]})
        there = {series: {point["x"] for point in line} for series, line in new["series"].items()}
        lines = figure["series"].items()
        lost = sum(point["x"] not in there.get(series, ()) for series, line in lines for point in line)
        if lost:
            gone.append(f"{name} ({lost})")
        elif not new["better"]:
            neutral.append(name)
    texts = [f"points that only the first has: {', '.join(gone)}"] if gone else []
    return [*texts, f"neither better nor worse: {', '.join(neutral)}"] if neutral else texts


def verdicts_lost(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return a line for each claim that was reproduced before and is not reproduced after."""
    lost = []
    for name, figure in after["experiments"].items():
        old = {c["says"]: c["verdict"] for c in before["experiments"].get(name, {}).get("claims", [])}
        lost += [
            f"{name}: {claim['says']}: {claim['verdict']}, because {claim['because']}"
            for claim in figure["claims"]
            if old.get(claim["says"]) == "reproduced" and claim["verdict"] != "reproduced"
        ]
    return lost


def _changes(before: dict[str, Any], after: dict[str, Any], tolerance: float, repeats: bool) -> Iterator[Change]:
    for name, figure in after.items():
        if name not in before or not figure["better"]:
            continue
        sign = 1 if figure["better"] == "higher" else -1
        for series, line in figure["series"].items():
            old = {p["x"]: p for p in before[name]["series"].get(series, [])}
            for point in line:
                if point["x"] in old:
                    pair = (old[point["x"]], point)
                    shared = [seed for seed in point["values"] if seed in pair[0]["values"]]
                    gains = [sign * _log_ratio(point["values"][seed], pair[0]["values"][seed]) for seed in shared]
                    if gains:
                        was, now = (fmean(p["values"][seed] for seed in shared) for p in pair)
                        yield Change(name, series, point["x"], was, now, Interval.of(gains), tolerance, repeats)


def _log_ratio(new: float, old: float) -> float:
    """Return the logarithm of ``new / old``: infinite if one of them is 0, and 0 if both are."""
    if new > 0 and old > 0:
        return math.log(new / old)
    return 0.0 if new == old else math.copysign(math.inf, new - old)
