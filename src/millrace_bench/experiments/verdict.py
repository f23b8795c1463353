"""Decide whether a figure shows what the paper claims: reproduced, partly, or not, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from millrace_bench.experiments.experiment import METRICS, Claim, Experiment, Gap, Peak, Ratio

Verdict = Literal["reproduced", "partly", "not reproduced", "not measured"]

Values = dict[str, dict[float, dict[int, float]]]
"""Measured values by the line's name, then by the value of the parameter that varies, then by seed."""

# Quantiles of Student's t for a two-sided 95 % interval, by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


_PART = 1 / 3
"""A measured ratio is partly reproduced if its logarithm is from 1/3 to 3 times that of the paper's ratio."""


_UNKNOWN = "why is not known"
_MOST_PLACES = 6


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % confidence interval, whose ends are None for a single value or an infinite mean."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return the mean of independent values, with Student's 95 % confidence interval.

        >>> str(Interval.of([1.0, 2.0, 3.0]))
        '2.00 (-0.48 to 4.48)'
        """
        mean = fmean(values)
        if len(values) < 2 or not math.isfinite(mean):
            return cls(mean, None, None)
        free = len(values) - 1
        t = _T[free - 1] if free <= len(_T) else 1.960 + 2.5 / free
        half = t * stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half)

    @classmethod
    def of_ratios(cls, ratios: Sequence[float]) -> Interval:
        """Return the mean and interval of ratios, computed on logarithms, so that 0.5 is as far from 1 as 2.

        >>> str(Interval.of_ratios([1.0, 2.0, 4.0])), str(Interval.of_ratios([1000.0, 1200.0]))
        ('2.00 (0.36 to 11.2)', '1,095 (344 to 3,488)')
        """
        if not all(0 < ratio < math.inf for ratio in ratios):
            return cls.of(ratios)
        logs = cls.of([math.log(ratio) for ratio in ratios])
        if logs.low is None or logs.high is None:
            return cls(ratios[0], None, None)
        return cls(*(math.exp(end) for end in (logs.mean, logs.low, logs.high)))

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return few(self.mean)
        return f"{few(self.mean)} ({few(self.low)} to {few(self.high)})"


def few(value: float) -> str:
    """Return a number as text, with up to three significant digits, or as a whole number if it is large.

    >>> [few(value) for value in (44015.58, 387.9, 36.28, 1.554, 0.0249, 0.0)]
    ['44,016', '388', '36.3', '1.55', '0.025', '0.00']
    """
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or not size else 3
    return f"{value:,.{digits}f}"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim, with what was measured and, if that differs from the paper, the reason."""

    says: str
    verdict: Verdict
    measured: str
    because: str = ""
    ratios: tuple[tuple[float, Interval], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        ratios = [
            {"at": at, "mean": i.mean if math.isfinite(i.mean) else None, "low": i.low, "high": i.high}
            for at, i in self.ratios
        ]
        return {**vars(self), "ratios": ratios}


def judge(experiment: Experiment, claim: Claim, values: Values) -> Judgement:
    """Return the verdict on a claim about an experiment, given the measured values."""
    match claim:
        case Ratio():
            found = _ratio(claim, values)
        case Gap():
            found = _gap(claim, values)
        case Peak():
            found = _peak(experiment, claim, values)
    return found if found is not None else Judgement(claim.says, "not measured", "", "its points have not been run")


def _ratio(claim: Ratio, values: Values) -> Judgement | None:
    over = values.get(claim.over, {})
    under = values.get(claim.under, {}) if claim.under else {x: dict.fromkeys(many, 1.0) for x, many in over.items()}
    shared = sorted(over.keys() & under.keys())
    if not shared:
        return None
    places = shared if claim.at == "every" else [_place(claim.at, shared)]
    ratios: list[tuple[float, Interval]] = []
    for at in places:
        other = at if claim.under_at is None else _place(claim.under_at, shared)
        here, there = over.get(at, {}), under.get(other, {})
        pairs = [(here[seed], there[seed]) for seed in here if seed in there]
        pairs = [(a, b) for a, b in pairs if a or b]  # two zeros have no ratio
        if not pairs:
            return None
        quotients = [a / b if b else math.inf for a, b in pairs]
        ratios.append((at, Interval.of_ratios(quotients) if claim.under else Interval.of(quotients)))
    held = [_verdict(claim, interval.mean) for _, interval in ratios]
    mixed: Verdict = "partly" if "reproduced" in held else "not reproduced"
    verdict = held[0] if len(set(held)) == 1 else mixed
    because = ""
    if verdict != "reproduced":
        means = [interval.mean for _, interval in ratios]
        came = few(min(means)) if len(means) == 1 else f"{few(min(means))} to {few(max(means))}"
        what = "value" if claim.under is None else "ratio"
        about = f" give or take {claim.tolerance:.0%}" if claim.tolerance else ""
        because = f"the {what} is {came}, the paper's {_range(claim.paper)}{about}; {claim.why or _UNKNOWN}"
    return Judgement(claim.says, verdict, _shown(ratios), because, tuple(ratios))


def _shown(ratios: Sequence[tuple[float, Interval]]) -> str:
    """Return the ratios and their parameter values as text; if there are many, only the least and the greatest."""
    if len(ratios) == 1:
        return str(ratios[0][1])
    by_mean = sorted(ratios, key=lambda one: one[1].mean)
    some = ratios if len(ratios) <= _MOST_PLACES else (by_mean[0], by_mean[-1])
    shown = [f"{interval} at {_at(at)}" for at, interval in some]
    return "; ".join(shown) if some is ratios else f"{len(ratios)} places: {' to '.join(shown)}"


def _gap(claim: Gap, values: Values) -> Judgement | None:
    over, under = values.get(claim.over, {}), values.get(claim.under, {})
    shared = sorted(over.keys() & under.keys())
    if len(shared) < 2:
        return None
    at, other = _place(claim.at, shared), _place(claim.than_at, shared)
    lines = [line.get(x, {}) for x in (at, other) for line in (over, under)]
    seeds = set(lines[0]).intersection(*lines[1:])
    if not seeds or at == other:
        return None
    by_seed = ([line[seed] for line in lines] for seed in sorted(seeds))
    gaps = ((_apart(claim, a, b), _apart(claim, c, d)) for a, b, c, d in by_seed)
    interval = Interval.of_ratios([here / there if there else math.inf for here, there in gaps])
    grown, sure = interval.mean > 1, interval.low is None or interval.low > 1
    verdict: Verdict = "not reproduced" if not grown else "reproduced" if sure else "partly"
    because = ""
    if not grown:
        because = f"the gap is {few(interval.mean)} times that at {_at(other)}; {claim.why or _UNKNOWN}"
    elif not sure:
        because = f"the gap is {interval} times that at {_at(other)}; seeds differ by as much"
    measured = f"the gap at {_at(at)} is {interval} times that at {_at(other)}"
    return Judgement(claim.says, verdict, measured, because, ((at, interval),))


def _verdict(claim: Ratio, ratio: float) -> Verdict:
    low, high = claim.paper
    if low * (1 - claim.tolerance) <= ratio <= high * (1 + claim.tolerance):
        return "reproduced"
    nearest = low if ratio < low else high
    if claim.under is None or ratio <= 0 or nearest <= 0 or math.log(nearest) * math.log(ratio) <= 0:
        return "not reproduced"  # on the other side of 1, or not a ratio at all
    return "partly" if _PART <= math.log(ratio) / math.log(nearest) <= 1 / _PART else "not reproduced"


def _apart(claim: Gap, over: float, under: float) -> float:
    if claim.as_ == "difference":
        return over - under
    return over / under if under else math.inf


def _peak(experiment: Experiment, claim: Peak, values: Values) -> Judgement | None:
    line = values.get(claim.series, {})
    means = {x: fmean(line[x].values()) for x in sorted(line)}
    if len(means) < 2:
        return None
    lower = METRICS[experiment.metric].better == "lower"
    best = (min if lower else max)(means, key=lambda x: means[x])
    ends = (min(means), max(means))
    if claim.between is None:
        inside = [x for x in means if x not in ends]
        wanted = "between the ends"
    else:
        inside = [x for x in means if claim.between[0] <= x <= claim.between[1]]
        wanted = _range(claim.between)
    if not inside:
        return None
    nearest = (min if lower else max)(inside, key=lambda x: means[x])
    off = abs(means[nearest] / means[best] - 1) if means[best] else 0.0
    verdict: Verdict = "reproduced" if best in inside else "partly" if off <= claim.tolerance else "not reproduced"
    because = ""
    if verdict != "reproduced":
        because = f"the best is at {best:g}, the paper's {wanted}, where it is {off:.1%} off; " + (
            claim.why or _UNKNOWN
        )
    return Judgement(claim.says, verdict, f"best at {_at(best)}", because)


def _at(x: float) -> str:
    """Return a value of the parameter that varies as a short text.

    >>> _at(20_000_000), _at(50_000), _at(0.25)
    ('20 M', '50,000', '0.25')
    """
    return f"{x / 1e6:g} M" if x >= 1e6 else f"{x:,.0f}" if x >= 10_000 else f"{x:g}"


def _place(at: float | str, shared: list[float]) -> float:
    if isinstance(at, str):
        return shared[0] if at == "first" else shared[-1]
    return float(at)


def _range(ends: tuple[float, float]) -> str:
    low, high = ends
    if high == math.inf:
        return f"at least {low:g}"
    if low == 0:
        return f"at most {high:g}"
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
