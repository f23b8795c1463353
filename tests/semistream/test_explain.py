"""``join.explain()``: the split, the rate, the wait and the alternatives of any join; nothing is measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.cost.engine import PREDICTED, predict
from millrace.cost.frequencies import Frequencies
from millrace.cost.measured import Calibration, MeasuredCosts
from millrace.cost.symbols import Disk, UnitCosts
from millrace.datasets import synthetic_master, zipf_stream
from millrace.semistream.calibrate import calibration
from millrace.semistream.calibrate.calibration import calibrated
from millrace.semistream.choose import auto
from millrace.semistream.choose.auto import ASSUMED_SKEW
from millrace.semistream.choose.choice import in_seconds, per_second
from millrace.semistream.choose.join_workload import workload_of

ROWS = 20_000
BATCH = next(iter(zipf_stream(ROWS, 1.0, batch_rows=2_000, batches=1)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    return mr.MasterStore.build(synthetic_master(ROWS), tmp_path_factory.mktemp("m") / "s", "key")


def told(store: mr.MasterStore, **given: Any) -> tuple[mr.SemiStreamJoin, str]:
    join = mr.SemiStreamJoin(store, **{"on": "key", "memory": "200kB", **given})
    list(join.push(BATCH))
    return join, join.explain()


def rows_of(text: str, head: str) -> dict[str, str]:
    """The lines of a table below its head, by their first word, until one that is no row of it."""
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"  {head} "))
    found = {}
    for line in lines[at + 1 :]:
        if line.startswith(("  predicted", "  without", "  no prediction")):
            break
        found[line[2:14].strip()] = line[14:]
    return found


@pytest.mark.parametrize("algorithm", list(mr.ALGORITHMS))
def test_every_algorithm_tells_all_it_can(store: mr.MasterStore, algorithm: str) -> None:
    join, text = told(store, algorithm=algorithm)
    parts = rows_of(text, "budget")
    assert set(join.budget.parts()) | {"free"} <= set(parts)
    shares = [float(re.findall(r"([0-9.]+)%", line)[0]) for line in parts.values()]
    assert sum(shares) == pytest.approx(100, abs=1), "of the bytes in use, and what is free"
    others = rows_of(text, "instead")
    assert set(others) == set(PREDICTED) - {algorithm}
    without = text.splitlines()[-1]
    assert without.startswith("  without a model: ")
    assert set(without.split(": ")[1].split(", ")) == set(mr.ALGORITHMS) - set(PREDICTED) - {algorithm}
    if algorithm in PREDICTED:
        assert "tuples/s, " in text
        assert "  wait        " in text
    else:
        assert f"rate        unknown: {algorithm} has no model" in text


def test_the_figures_are_those_of_the_model(store: mr.MasterStore) -> None:
    join, text = told(store, algorithm="sscj", cache_share=0.4, b=100, device=mr.Device("hdd-2013"))
    workload = workload_of(join.arguments, join.loop.parts.binding, Frequencies.zipf(ASSUMED_SKEW, ROWS))
    expected = predict(workload, "sscj", 200_000, b=100, cache_share=0.4)
    assert f"rate        {per_second(expected.rate)}, {expected.hit_share:.0%}" in text
    assert f"wait        {in_seconds(expected.mean_wait)} on average" in text
    assert rows_of(text, "budget")["cache"].endswith("80.0 kB  40.0%")
    assert "the disk hdd-2013 as modelled" in text
    rates = [float(line.split()[0].replace(",", "")) for line in rows_of(text, "instead").values()]
    assert rates == sorted(rates, reverse=True)


def test_it_says_where_the_unit_costs_are_from(
    store: mr.MasterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join, text = told(store, algorithm="meshjoin")
    assert "unit costs of a typical machine" in text
    costs = UnitCosts(c_H=1e-6, c_O=1e-5, c_E=1e-5, c_S=1e-6, c_A=1e-5)
    slow = Calibration(MeasuredCosts((1_000_000,), (costs,)), Disk(0.01, float("inf")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "calibrate", lambda master: slow)
    assert calibrated(store) == calibrated(store) == slow
    assert "unit costs as measured on this machine" in join.explain()
    assert join.explain().splitlines()[-9] != text.splitlines()[-9]


def test_it_neither_reads_nor_changes_anything(store: mr.MasterStore) -> None:
    join, _ = told(store, algorithm="ssbj", memory="100kB")
    before = join.metrics.as_dict()
    join.explain()
    assert join.metrics.as_dict() == before
    join.check_invariants()


def test_auto_tells_of_the_stream_as_it_came(store: mr.MasterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    join, text = told(store, algorithm="auto", device=mr.Device("hdd-2013"))
    assert "a moderately skewed stream (Zipf 0.75, 20,000 keys)" in text
    assert rows_of(text, "budget")["statistics"].split()[:2] == ["8.0", "kB"]
    monkeypatch.setattr(auto, "_ENOUGH", 2_000)
    assert "predicted for the stream so far, with " in join.explain()


def test_where_there_is_nothing_to_predict(store: mr.MasterStore, tmp_path: Path) -> None:
    near = mr.band("sid", "a1", below=1, above=1)
    _, text = told(store, on=None, where=near, columns=["label"])
    assert "no prediction: the cost model covers only joins with a key" in text
    empty = mr.MasterStore.build(store.to_table().slice(0, 0), tmp_path / "empty", "key")
    _, text = told(empty, algorithm="ssbj")
    assert "no prediction: the master is empty" in text
    join = mr.SemiStreamJoin(store, "key", memory="200kB")
    assert join.explain().endswith("follow once the stream's schema is known)")


def test_what_the_model_leaves_out_and_who_cannot_join(store: mr.MasterStore, tmp_path: Path) -> None:
    twice = mr.MasterStore.build(synthetic_master(2_000, unique=False), tmp_path / "twice", "key", index=False)
    _, text = told(twice, where=mr.compare("sid", ">=", "a1"), ordered=True, columns=["label"], shed="random", keep=0.5)
    left_out = "that some keys have more rows than others and the condition and the order of rows and load shedding"
    assert f"(the model leaves out {left_out})" in text
    others = rows_of(text, "instead")
    assert others["sscj"].split("  ")[-1] == "needs an index, which the master does not have"
    assert "tuples/s" in others["meshjoin"]


def test_an_algorithm_of_your_own_has_no_model(store: mr.MasterStore) -> None:
    from dataclasses import replace

    _, text = told(store, algorithm=replace(mr.ALGORITHMS["ssbj"], summary="mine"))
    assert "ssbj has no model" in text


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_alternatives_are_of_the_same_kind_of_join(store: mr.MasterStore, how: str) -> None:
    """An inner join could not have a column of this name twice, a semi or anti join has it once."""
    column = next(name for name in store.schema.names if name != "key")
    batch = pa.record_batch({"key": BATCH.column("key"), column: BATCH.column("key")})
    join = mr.SemiStreamJoin(store, "key", how=how, memory="200kB")
    list(join.push(batch))
    assert set(rows_of(join.explain(), "instead")) == set(PREDICTED) - {"ssbj"}
