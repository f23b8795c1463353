"""Two results side by side: a real loss is flagged, noise is not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace.core.errors import ConfigError
from millrace_bench.experiments.compare import compare, left_out, verdicts_lost

_SEEDS = range(11, 16)


def _results(rates: dict[str, list[float]], better: str = "higher", verdict: str = "reproduced") -> dict[str, Any]:
    line = [
        {"x": float(x), "mean": sum(values) / len(values), "values": dict(zip(map(str, _SEEDS), values, strict=False))}
        for x, values in rates.items()
    ]
    claims = [{"says": "fast", "verdict": verdict, "because": "it is slow"}]
    return {"size": "small", "experiments": {"a-1": {"better": better, "series": {"ssbj": line}, "claims": claims}}}


def test_an_injected_loss_is_flagged_and_nothing_else() -> None:
    before = _results({"1": [100.0, 110, 90, 105, 95], "2": [100.0, 110, 90, 105, 95]})
    after = _results({"1": [80.0, 88, 72, 84, 76], "2": [100.0, 110, 90, 105, 95]})
    changes = compare(before, after)
    assert [(c.x, c.regression, c.improvement) for c in changes] == [(1, True, False), (2, False, False)]
    assert [c.improvement for c in compare(after, before)] == [True, False]


def test_noise_is_not_flagged() -> None:
    chance = random.Random(5)
    flagged = 0
    for _ in range(200):
        noisy = [[100 * (1 + 0.1 * chance.uniform(-1, 1)) for _ in _SEEDS] for _ in range(2)]
        flagged += compare(_results({"1": noisy[0]}), _results({"1": noisy[1]}))[0].regression
    assert flagged <= 10, "one side of an interval of 95 %"
    wild = compare(_results({"1": [100.0, 100, 100]}), _results({"1": [50.0, 100, 130]}))
    assert not wild[0].regression, "worse on the whole, but by less than seeds differ"


def test_a_model_and_a_machine_are_not_compared() -> None:
    with pytest.raises(ConfigError, match="expected results measured in the same way"):
        compare(_results({"1": [1.0]}), {**_results({"1": [1.0]}), "on": "machine"})


def test_a_small_loss_is_within_tolerance_and_one_run_needs_no_interval() -> None:
    assert not compare(_results({"1": [100.0]}), _results({"1": [98.0]}))[0].regression
    assert compare(_results({"1": [100.0]}), _results({"1": [98.0]}), tolerance=0.01)[0].regression
    assert compare(_results({"1": [100.0]}), _results({"1": [90.0]}))[0].regression


def test_less_memory_is_better() -> None:
    changes = compare(_results({"1": [100.0]}, "lower"), _results({"1": [90.0]}, "lower"))
    assert changes[0].improvement


def test_what_cannot_be_compared_is_an_error() -> None:
    one = _results({"1": [1.0]})
    with pytest.raises(ConfigError, match="of the same size; got 'small' and 'paper'"):
        compare(one, {**one, "size": "paper"})
    with pytest.raises(ConfigError, match="tolerance: expected a share"):
        compare(one, one, float("nan"))
    with pytest.raises(ConfigError, match="no point in common"):
        compare(one, {**one, "experiments": {}})


def test_a_claim_that_no_longer_holds_is_told() -> None:
    was, now = _results({"1": [1.0]}), _results({"1": [1.0]}, verdict="not reproduced")
    assert verdicts_lost(was, now) == ["a-1: fast: not reproduced, because it is slow"]
    assert verdicts_lost(now, was) == []


def test_one_run_on_a_machine_is_not_judged() -> None:
    before, after = ({**_results({"1": [value]}), "on": "machine"} for value in (100.0, 50.0))
    assert not compare(before, after)[0].regression


def test_what_falls_to_nothing_is_worse() -> None:
    lost = compare(_results({"1": [100.0, 100.0], "2": [0.0, 0.0]}), _results({"1": [0.0, 90.0], "2": [0.0, 0.0]}))
    assert [(c.regression, c.improvement) for c in lost] == [(True, False), (False, False)]
    assert compare(_results({"1": [0.0]}), _results({"1": [1.0]}))[0].improvement


def test_what_is_no_longer_there_is_told() -> None:
    was = _results({"1": [1.0], "2": [1.0]})
    assert left_out(was, was) == []
    assert left_out(was, _results({"1": [1.0]})) == ["points that only the first has: a-1 (1)"]
    assert left_out(_results({"1": [1.0]}, ""), _results({"1": [1.0]}, "")) == ["neither better nor worse: a-1"]


def test_a_change_is_shown_as_a_share() -> None:
    for before, after, shown in ((10.0, 9.0, "-10.0%"), (10.0, 12.0, "+20.0%"), (0.0, 1.0, "from nothing")):
        assert compare(_results({"1": [before]}), _results({"1": [after]}))[0].factor == shown
