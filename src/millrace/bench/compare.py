"""Two result files side by side: what got worse, beyond what seeds explain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millrace.bench.verdict import Interval
from millrace.core.errors import ConfigError

TOLERANCE = 0.03
"""How much worse a value may get before anybody is told."""


@dataclass(frozen=True)
class Change:
    """A point that is in both results."""

    experiment: str
    series: str
    x: float
    before: float
    after: float
    change: Interval
    """By what share it got better (above 0) or worse, over the seeds that both have."""
    tolerance: float = TOLERANCE

    @property
    def sure(self) -> bool:
        """Whether more than seeds has to explain it."""
        low, high = self.change.low, self.change.high
        return low is None or high is None or low > 0 or high < 0

    @property
    def regression(self) -> bool:
        return self.sure and self.change.mean < -self.tolerance

    @property
    def improvement(self) -> bool:
        return self.sure and self.change.mean > self.tolerance


def compare(before: dict[str, Any], after: dict[str, Any], tolerance: float = TOLERANCE) -> list[Change]:
    """All points that both have and that can be better or worse."""
    if before["size"] != after["size"]:
        raise ConfigError(f"compare: expected results of one size; got {before['size']!r} and {after['size']!r}")
    on = [results.get("on", "model") for results in (before, after)]
    if on[0] != on[1]:
        raise ConfigError(f"compare: expected results of one kind; got those of a {on[0]} and of a {on[1]}")
    found = list(_changes(before["experiments"], after["experiments"], tolerance))
    if not found:
        raise ConfigError("compare: the two have no point in common; were they run with the same names and seeds?")
    return found


def verdicts_lost(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Claims that were reproduced and are not any more."""
    lost = []
    for name, figure in after["experiments"].items():
        old = {c["says"]: c["verdict"] for c in before["experiments"].get(name, {}).get("claims", [])}
        lost += [
            f"{name}: {claim['says']}: {claim['verdict']}, because {claim['because']}"
            for claim in figure["claims"]
            if old.get(claim["says"]) == "reproduced" and claim["verdict"] != "reproduced"
        ]
    return lost


def _changes(before: dict[str, Any], after: dict[str, Any], tolerance: float) -> Iterator[Change]:
    for name, figure in after.items():
        if name not in before or not figure["better"]:
            continue
        sign = 1 if figure["better"] == "higher" else -1
        for series, line in figure["series"].items():
            old = {p["x"]: p for p in before[name]["series"].get(series, [])}
            for point in line:
                if point["x"] in old:
                    gains = _gains(old[point["x"]]["values"], point["values"], sign)
                    if gains:
                        was, now = old[point["x"]]["mean"], point["mean"]
                        yield Change(name, series, point["x"], was, now, Interval.of(gains), tolerance)


def _gains(old: dict[str, float], new: dict[str, float], sign: int) -> list[float]:
    """For every seed that both have, by what share it got better; what came from 0 or went there, beyond all bounds."""
    return [sign * _log_ratio(new[seed], old[seed]) for seed in new if seed in old]


def _log_ratio(new: float, old: float) -> float:
    if new > 0 and old > 0:
        return math.log(new / old)
    return 0.0 if new == old else math.copysign(math.inf, new - old)
