"""Claims held against values: what is reproduced, what is not, and what is said about it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest

from millrace_bench.experiments.catalogue import EXPERIMENTS
from millrace_bench.experiments.experiment import Claim, Gap, Peak, Ratio
from millrace_bench.experiments.verdict import Interval, Judgement, Values, judge

_EXPERIMENT = EXPERIMENTS["ssbj-5a"]


Lists = dict[str, dict[float, list[float]]]


def _by_seed(values: Lists) -> Values:
    return {name: {x: dict(enumerate(many)) for x, many in line.items()} for name, line in values.items()}


def _judged(claim: Claim, values: Lists) -> Judgement:
    return judge(_EXPERIMENT, claim, _by_seed(values))


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (8.0, "reproduced"),
        (5.2, "reproduced"),
        (3.0, "partly"),
        (9.0, "partly"),
        (1.2, "not reproduced"),
        (0.9, "not reproduced"),
    ],
)
def test_a_ratio_is_held_against_the_papers(ratio: float, verdict: str) -> None:
    claim = Ratio("faster", "ssbj", "meshjoin", (5.7, 8), "last", tolerance=0.1, why="of something")
    found = _judged(claim, {"ssbj": {1: [1.0], 10: [10 * ratio]}, "meshjoin": {1: [1.0], 10: [10.0]}})
    assert found.verdict == verdict
    if verdict == "reproduced":
        assert found.because == ""
    else:
        assert found.because == f"the ratio is {ratio:.2f}, the paper's 5.7 to 8 give or take 10%; of something"


def test_a_claim_that_fails_everywhere_is_not_reproduced_and_says_so() -> None:
    claim = Ratio("better everywhere", "ssbj", "meshjoin", (1, inf))
    below: Lists = {"ssbj": {1: [0.5, 0.6], 2: [0.7, 0.8]}, "meshjoin": {1: [1.0, 1.0], 2: [1.0, 1.0]}}
    found = _judged(claim, below)
    assert found.verdict == "not reproduced"
    assert found.because == "the ratio is 0.55 to 0.75, the paper's at least 1; why is not known"
    assert _judged(claim, below | {"ssbj": {1: [2.0, 2.0], 2: [0.7, 0.8]}}).verdict == "partly"


def test_ratios_are_taken_seed_by_seed() -> None:
    claim = Ratio("twice", "ssbj", "meshjoin", (2, 2), 1)
    found = _judged(claim, {"ssbj": {1: [2.0, 20.0, 200.0]}, "meshjoin": {1: [1.0, 10.0, 100.0]}})
    ((at, interval),) = found.ratios
    assert (at, interval) == (1, Interval(2.0, 2.0, 2.0))


def test_a_seed_that_one_side_lacks_does_not_count() -> None:
    values: Values = {"ssbj": {1: {11: 8.0, 12: 2.0}}, "meshjoin": {1: {12: 1.0, 13: 100.0}}}
    assert judge(_EXPERIMENT, Ratio("twice", "ssbj", "meshjoin", (2, 2), 1), values).verdict == "reproduced"
    nobody: Values = {"ssbj": {1: {11: 8.0}}, "meshjoin": {1: {12: 1.0}}}
    assert judge(_EXPERIMENT, Ratio("twice", "ssbj", "meshjoin", (2, 2), 1), nobody).verdict == "not measured"


def test_nothing_to_divide_by_is_no_crash_and_no_number_in_the_file() -> None:
    found = _judged(
        Ratio("more", "ssbj", "meshjoin", (1, inf), 1), {"ssbj": {1: [1.0, 1.0]}, "meshjoin": {1: [0.0, 1.0]}}
    )
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["ratios"][0]["mean"] is None


def test_places_and_values() -> None:
    values: Lists = {"ssbj": {0: [39.0], 1: [54.0]}, "meshjoin": {0: [4.0], 1: [2.0]}}
    assert _judged(Ratio("", "ssbj", None, (54, 54), "last"), values).verdict == "reproduced"
    assert _judged(Ratio("", "meshjoin", "meshjoin", (0.5, 0.5), "last", "first"), values).verdict == "reproduced"
    assert _judged(Ratio("", "meshjoin", "meshjoin", (2, 2), 0, 1), values).verdict == "reproduced"
    assert _judged(Ratio("", "meshjoin", "meshjoin", (2, 2), 0, 7), values).verdict == "not measured"
    assert _judged(Ratio("", "ssbj", None, (39, 39), "last"), values).verdict == "not reproduced", "a value has no side"
    assert _judged(Ratio("", "ssbj", "meshjoin", (2, 2)), {}).verdict == "not measured"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((1.0, 3.0, 2.0), "reproduced"), ((3.0, 2.95, 2.0), "partly"), ((3.0, 2.0, 1.0), "not reproduced")],
)
def test_a_peak_inside(values: tuple[float, ...], verdict: str) -> None:
    line = {float(x): [value] for x, value in enumerate(values)}
    assert _judged(Peak("inside", "ssbj"), {"ssbj": line}).verdict == verdict
    lower = replace(EXPERIMENTS["meshjoin-5a"])
    upside_down = {x: [1 / value for value in one] for x, one in line.items()}
    assert judge(lower, Peak("inside", "meshjoin"), _by_seed({"meshjoin": upside_down})).verdict == verdict


def test_a_peak_at_a_place() -> None:
    line = {0.5: [8.0], 1.0: [10.0], 2.0: [9.0]}
    assert _judged(Peak("at 1", "ssbj", (1, 1)), {"ssbj": line}).verdict == "reproduced"
    found = _judged(Peak("at 2", "ssbj", (2, 4)), {"ssbj": line})
    assert (found.verdict, found.measured) == ("not reproduced", "best at 1")
    assert "where it is 10.0% off" in found.because


def test_students_interval() -> None:
    assert Interval.of([5.0]) == Interval(5.0, None, None)
    interval = Interval.of([9.0, 10.0, 11.0, 10.0, 10.0])
    assert interval.high is not None
    assert interval.high - interval.mean == pytest.approx(2.776 * 0.7071 / 5**0.5, rel=1e-3)


def test_a_gap_that_grows() -> None:
    values: Lists = {"ssbj": {1: [4.0, 5.0], 10: [30.0, 40.0]}, "meshjoin": {1: [2.0, 2.0], 10: [10.0, 10.0]}}
    found = _judged(Gap("grows", "ssbj", "meshjoin"), values)
    assert (found.verdict, found.because) == ("reproduced", "")
    assert found.measured.startswith("the gap at 10 is 1.55 ("), "30/10 to 4/2, and 40/10 to 5/2"
    assert _judged(Gap("grows", "ssbj", "meshjoin"), values | {"ssbj": {1: [4.0, 5.0], 10: [12.0, 90.0]}}).because == (
        "the gap is 1.47 (0.000 to 129,069) times that at 1; seeds differ by as much"
    )
    falls = _judged(Gap("falls", "ssbj", "meshjoin", "first", "last", why="it grows"), values)
    assert (falls.verdict, falls.because) == ("not reproduced", "the gap is 0.65 times that at 10; it grows")
    seen = _judged(Gap("grows", "ssbj", "meshjoin", as_="difference"), values)
    assert seen.ratios[0][1].mean == pytest.approx(10.0), "20 to 2, and 30 to 3"
    assert _judged(Gap("grows", "ssbj", "meshjoin"), {"ssbj": {1: [4.0]}, "meshjoin": {}}).verdict == "not measured"
    nothing: Lists = {"ssbj": {1: [4.0], 2: [1.0]}, "meshjoin": {1: [4.0], 2: [0.0]}}
    assert json.dumps(_judged(Gap("", "ssbj", "meshjoin", as_="difference"), nothing).as_dict(), allow_nan=False)


def test_nothing_beside_nothing_is_not_measured() -> None:
    claim = Ratio("above", "ssbj", "meshjoin", (1, inf), 1)
    assert _judged(claim, {"ssbj": {1: [0.0, 0.0]}, "meshjoin": {1: [0.0, 0.0]}}).verdict == "not measured"
    assert _judged(claim, {"ssbj": {1: [1.0]}, "meshjoin": {1: [0.0]}}).verdict == "reproduced"


def test_parts_without_a_right_place_are_no_part() -> None:
    claim = Ratio("7 times", "ssbj", "meshjoin", (7, 7))
    values: Lists = {"ssbj": {1: [1.5], 2: [2.5]}, "meshjoin": {1: [1.0], 2: [1.0]}}
    assert _judged(claim, values).verdict == "not reproduced", "not at 1, partly at 2"
    assert _judged(claim, values | {"ssbj": {1: [1.5], 2: [7.0]}}).verdict == "partly"


def test_many_places_are_told_by_their_ends() -> None:
    line = {float(x): [10.0 + x] for x in range(8)}
    values: Lists = {"ssbj": line, "meshjoin": {x: [10.0] for x in line}}
    found = _judged(Ratio("above", "ssbj", "meshjoin", (1, inf)), values)
    assert (found.verdict, found.measured) == ("reproduced", "8 places: 1.00 at 0 to 1.70 at 7")
