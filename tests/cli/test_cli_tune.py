from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import millrace as mr
from millrace.core.errors import ConfigError
from millrace.cost.frequencies import Frequencies
from millrace.datasets import synthetic_master
from millrace.semistream.calibrate import calibration
from millrace.semistream.calibrate.calibration import CalibrationBench, calibrate, calibrated
from millrace.semistream.choose.choice import choose
from millrace.semistream.choose.unit_cost_file import remembered, remembered_at

ROWS = 50_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    return mr.MasterStore.build(synthetic_master(ROWS), tmp_path_factory.mktemp("m") / "s", "key")


def test_the_most_for_a_memory(cli: Callable[..., Result], store: mr.MasterStore, tmp_path: Path) -> None:
    said = cli("tune", store.path, "--memory", "2%", "--disk", "hdd-2013", "--plot", tmp_path / "rates.png")
    assert said.exit_code == 0, said.output
    assert "ssbj: " in said.output
    assert "not chosen:" in said.output
    assert (tmp_path / "rates.png").stat().st_size > 5_000
    found = json.loads(cli("tune", store.path, "--memory", "2%", "--disk", "hdd-2013", "--json").output)
    assert found["algorithm"] == "ssbj"
    assert found["memory"] == round(0.02 * store.nbytes)
    assert sum(found["parts"].values()) <= found["memory"]
    assert found["as_good"]["b"][0] <= found["parameters"]["b"] <= found["as_good"]["b"][1]
    others = {other["algorithm"]: other["rate"] for other in found["alternatives"]}
    assert set(others) == {"meshjoin", "r-meshjoin", "hybridjoin", "cachejoin", "sscj", "lookup"}
    assert max(rate for rate in others.values() if rate) <= found["rate"]


def test_the_least_for_a_rate(cli: Callable[..., Result], store: mr.MasterStore) -> None:
    found = json.loads(cli("tune", store.path, "--rate", 100_000, "--disk", "hdd-2013", "--json").output)
    assert found["rate"] >= 100_000
    assert all(o["memory"] is None or o["memory"] >= found["memory"] for o in found["alternatives"])
    more = json.loads(cli("tune", store.path, "--rate", 200_000, "--disk", "hdd-2013", "--json").output)
    assert more["memory"] > found["memory"]


@pytest.mark.parametrize("rate", [1, 100, 3_000, 20_000, 1_000_000])
def test_any_rate_that_can_be_had(store: mr.MasterStore, rate: float) -> None:
    choice = choose(store, frequencies=Frequencies.zipf(1, ROWS), rate=rate, device=mr.Device("hdd-2013"))
    assert choice.best.rate >= rate


def test_all_of_the_master_in_memory(cli: Callable[..., Result], store: mr.MasterStore) -> None:
    arguments = ("tune", store.path, "--memory", "40MB", "--disk", "hdd-2013")
    assert "as many tuples/s as the processor can" in cli(*arguments).output
    found = json.loads(cli(*arguments, "--json").output, parse_constant=lambda text: pytest.fail(text))
    assert found["rate"] is None


def test_a_master_without_an_index(store: mr.MasterStore, tmp_path: Path) -> None:
    bare = mr.MasterStore.build(store.to_table(), tmp_path / "bare", "key", index=False)
    choice = choose(bare, frequencies=Frequencies.zipf(1, ROWS), memory="2%", device=mr.Device("hdd-2013"))
    why = {c.algorithm: c.why_not for c in choice.candidates}
    assert "needs an index" in why["hybridjoin"]
    assert why[choice.best.algorithm] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--disk", "hdd-2013"], "expected one of --memory"),
        (["--memory", "1%", "--rate", "5"], "expected one of --memory"),
        (["--memory", "10", "--disk", "hdd-2013"], "the least is"),
        (["--rate", "-5", "--disk", "hdd-2013"], "above 0"),
        (["--memory", "1%", "--disk", "floppy"], "floppy"),
        (["--memory", "1%", "--disk", "nvme", "--skew", "-1"], "skew"),
        (["--memory", "1%", "--disk", "nvme", "--keys", "0"], "keys"),
        (["--memory", "1%", "--disk", "nvme", "--keys", str(10**18)], "at most 10**15"),
        (["--memory", "1%", "--skew", "nan"], "skew: expected a finite number"),
        (["--memory", "lots"], "memory: expected bytes"),
        (["--rate", "nan"], "rate: expected tuples per second"),
        (["--rate", "1e30"], "at most 1e+12"),
        (["--memory", "1%", "--disk", "nvme", "--plot", "rates.txt"], "plot: expected"),
        (["--memory", "1%", "--disk", "nvme", "--plot", "nowhere/rates.png"], "plot: expected"),
    ],
)
def test_what_cannot_be(cli: Callable[..., Result], store: mr.MasterStore, arguments: list[str], words: str) -> None:
    said = cli("tune", store.path, *arguments)
    assert said.exit_code == 1
    assert words in said.output.replace("\n", " ")


