"""The warehouse of ``millrace demo`` in small: exact, interrupted and continued, and told honestly."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.core.errors import ConfigError
from millrace.spark.metrics.enrich_metrics import OBSERVED_NAMES
from millrace.spark.quiet_session import check_java
from millrace_bench.demo import demo_command as demo
from millrace_bench.demo.fingerprint import fingerprint
from millrace_bench.demo.warehouse import (
    Moment,
    Result,
    SparkComparison,
    Warehouse,
    WarehouseRowsError,
    WarehouseSetting,
)
from millrace_bench.demo.warehouse_report import facts, story, verdict

TINY = WarehouseSetting(scale=0.01, orders=12_000, memory="60kB", batches=4)
MOMENT = Moment(
    batch=3,
    seconds=2.0,
    arrived=1000,
    answered=900,
    hits=600,
    waiting=100,
    scanned=750,
    wheel=0.25,
    cached_keys=50,
    cache_bytes=2_000,
    waiting_bytes=5_000,
    memory_bytes=9_000,
)


def run(directory: Path, *more: str, until: Callable[[], bool] | None = None) -> tuple[int, str, str]:
    """The command in a process group of its own, which gets Ctrl-C as from a terminal when ``until`` says so."""
    options = ["--scale", "0.01", "--orders", "12000", "--memory", "60kB", "--batches", "4", *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "millrace", "demo", "--directory", directory, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        if until is not None:
            deadline = time.monotonic() + 120
            while not until():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "never began"
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=180)
        return process.returncode, out, err
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A claimed directory with data in it."""
    made = Warehouse(tmp_path_factory.mktemp("tiny") / "demo", TINY)
    made.claim()
    made.make_data()
    return made


@pytest.fixture
def told(tmp_path: Path) -> Warehouse:
    """A warehouse of which everything is known."""
    made = Warehouse(tmp_path, TINY)
    compared = SparkComparison(3000, [1.0, 1.1, 3.0], [2.0, 2.2, 2.1], "SortMergeJoin")
    made.result = Result(1500, 12_000, 600_000, 60_000, True, 12_000, "a-b", compared)
    (tmp_path / "progress.jsonl").write_text(json.dumps(vars(MOMENT)) + "\n" + '{"batch": 4, "sec')
    return made


# all of it


@pytest.mark.torture
def test_it_is_stopped_continues_is_exact_and_is_done_only_once(tmp_path: Path) -> None:
    place, progress = tmp_path / "demo", tmp_path / "demo" / "progress.jsonl"
    code, out, err = run(place, until=lambda: progress.exists() and progress.read_text().count("\n") >= 1)
    assert (code, err) == (130, "stopped; running it again continues where it was\n"), out
    assert "batch   1/4" in out
    assert "batch   4/4" not in out
    made = {path: path.stat().st_mtime_ns for path in (place / "orders").iterdir()}
    assert len(made) == 16

    code, out, err = run(place)
    assert (code, err) == (0, "")
    assert "batch   4/4" in out
    assert "batch   1/4" not in out
    assert "exact: 12,000 rows" in out
    assert "TPC-H's own are spread evenly" in out
    assert {path: path.stat().st_mtime_ns for path in (place / "orders").iterdir()} == made
    page = (place / "report.html").read_text()
    plots = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert [base64.b64decode(plot)[:4] for plot in plots] == [b"\x89PNG"] * 4
    assert "http" not in page
    for words in ("12,000 rows are exactly those", "Zipf law", "Spark&#x27;s own", str(place / "warehouse")):
        assert words in page

    log = (place / "spark.log").stat().st_mtime_ns
    shown = CliRunner().invoke(app, ["demo", "--directory", str(place), "--scale", "0.01", "--orders", "12000"])
    assert shown.exit_code == 1
    assert "holds a demo with --memory 60kB" in shown.stderr
    code, again, err = run(place)
    assert (code, err) == (0, "")
    assert "was finished earlier" in again
    assert again.split("What came out")[1].split(" s in all")[0].rsplit("\n", 1)[0] in out
    assert (place / "spark.log").stat().st_mtime_ns == log


# data


def test_orders_are_spread_over_files(tiny: Warehouse) -> None:
    files = sorted((tiny.place / "orders").iterdir())
    assert [pq.read_metadata(file).num_rows for file in files] == [750] * 16
    assert "o_comment" not in pq.read_schema(files[0]).names
    assert (tiny.result.customers, tiny.result.orders) == (1500, 12_000)
    assert [path.name for path in (tiny.place / "tpch").iterdir()] == ["customer-sf0.01.parquet"]


def test_half_made_data_is_made_again(tiny: Warehouse, tmp_path: Path) -> None:
    shutil.copytree(tiny.place.root, tmp_path, dirs_exist_ok=True)
    shutil.move(tmp_path / "orders", tmp_path / "orders.making")
    half = Warehouse(tmp_path, TINY)
    half.claim()
    seen: list[int] = []
    half.make_data(seen.append)
    assert half.result.orders == seen[-1] == 12_000
    assert not (tmp_path / "orders.making").exists()
    names = [path.name for path in (tmp_path / "orders").iterdir()]
    for name in names:
        assert pq.read_table(tmp_path / "orders" / name).equals(pq.read_table(tiny.place / "orders" / name))


def test_a_skew_of_0_spreads_orders_evenly(tmp_path: Path) -> None:
    even = Warehouse(tmp_path, replace(TINY, skew=0.0))
    even.claim()
    even.make_data()
    counts = pq.read_table(tmp_path / "orders")["o_custkey"].value_counts().field("counts").to_pylist()
    assert max(counts) < 40
    even.result = replace(even.result, master_bytes=10, budget=1)
    assert "drawn anew from all customers alike" in story(even)


