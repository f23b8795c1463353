"""Experiments from the entry to the page: run in small, stopped and gone on with, reported, compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.core.errors import ConfigError, CorruptStoreError
from millrace_bench.experiments import report, results, runner
from millrace_bench.experiments.catalogue import EXPERIMENTS, chosen
from millrace_bench.experiments.experiment import (
    METRICS,
    SIZES,
    Experiment,
    Point,
    Ratio,
    Run,
    Scale,
    without_disk_model,
)
from millrace_bench.experiments.online_points import READ_AT, OnlinePoint, online
from millrace_bench.experiments.outcomes import Outcome


def _tiny(name: str, *values: float) -> Experiment:
    """An experiment on a few thousand rows."""
    return replace(EXPERIMENTS[name], scale=Scale(1 / 20_000, 1), few=values)


def _made_up(_: Path, point: Run, seed: int) -> Outcome:
    """An outcome without a join: SSBJ eight times as fast as MESHJOIN."""
    rate = (8.0 if point.algorithm == "ssbj" else 1.0) * (1000 + seed)
    return dict.fromkeys((*METRICS, *(f"results at {x}" for x in READ_AT)), rate)


def _stop(_: Path, point: Run, seed: int) -> Outcome:
    raise KeyboardInterrupt


def test_every_experiment_can_be_laid_out_at_every_size() -> None:
    assert len(EXPERIMENTS) >= 33
    for experiment in EXPERIMENTS.values():
        for size in SIZES:
            points = [point for _, _, point in experiment.points(size)]
            assert len(points) == len(experiment.series) * len(experiment.at(size))
            assert all(point.disk == "hdd-2007" for point in points if isinstance(point, Point))
        assert set(experiment.few) <= set(experiment.values) or experiment.name == "ssbj-4a"
        assert set(experiment.some) <= set(experiment.values)
        assert experiment.claims


def test_all_figures_of_the_papers_are_there() -> None:
    figures = {
        "meshjoin": "5a 5b 6a 6b 6c 6d",
        "ssbj": "4a 4b 5a 5b 5c 5d 5e 5f 6a 6b 6c 6d",
        "sscj": "4a 4b 4c 4d 4e 5a 5b 6",
        "pq": "2 3a 3b 3c 3d 3e",
        "diner": "7 8 9-csco 9-ipix 9-stations 10 11 12 13-csco 13-stations 14 15 16 17 18 19 t3-most t3-mean "
        "t4-csco t4-ipix t4-stations",
        "miner": "20 21 22",
    }
    for paper, names in figures.items():
        assert {f"{paper}-{figure}" for figure in names.split()} <= set(EXPERIMENTS)


def test_sizes_scale_rows_bytes_and_seeks_alike() -> None:
    experiment = EXPERIMENTS["sscj-4b"]
    line = experiment.series[0]
    full, small = (experiment.point(size, line, 100_000_000) for size in ("paper", "small"))
    assert isinstance(full, Point)
    assert isinstance(small, Point)
    assert (full.rows, full.memory, full.seek, full.b) == (100_000_000, 1_120_000_000, 1.0, 1_000_000)
    assert (small.rows, small.memory, small.b) == (50_000, 560_000, 500)
    assert small.seek == 1 / 2000
    assert dict(small.options) == {"cache_share": 0.2}


def test_adaptive_joins_are_scaled_by_their_own_layout() -> None:
    experiment = EXPERIMENTS["diner-18"]
    full, default = (experiment.point(size, experiment.series[0], 20_000) for size in ("paper", "default"))
    assert isinstance(full, OnlinePoint)
    assert isinstance(default, OnlinePoint)
    assert (full.rows, full.memory, full.block, full.max_new_arrivals) == (100_000, 2_000_000, 10_000, 1000)
    assert (default.rows, default.memory, default.block, default.max_new_arrivals) == (10_000, 200_000, 1_000, 100)
    assert dict(full.parameters)["smaller"] == 10 * dict(default.parameters)["smaller"]
    assert default.costs.read == full.costs.read / 10, "a smaller block takes less time"


def test_figures_over_time_read_one_run_at_several_places() -> None:
    experiment = EXPERIMENTS["diner-7"]
    points = {point for _, _, point in experiment.points("default")}
    assert len(points) == len(experiment.series)
    assert [experiment.reading(x) for x in (10, 100)] == ["results at 10", "results at 100"]


@pytest.mark.parametrize(
    ("algorithm", "data", "parameters"),
    [
        ("diner", "zipf", {}),
        ("rpj", "zipf", {"skew": 2.0}),
        ("hmj", "csco", {}),
        ("pmj", "stations", {"band": True}),
        ("miner", "chain", {"inputs": 3.0}),
        ("mjoin", "star", {"inputs": 4.0}),
    ],
)
def test_an_adaptive_join_finds_the_whole_result(algorithm: str, data: str, parameters: dict[str, Any]) -> None:
    point = OnlinePoint(
        "online", algorithm, data, 1_000, 10_000, 60_000.0, 1_000, 50, delay=30.0, parameters=tuple(parameters.items())
    )
    found = online(Path(), point, seed=3)
    assert 0 < found["online share"] < 1
    assert found["results at 50"] <= found["results at 100"] == found["online"]
    assert found == online(Path(), point, seed=3), "the same on every run"


def test_a_wrong_entry_says_what_is_wrong() -> None:
    right = EXPERIMENTS["ssbj-5a"]
    with pytest.raises(ConfigError, match=r"ssbj-5a: varies: expected one of 'share'.*got 'colour'"):
        replace(right, varies="colour")
    with pytest.raises(ConfigError, match="ssbj-5a: claim 'x': series: expected one of 'ssbj', 'meshjoin'; got 'inl'"):
        replace(right, claims=(Ratio("x", "ssbj", "inl", (1, inf)),))
    with pytest.raises(ConfigError, match="expected a paper"):
        chosen(["ssbj-9z"])


def test_one_experiment_from_end_to_end(tmp_path: Path) -> None:
    experiment = _tiny("ssbj-5a", 5, 20)
    journal = runner.OutcomeJournal(tmp_path / "points.jsonl")
    assert runner.run([experiment], "small", tmp_path / "data", journal) == 4
    found = results.collect([experiment], "small", tmp_path / "data", journal)
    figure = found["experiments"]["ssbj-5a"]
    assert figure["complete"]
    assert figure["rows"] == [5_000, 5_000]
    assert "drawn with repetition" in figure["data"][0]
    assert [p["x"] for p in figure["series"]["ssbj"]] == [5, 20]
    by_name = {name: [p["mean"] for p in line] for name, line in figure["series"].items()}
    assert by_name["ssbj"][1] > by_name["meshjoin"][1] > by_name["meshjoin"][0] > 0
    # MESHJOIN's rate is what fits into the room by the time of a turn, so it goes with memory.
    assert by_name["meshjoin"][1] / by_name["meshjoin"][0] == pytest.approx(4, rel=0.4)
    again = runner.OutcomeJournal(tmp_path / "other.jsonl")
    runner.run([experiment], "small", tmp_path / "other", again, processes=2)
    assert results.collect([experiment], "small", tmp_path, again) == found, "the same on every run"


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    experiment = _tiny("ssbj-5a", 1, 5, 10)
    calls: list[Run] = []

    def stopped(directory: Path, point: Run, seed: int) -> Outcome:
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(point)
        return _made_up(directory, point, seed)

    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    with pytest.raises(KeyboardInterrupt):
        runner.run([experiment], "small", tmp_path, journal, measure=stopped)
    with (tmp_path / "p.jsonl").open("a") as file:
        file.write('{"version": "0.1')  # killed while a line was written
    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    assert len(journal) == 4
    partly = results.collect([experiment], "small", tmp_path, journal)["experiments"]["ssbj-5a"]
    assert not partly["complete"]
    assert runner.run([experiment], "small", tmp_path, journal, measure=_made_up) == 2
    assert runner.run([experiment], "small", tmp_path, journal, measure=_made_up) == 0
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 6
    assert len(runner.OutcomeJournal(tmp_path / "p.jsonl")) == 6


def test_only_what_is_run_anew_is_forgotten(tmp_path: Path) -> None:
    experiments = [_tiny("ssbj-5a", 1, 5), _tiny("ssbj-5c", 0)]
    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    runner.run(experiments, "small", tmp_path, journal, measure=_made_up)
    journal.forget(runner.points_of(experiments[:1], "small", tmp_path))
    again = runner.OutcomeJournal(tmp_path / "p.jsonl")
    assert len(again) == len(journal) == 2
    assert runner.run(experiments, "small", tmp_path, again, measure=_made_up) == 4


def test_outcomes_of_other_code_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = _tiny("ssbj-5a", 1, 5)
    points = runner.points_of([experiment], "small", tmp_path)
    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    runner.run([experiment], "small", tmp_path, journal, measure=_made_up)
    assert journal.of_other_code(points) == runner.OutcomeJournal(tmp_path / "p.jsonl").of_other_code(points) == 0
    monkeypatch.setattr(runner, "code_digest", lambda: "another")
    changed = runner.OutcomeJournal(tmp_path / "p.jsonl")
    assert changed.of_other_code(points) == 4
    changed.record(*next(iter(points)), {"rate": 1.0})
    assert changed.of_other_code(points) == 3


def test_a_foreign_journal_is_named_and_other_versions_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"something": 1}\n')
    with pytest.raises(CorruptStoreError, match=r"p\.jsonl, line 1"):
        runner.OutcomeJournal(tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl").write_text('{"version": "0.0.0", "point": "x", "outcome": {}}\n')
    assert len(runner.OutcomeJournal(tmp_path / "p.jsonl")) == 0


def test_what_does_not_fit_on_the_disk_is_left_out(tmp_path: Path) -> None:
    small, large = EXPERIMENTS["pq-3a"], EXPERIMENTS["sscj-4a"]  # 2 M and 100 M rows
    fits, others = runner.fitting([large, small], "paper", tmp_path, free=5_000_000_000)
    assert fits == [small]
    assert others == {"sscj-4a": 28_000_000_000}
    (tmp_path / "master-100000000").mkdir()
    assert runner.fitting([large], "paper", tmp_path, free=0) == ([large], {}), "what is there takes no more"
    assert runner.fitting([EXPERIMENTS["meshjoin-5a"]], "paper", tmp_path, free=0)[1] == {}, "equations take none"
    assert runner.fitting([small], "small", tmp_path)[1] == {}


def test_points_that_figures_share_are_run_once(tmp_path: Path) -> None:
    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    rate, hits = EXPERIMENTS["ssbj-5a"], EXPERIMENTS["ssbj-5f"]
    assert runner.run([rate], "small", tmp_path, journal, measure=_made_up) == 4
    assert runner.run([hits], "small", tmp_path, journal, measure=_made_up) == 0


def _all_results(tmp_path: Path, seeds: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    journal = runner.OutcomeJournal(tmp_path / "all.jsonl")
    everything = list(EXPERIMENTS.values())
    runner.run(everything, "small", tmp_path, journal, seeds=seeds, measure=_made_up)
    return results.collect(everything, "small", tmp_path, journal, seeds)


def test_the_report_has_every_figure_and_stands_by_itself(tmp_path: Path) -> None:
    found = _all_results(tmp_path)
    folder = report.write(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert sorted(path.stem for path in folder.glob("*.png")) == sorted(EXPERIMENTS)
    assert page.count("src='data:image/png;base64,") == len(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        assert f"<section id='{name}'>" in page
        assert f"<a href='#{name}'>" in page
        for claim in experiment.claims:
            assert claim.says.replace("'", "&#x27;") in page
    assert "http" not in page
    assert all(page.count(f"<{tag}") == page.count(f"</{tag}>") for tag in ("section", "div", "table", "h3"))
    assert not re.search(r"(src|href)=(?!['\"](data:image/png|#))", page)
    assert "synthetic weather" in page
    assert "not standard TPC-H" in page


def test_results_say_where_they_come_from(tmp_path: Path) -> None:
    found = _all_results(tmp_path)
    assert (found["seeds"], found["repetitions"]) == ([1, 2, 3], 3)
    assert found["versions"]["millrace"]
    assert {"cpu", "cores"} <= found["machine"].keys()
    point = found["experiments"]["ssbj-5a"]["series"]["meshjoin"][0]
    assert point["values"] == {"1": 1001.0, "2": 1002.0, "3": 1003.0}
    assert point["low"] < point["mean"] == 1002.0 < point["high"]
    results.write(found, tmp_path / "r.json")
    assert results.read(tmp_path / "r.json") == json.loads(json.dumps(found))
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(ConfigError, match="format"):
        results.read(tmp_path / "r.json")


def test_the_archives_own_weather_is_taken_where_it_is(tmp_path: Path) -> None:
    line = "821218031-451212345037721-18 7 5 6-1 280090009 3-450 -12\n"
    lines = "".join(line.replace("12345", f"{i % 800:5}") for i in range(2_000))
    for side in ("master", "stream"):
        (tmp_path / "weather" / side).mkdir(parents=True)
        (tmp_path / "weather" / side / "DEC82L").write_text(lines)
    experiment = replace(_tiny("meshjoin-6d", 20), series=EXPERIMENTS["meshjoin-6d"].series[:1], claims=())
    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    runner.run([experiment], "small", tmp_path, journal)
    figure = results.collect([experiment], "small", tmp_path, journal)["experiments"]["meshjoin-6d"]
    assert "archive's own files" in figure["data"][0]
    assert "synthetic" not in figure["data"][0]
    assert runner.run([experiment], "small", tmp_path, journal) == 0
    (tmp_path / "weather" / "master" / "DEC82L").write_text(lines.replace("451212", "451213"))
    assert runner.run([experiment], "small", tmp_path, journal) == 1, "other files, other points"
    assert len(list(tmp_path.glob("weather-*-archive-*"))) == 2, "and another store"


def test_too_little_weather_of_ones_own_is_an_error(tmp_path: Path) -> None:
    line = "821218031-451212345037721-18 7 5 6-1 280090009 3-450 -12\n"
    for side, count in (("master", 10), ("stream", 1)):
        (tmp_path / "weather" / side).mkdir(parents=True)
        (tmp_path / "weather" / side / "DEC82L").write_text(line * count)
    experiment = replace(_tiny("meshjoin-6d", 20), series=EXPERIMENTS["meshjoin-6d"].series[:1], claims=())
    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    with pytest.raises(ConfigError, match=r"master: expected files with at least [\d,]+ weather reports; got 10"):
        runner.run([experiment], "small", tmp_path, journal)
    (tmp_path / "weather" / "master" / "DEC82L").write_text(line * 60_000)
    (tmp_path / "weather" / "stream" / "DEC82L").write_text("")
    with pytest.raises(ConfigError, match=r"stream: expected files with weather reports of .*; got only empty ones"):
        runner.run([experiment], "small", tmp_path, journal)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda figure: figure.clear(),
        lambda figure: figure.update(rows=[]),
        lambda figure: figure.update(factor=0),
        lambda figure: figure["series"]["ssbj"][0].update(mean="fast"),
        lambda figure: figure["series"]["ssbj"][0]["values"].update({"11": float("nan")}),
        lambda figure: figure["claims"][0].update(verdict="fine"),
    ],
)
def test_results_that_were_edited_are_refused(tmp_path: Path, spoil: Callable[[dict[str, Any]], None]) -> None:
    experiment = _tiny("ssbj-5a", 1, 10)
    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    runner.run([experiment], "small", tmp_path, journal, measure=_made_up)
    found = results.collect([experiment], "small", tmp_path, journal)
    results.write(found, tmp_path / "r.json")
    assert results.read(tmp_path / "r.json")
    spoil(found["experiments"]["ssbj-5a"])
    (tmp_path / "r.json").write_text(json.dumps(found))
    with pytest.raises(ConfigError, match="ssbj-5a: expected a figure as"):
        results.read(tmp_path / "r.json")


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(
        '{"format": 1, "size": "small", "seeds": [], "machine": {}, "versions": {}, "experiments": {"../x": {}}}'
    )
    with pytest.raises(ConfigError, match=r"\.\./x: expected a figure"):
        results.read(tmp_path / "r.json")


def test_own_stock_orders_are_taken_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "stock").mkdir()
    lines = (f"34200.{i},1,{i},100,{200_000 + 100 * (i % 9)},{1 - 2 * (i % 2)}" for i in range(5_000))
    (tmp_path / "stock" / "csco.csv").write_text("\n".join(lines))
    experiment = replace(EXPERIMENTS["diner-t4-csco"], few=(20,))
    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    assert runner.run([experiment], "small", tmp_path, journal) == 1
    figure = results.collect([experiment], "small", tmp_path, journal)["experiments"]["diner-t4-csco"]
    assert figure["data"] == ["stock orders of the file stock/csco, in CSCO's place"]
    assert 0 < figure["series"]["diner"][0]["mean"] <= 100


def test_figures_of_rates_run_on_the_machine_as_it_is(tmp_path: Path) -> None:
    assert without_disk_model(EXPERIMENTS["ssbj-4a"]) is None, "memory for a rate is about the disk"
    assert without_disk_model(EXPERIMENTS["diner-7"]) is None
    experiment = without_disk_model(replace(_tiny("ssbj-5a", 20), claims=EXPERIMENTS["ssbj-5a"].claims[:1]))
    assert experiment is not None
    journal = runner.OutcomeJournal(tmp_path / "p.jsonl")
    assert runner.run([experiment], "small", tmp_path, journal) == 2
    found = results.collect([experiment], "small", tmp_path, journal)
    assert found["on"] == "machine"
    figure = found["experiments"]["ssbj-5a"]
    assert figure["y_label"] == "tuples per second on this machine"
    assert "none is modelled" in figure["disk"]
    assert all(line[0]["mean"] > 1_000 for line in figure["series"].values())
    report.write(found, tmp_path / "page.html")
    assert "in wall time" in (tmp_path / "page.html").read_text()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.run, "__kwdefaults__", {**(runner.run.__kwdefaults__ or {}), "measure": _made_up})
    shell = CliRunner()
    listed = shell.invoke(app, ["bench", "list"])
    assert listed.exit_code == 0
    assert "ssbj-5a" in listed.output
    where = ["--to", str(tmp_path / "out"), "--directory", str(tmp_path)]
    ran = shell.invoke(app, ["bench", "run", "ssbj-5a", *where])
    assert ran.exit_code == 0, ran.output
    assert "4 points were run" in ran.output.replace("\n", "")
    file = tmp_path / "out" / "results-small.json"
    assert list(results.read(file)["experiments"]) == ["ssbj-5a", "ssbj-5f"], "figures that share its points come along"
    assert (tmp_path / "out" / "report-small.html").exists()
    cell = {"version": "0", "cell": {"engine": "duckdb", "rows": 10, "skew": 1, "batch_rows": 5}, "found": {"rate": 9}}
    (tmp_path / "rivals.jsonl").write_text(json.dumps(cell) + "\n")
    peers = ["--peers", str(tmp_path / "rivals.jsonl")]
    said = shell.invoke(app, ["bench", "report", str(file), "--to", str(tmp_path / "page.html"), *peers])
    assert said.exit_code == 0, said.output
    assert "Beside its peers: " in (tmp_path / "page.html").read_text()
    assert "ssbj-5a" in (tmp_path / "page.html").read_text()
    tables = shell.invoke(app, ["bench", "report", str(file), "--markdown"]).output
    assert "| all | 4 |" in tables
    assert "| ssbj-5a | 7 times at 1 % |" in tables
    assert shell.invoke(app, ["bench", "compare", str(file), str(file)]).exit_code == 0
    worse = json.loads(file.read_text().replace("8088.0", "6000.0"))
    (tmp_path / "worse.json").write_text(json.dumps(worse))
    compared = shell.invoke(app, ["bench", "compare", str(file), str(tmp_path / "worse.json")])
    assert compared.exit_code == 1
    assert "worse: -" in compared.output
    stop = {**(runner.run.__kwdefaults__ or {}), "measure": _stop}
    monkeypatch.setattr(runner.run, "__kwdefaults__", stop)
    stopped = shell.invoke(app, ["bench", "run", "ssbj-5b", *where])
    assert stopped.exit_code == 130
    assert "stopped; 4 outcomes are kept" in stopped.output
    assert "--spark" in shell.invoke(app, ["bench", "rivals", "--help"]).output
    for wrong in (
        ["run", "ssbj-4a", "--machine"],
        ["run", "nothing"],
        ["run", "--size", "huge"],
        ["run", "--seeds", "x"],
        ["report", "none.json"],
    ):
        failed = shell.invoke(app, ["bench", *wrong])
        assert failed.exit_code == 1
        assert "expected" in failed.output
