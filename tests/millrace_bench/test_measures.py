"""Points of experiments: what is measured agrees with what must come out, on all data sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.core.clock import VirtualClock
from millrace.core.errors import ConfigError
from millrace.datasets import zipf_stream
from millrace.master.device import Device, DiskModel
from millrace.master.store import MasterStore
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.experiments.catalogue import EXPERIMENTS
from millrace_bench.experiments.experiment import Experiment, Paper, Point, Scale, Series, lines
from millrace_bench.experiments.figures import png
from millrace_bench.experiments.outcomes import MEASURES, disk_of, outcome
from millrace_bench.experiments.runner import OutcomeJournal, run
from millrace_bench.experiments.sets import DESCRIPTIONS, open_set
from millrace_bench.experiments.steady import WorkClock, paced, saturated


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs")


def _point(**changes: Any) -> Point:
    given: dict[str, Any] = {"by": "join", "algorithm": "meshjoin", "data": "unique", "rows": 10_000, "memory": "10%"}
    return Point(**{**given, "settle": 2, "rooms": 2, **changes})


def test_meshjoin_passes_its_room_in_a_turn(inputs: Path) -> None:
    found = outcome(inputs, _point(), 1)
    store = MasterStore.open(inputs / "master-10000")
    turn = store.nbytes / 60e6 + 0.008
    assert found["processing_time"] == pytest.approx(turn, rel=0.1), "every tuple stays for a turn"
    assert found["bytes_read"] == pytest.approx(store.nbytes / (found["rate"] * turn), rel=0.1)
    assert found["hits"] == 0
    assert found["disk rate"] == found["rate"]


def test_the_model_says_what_is_measured(inputs: Path) -> None:
    for algorithm in ("meshjoin", "ssbj"):
        measured = outcome(inputs, _point(algorithm=algorithm, skew=0.0), 1)
        predicted = outcome(inputs, _point(algorithm=algorithm, skew=0.0, by="model"), 1)
        assert predicted["rate"] == pytest.approx(measured["rate"], rel=0.15)
    with pytest.raises(ConfigError, match="need key frequencies; those of data 'weather' are not known"):
        outcome(inputs, _point(data="weather", by="model"), 1)


def test_memory_for_a_rate_gives_the_rate(inputs: Path) -> None:
    found = outcome(inputs, _point(by="memory for a rate", rate=20_000), 1)
    got = outcome(inputs, _point(memory=int(found["memory"])), 1)
    assert got["rate"] == pytest.approx(20_000, rel=0.05)


def test_seeks_can_be_shorter(inputs: Path) -> None:
    assert disk_of(_point(seek=0.25)).seek == 0.002
    long, short = (outcome(inputs, _point(algorithm="inl", rows=3_000, seek=seek), 1) for seek in (1.0, 0.1))
    assert short["rate"] > 5 * long["rate"]
    assert short["seeks"] == long["seeks"]
    with pytest.raises(ConfigError, match="name of a disk model"):
        disk_of(_point(disk="none"))


def test_the_papers_equations() -> None:
    point = _point(by="equations", rows=3_500_000, memory="5%", b=10_000)
    rate = outcome(Path(), point, 1)["rate"]
    memory = outcome(Path(), _point(by="equations", rows=3_500_000, b=10_000, rate=rate), 1)["memory"]
    assert memory == pytest.approx(0.05 * 3_500_000 * 120, rel=1e-6), "one equation is the other, solved"


@pytest.mark.parametrize("name", [name for name in DESCRIPTIONS if not name.endswith("-archive")])
def test_every_data_set_has_matches_and_a_stream_of_its_seed(inputs: Path, name: str) -> None:
    found = open_set(inputs, name, 3_000, 1.0, 0.5)
    assert found.store.rows == 3_000
    streams = [found.stream(seed, 500) for seed in (1, 1, 2)]
    batches = [pa.Table.from_batches([next(stream) for _ in range(4)]) for stream in streams]
    assert batches[0] == batches[1]
    assert batches[0] != batches[2]
    assert batches[0].schema.equals(found.schema)
    join = SemiStreamJoin(found.store, on=found.on, suffix=found.suffix, memory="1MB")
    rows = sum(len(out) for out in join.run(batches[0]))
    assert rows > 100
    assert found.indexed().store.indexed


def test_an_unknown_data_set_is_named(inputs: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected one of unique, .*; got 'nothing'"):
        open_set(inputs, "nothing", 10, 1.0, None)
    with pytest.raises(ConfigError, match="z_R"):
        open_set(inputs, "skewed", 10, 1.0, None)


def test_paced_tuples_wait_for_half_a_step_while_there_is_room(inputs: Path) -> None:
    store = open_set(inputs, "unique", 10_000, 1.0, None).store
    capacity = outcome(inputs, _point(), 1)["rate"]

    def run(rate: float) -> dict[str, float]:
        device = Device(DiskModel(0.0, 60e6), reads="rows")
        join = SemiStreamJoin(store, on="key", algorithm="meshjoin", memory="10%", device=device, threads=1)
        return paced(join, zipf_stream(10_000, 1.0, batch_rows=500, seed=1), rate, 2, 2)

    slow = run(capacity / 4)
    assert slow["rate"] == pytest.approx(capacity / 4, rel=0.1), "as many leave as come"
    assert slow["waiting_time"] == pytest.approx(slow["c_loop"] / 2, rel=0.2)
    assert run(4 * capacity)["waiting_time"] > 10 * slow["waiting_time"], "more come than can be joined"


def test_a_run_measures_at_least_one_batch_after_it_has_settled(inputs: Path) -> None:
    store = open_set(inputs, "unique", 10_000, 1.0, None).store
    join = SemiStreamJoin(store, on="key", algorithm="meshjoin", memory="2%", device=Device("hdd-2007", reads="rows"))
    found = saturated(join, zipf_stream(10_000, 1.0, batch_rows=5_000, seed=1), 1, 1)  # many turns in a batch
    assert found["rate"] > 0


def test_a_clock_of_work_stands_still_while_the_stream_is_made() -> None:
    wall = VirtualClock()

    def slow() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            wall.advance(10)
            yield pa.record_batch({"key": [1]})

    clock = WorkClock(wall)
    for _ in clock.outside(slow()):
        wall.advance(1)
    assert (clock.now(), wall.now()) == (3, 33)


def test_joins_of_another_kind_need_a_function_and_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def results_so_far(_: Path, point: Point, seed: int) -> dict[str, float]:
        return {"rate": point.rows * dict(point.options)["delay"] + seed}

    monkeypatch.setitem(MEASURES, "two streams", results_so_far)
    paper = Paper("TWO", "", Scale(0.5, 1), {"data": "unique", "rows": 100_000, "delay": 2})
    experiment = Experiment(
        paper,
        "1",
        "",
        "",
        varies="share",
        values=(5, 10),
        few=(5,),
        series=lines("some-join", by="two streams"),
        metric="rate",
        claims=(),
    )
    journal = OutcomeJournal(tmp_path / "p.jsonl")
    assert run([experiment], "small", tmp_path, journal) == 1
    assert journal.get(experiment.point("small", experiment.series[0], 5), 11) == {"rate": 100_011}


def test_a_wrong_parameter_or_measure_is_named() -> None:
    experiment = EXPERIMENTS["ssbj-5a"]
    with pytest.raises(ConfigError, match="meshjoin: unknown option colour"):
        experiment.point("small", Series("meshjoin", fixed={"colour": 1}), 1)
    with pytest.raises(ConfigError, match=r"by: expected one of 'join', .*got 'guess'"):
        outcome(Path(), _point(by="guess"), 1)


def test_a_picture_is_a_png() -> None:
    line = [{"x": x, "mean": 1e3 * x, "low": None, "high": None} for x in (1.0, 2.0)]
    figure = {"varies": "rows", "log_x": True, "log_y": True, "x_label": "x", "y_label": "y", "series": {"ssbj": line}}
    assert png(figure).startswith(b"\x89PNG")
    line[0] |= {"low": 900.0, "high": 1100.0}
    line[1] |= {"low": 1900.0, "high": 2100.0}
    assert png(figure | {"log_y": False, "series": {"ssbj": line, "ssbj, predicted": line}}).startswith(b"\x89PNG")