def test_unit_costs_of_this_machine(store: mr.MasterStore, tmp_path: Path) -> None:
    found = calibrate(store, seconds=0.2)
    for memory, costs in zip(found.costs.memory, found.costs.costs, strict=True):
        assert costs == found.costs.at(memory)
        each = vars(costs).values()  # which of them are 0 depends on how noisy the machine is
        assert all(math.isfinite(cost) and cost >= 0 for cost in each)
        assert sum(each) > 0
    assert f"a page found through the index: {found.disk.seek * 1e6:.2f} µs" in found.explain()
    assert set(found.spread) == {*vars(found.costs.costs[0]), "page"}
    assert all(math.isfinite(spread) for spread in found.spread.values())
    small = mr.MasterStore.build(synthetic_master(100), tmp_path / "small", "key")
    with pytest.raises(ConfigError, match="has 100 rows"):
        calibrate(small)
    with pytest.raises(ConfigError, match="seconds"):
        calibrate(store, seconds=float("nan"))


_TRUE = {"c_H": 2e-9, "waiting": 9e-7, "c_R": 3e-8, "c_C": 4e-8, "c_J": 2e-8, "c_Q": 5e-8, "c_F": 6e-9}
_TRUE_FOR_ALL = {"c_step": 3e-6, "c_I": 7e-7, "c_B": 2e-6, "page": 4e-6}


@pytest.mark.parametrize("indexed", [True, False])
def test_the_unit_costs_are_those_that_explain_the_times(
    indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joins that take exactly what these costs say: the costs are found again, those of no join are 0."""
    master = mr.MasterStore.build(synthetic_master(5_000), tmp_path / "s", "key", index=indexed)
    measure = calibration._Run.measure
    counted: set[str] = set()

    def took(run: calibration._Run) -> calibration._Measurement:
        seen = run.measurements[0] if run.measurements else measure(run)
        counted.update(name for name, count in seen.counts.items() if count)
        assert seen.counts.get("page", 0) in (0, pytest.approx(seen.counts["c_H"] / run.join.b)), "pages have b rows"
        seconds = sum(count * (_TRUE | _TRUE_FOR_ALL)[name] for name, count in seen.counts.items())
        seconds *= 0.9 if run.join.spec.how == "anti" else 1.0  # what it gives out is what the others do beside
        alike = calibration._Measurement(seconds, seen.tuples, seen.counts)
        run.measurements[:] = [alike] * 3
        return alike

    monkeypatch.setattr(calibration._Run, "measure", took)
    bench = CalibrationBench(master, seconds=0.01)
    for _ in range(3):
        bench.measure()
    assert all(len(run.measurements) == bench.rounds for run in bench._every)
    found = bench.found()
    assert counted >= {"c_step", "c_H", "waiting", "c_R", "c_C"}
    assert ({"c_I", "page", "c_Q", "c_F"} <= counted) == indexed
    assert found.disk.seek == pytest.approx(_TRUE_FOR_ALL["page"] if indexed else 0.0)
    for costs in found.costs.costs:
        for name, true in (_TRUE | _TRUE_FOR_ALL).items():
            if name not in ("waiting", "page"):
                assert getattr(costs, name) == pytest.approx(true if name in counted else 0.0), name
        assert costs.c_O > 0
        assert costs.waiting + costs.c_O + costs.c_R > 0
        assert costs.hit + costs.c_L > 0
        assert costs.c_S + costs.c_A + costs.c_E + costs.c_O == pytest.approx(_TRUE["waiting"])
        assert (costs.c_L > 0) <= indexed
    assert max(found.spread[name] for name in ("c_H", "c_step", "c_R", "page")) < 1e-6, "every round says the same"


def test_what_was_measured_is_remembered(
    store: mr.MasterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = calibrate(store, seconds=0.2)
    times = iter([measured])
    monkeypatch.setattr(calibration, "calibrate", lambda _: next(times))
    assert remembered(store, tmp_path) is None
    first = calibrated(store, directory=tmp_path)
    assert calibrated(store, directory=tmp_path) == first == measured
    with pytest.raises(StopIteration):
        calibrated(store, directory=tmp_path, again=True)
    remembered_at(store, tmp_path).write_text("{")
    assert remembered(store, tmp_path) is None
    other = mr.MasterStore.build(synthetic_master(9_000), tmp_path / "other", "key")
    assert remembered_at(other, tmp_path) != remembered_at(store, tmp_path)
    assert remembered(store, tmp_path / "no" / "where") is None


def test_where_nothing_can_be_remembered(
    store: mr.MasterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = calibrate(store, seconds=0.2)
    monkeypatch.setattr(calibration, "calibrate", lambda _: measured)
    (tmp_path / "file").write_text("")
    assert calibrated(store, directory=tmp_path / "file") == measured