# directories


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    for fresh in (False, True):
        with pytest.raises(ConfigError, match=r"expected an empty directory .* it holds thesis.tex"):
            Warehouse(tmp_path, TINY).claim(fresh)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_fresh_removes_what_a_demo_has_made_and_nothing_else(tmp_path: Path) -> None:
    Warehouse(tmp_path, TINY).claim()
    (tmp_path / "orders").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"holds a demo with --skew 1.0; got --skew 2.0"):
        Warehouse(tmp_path, replace(TINY, skew=2.0)).claim()
    Warehouse(tmp_path, replace(TINY, skew=2.0)).claim(fresh=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "setting.json"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale: expected a number above 0"),
        ({"batches": 3}, "batches: expected at least 4"),
        ({"orders": 15}, "orders: 4 batches need at least 16"),
        ({"skew": -1.0}, "skew: expected 0 or more"),
        ({"memory": "much"}, "memory: expected"),
    ],
)
def test_settings_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **options)


# what may be missing


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, extra in (("pyspark", "spark"), ("matplotlib", "plot")):
        monkeypatch.setattr(demo, "find_spec", lambda name, missing=module: None if name == missing else True)
        done = CliRunner().invoke(app, ["demo", "--directory", str(tmp_path / "demo")])
        assert done.exit_code == 1
        assert f"needs {module}, which is not installed: pip install 'millrace[{extra}]'" in done.stderr
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    done = CliRunner().invoke(app, ["demo", "--directory", str(tmp_path / "demo")])
    assert done.exit_code == 1
    assert "tpchgen-cli is not installed; pip install millrace[tpch]" in done.stderr


def test_missing_or_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"Java 17 or later, and '.*' does not run: install it"):
        check_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    with pytest.raises(ConfigError, match="is version 11"):
        check_java()


# the check


def test_the_fingerprint_sees_every_change(spark: SparkSession) -> None:
    columns = "a int, b string, c string"
    rows = [(1, "x", None), (2, None, "y"), (2, None, "y"), (3, "z", "z")]
    right = fingerprint(spark.createDataFrame(rows, columns))
    assert fingerprint(spark.createDataFrame(rows[::-1], columns).repartition(3)) == right
    for other in ([*rows, rows[0]], [rows[0], *rows[:2], rows[3]], [(1, None, "x"), *rows[1:]]):
        assert fingerprint(spark.createDataFrame(other, columns)) != right


@pytest.mark.thorough
def test_the_check_finds_a_row_that_is_missing_or_strange(spark: SparkSession, tiny: Warehouse) -> None:
    right = tiny._joined(spark, tiny._orders(spark))
    target = str(tiny.place / "warehouse")
    right.write.parquet(target)
    tiny.check(spark)
    assert tiny.result.checked_rows == 12_000
    right.where("o_orderkey != 7").write.mode("overwrite").parquet(target)
    with pytest.raises(WarehouseRowsError, match=r"a row is missing: \{'o_orderkey': 7,"):
        tiny.check(spark)
    changed = right.selectExpr("*", "if(o_orderkey = 7, 'nobody', c_name) as name").drop("c_name")
    changed.withColumnRenamed("name", "c_name").write.mode("overwrite").parquet(target)
    with pytest.raises(WarehouseRowsError, match=r"there is an unexpected row: \{.*'nobody'"):
        tiny.check(spark)


# moments


def test_a_moment_is_read_from_a_querys_progress() -> None:
    flow = {"tuples_in": 1000, "rows_out": 900, "unmatched": 0, "cache_hits": 600, "scanned_rows": 750, "wheel": 0.25}
    held = {"waiting": 100, "cached_keys": 50, "cache_bytes": 2000, "waiting_bytes": 5000, "memory_bytes": 9000}
    told = {"join": dict.fromkeys(OBSERVED_NAMES, 0) | flow | held}
    progress = SimpleNamespace(batchId=3, batchDuration=2000, observedMetrics={"it": told})
    assert Moment.of(progress) == MOMENT
    progress.observedMetrics = {"it": {"join": None}}
    assert Moment.of(progress) is None, "nobody came and nobody waited"


def test_moments_are_read_again(told: Warehouse) -> None:
    assert told.moments() == [MOMENT], "a line that was cut off is passed over"


# what people read


def test_the_verdict_says_who_was_faster() -> None:
    compared = SparkComparison(3000, [1.0, 1.0], [2.5, 2.5], "SortMergeJoin")
    assert "Millrace is 2.5 times as fast here" in verdict(compared)
    assert "Spark's own join is 2.5 times as fast" in verdict(replace(compared, millrace=[2.5], spark=[1.0]))
    assert "they are level" in verdict(replace(compared, millrace=[2.51]))


def test_facts(told: Warehouse) -> None:
    shown = dict(facts(told))
    assert shown["orders enriched"] == "12,000, checked"
    assert shown["a micro-batch by Millrace"] == "1.10 s"
    assert shown["a micro-batch by Spark's own join"] == "2.10 s"
    assert shown["turns of the wheel"] == "0.5"


def test_the_view_shows_the_join(told: Warehouse) -> None:
    view = demo.WarehouseView(told)
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as first:
        console.print(view.panel())
    assert "the first micro-batch takes longer" in first.get()
    view.add(MOMENT)
    with console.capture() as shown:
        console.print(view.panel())
    for words in ("2 done, 2 left", "500 orders/s", "60.0% by", "25% of a turn", "2.0 kB, 50 customers", "100 orders"):
        assert words in shown.get()
    assert "…" not in shown.get(), "it fits a narrow terminal"
    assert "in    500/s" in view.line()
