"""Peers beside Millrace: all give the oracle's rows; ratios, winners and the journal add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from millrace.core.errors import ConfigError, CorruptStoreError
from millrace.core.spec import JoinSpec
from millrace.datasets import zipf_stream
from millrace.testing.oracle import assert_same_rows, oracle_join
from millrace_bench.engines.batch_engine import MasterFiles
from millrace_bench.engines.engine_list import ENGINES, MILLRACE, USUAL
from millrace_bench.rivals import matrix, page, ratios, spark_matrix
from millrace_bench.rivals.cell import Cell, CellJournal, CellResult, CellSetting
from millrace_bench.rivals.cell_worker import Limits, measure
from millrace_bench.rivals.result_files import read_matrix, show_and_write


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs")


def _quiet() -> Console:
    return Console(file=StringIO(), width=200)


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_the_oracles_rows(engine: str, unique: bool, inputs: Path) -> None:
    """With repeated keys a third of the stream finds nothing and many tuples find several rows."""
    files = MasterFiles(inputs, 3_000, memory="20%", unique=unique)
    made = ENGINES[engine](files)
    made.prepare()
    made.load()
    made.open()
    spec = JoinSpec.of("key")
    master = files.store().to_table()
    for batch in zipf_stream(3_000, 0.5, batch_rows=1_000, batches=3, seed=5):
        want = oracle_join(pa.Table.from_batches([batch]), master, spec)
        assert_same_rows(pa.Table.from_batches(made.whole(batch), want.schema), want)
        made.settled()
    assert made.settings


def test_a_cache_of_few_entries_gives_the_same_rows(inputs: Path) -> None:
    files = MasterFiles(inputs, 3_000, memory="1%")
    made = ENGINES["sqlite"](files)
    made.prepare()
    made.open()
    master = files.store().to_table()
    for batch in zipf_stream(3_000, 1.0, batch_rows=500, batches=4, seed=6):
        want = oracle_join(pa.Table.from_batches([batch]), master, JoinSpec.of("key"))
        assert_same_rows(pa.Table.from_batches(made.whole(batch), want.schema), want)
    assert made.settled()


@pytest.mark.parametrize("engine", ["ssbj", "lookup", "polars"])
def test_an_engine_is_measured(engine: str, inputs: Path) -> None:
    cell = Cell(engine, 3_000, 1.0, 1_000, "20%")
    found = measure(ENGINES[engine](MasterFiles(inputs, 3_000, "20%")), cell, Limits(0.01, 0.02, tuples=5_000))
    assert found.rate > 0
    assert 0 < found.p50 <= found.p99
    assert found.checksum.startswith("1000 rows")


def test_a_batch_that_takes_too_long_ends_it(inputs: Path) -> None:
    cell = Cell("lookup", 3_000, 1.0, 1_000, "20%")
    found = measure(
        ENGINES["lookup"](MasterFiles(inputs, 3_000, "20%")), cell, Limits(0.01, 0.02, longest=0, tuples=5_000)
    )
    assert found.failed.endswith(" s for a batch")


# the matrix


def test_a_matrix_has_every_cell_once_and_takes_half_an_hour() -> None:
    sizes, batches = (1_000_000, 10_000_000, 50_000_000), (10_000, 100_000, 1_000_000)
    plain = matrix.cells(USUAL, sizes, (0, 0.5, 1), batches)
    assert len(plain) == len(set(plain)) == 27 * len(USUAL)
    varied = matrix.cells(USUAL, sizes, (0, 0.5, 1), batches, memories=("1%", "5%"))
    assert [(c.engine, c.rows, c.batch_rows) for c in varied[len(plain) :]] == [
        (engine, 10_000_000, 100_000) for engine in ("ssbj", "lookup", "sqlite")
    ]
    assert 10 * 60 < sum(matrix.expected(cell, Limits()) for cell in plain) < 35 * 60
    group = spark_matrix.cells(spark_matrix.USUAL, sizes, (0, 0.5, 1), batches)
    assert len(group) == len(set(group)) == 27 * len(spark_matrix.USUAL)
    assert 30 * 60 < spark_matrix.expected(group) < 90 * 60
    with pytest.raises(ConfigError, match="engine"):
        matrix.cells(("flink",), sizes, (0,), batches)


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    wanted = matrix.cells(("ssbj", "duckdb"), (1_000,), (0, 1), (10, 100))
    measured_cells: list[Cell] = []

    def stopping(cell: Cell, _: Path, __: Limits) -> CellResult:
        if len(measured_cells) == 3:
            raise KeyboardInterrupt
        measured_cells.append(cell)
        return CellResult(rate=1.0)

    with pytest.raises(KeyboardInterrupt):
        matrix.run(wanted, tmp_path, CellJournal(path), Limits(), console=_quiet(), measure=stopping)
    with path.open("a") as file:
        file.write('{"version": "0')
    journal = CellJournal(path)
    assert len(journal) == 3
    done = matrix.run(wanted, tmp_path, journal, Limits(), console=_quiet(), measure=lambda *_: CellResult(rate=2.0))
    assert done == len(wanted) - 3
    assert [found.rate for _, found in CellJournal(path)] == [1.0] * 3 + [2.0] * 5
    for foreign in (b'{"no": "cell"}\n', b"my notes", b"\x89PNG\r\n\x1a\n"):
        path.write_bytes(foreign)
        with pytest.raises(CorruptStoreError, match="line 1"):
            CellJournal(path)
        assert path.read_bytes() == foreign, "reading changes nothing"


# ratios


def _found(**rates: float) -> list[tuple[Cell, CellResult]]:
    return [
        (Cell(name, 1_000_000, 1.0, 10_000), CellResult(rate=rate, checksum="same")) for name, rate in rates.items()
    ]


def test_a_ratio_is_that_of_the_best_of_millrace() -> None:
    rates = ratios.by_setting(_found(ssbj=100.0, lookup=300.0, duckdb=100.0, polars=600.0))
    ((_, here),) = rates.items()
    assert ratios.best_of(here, MILLRACE) == "lookup"
    assert ratios.ratio(here, "duckdb", MILLRACE) == 3
    (won,) = ratios.wins(rates, MILLRACE)
    assert (won.peer, won.best, won.factor) == ("polars", "lookup", 2)
    assert str(won) == "1 M rows, skew 1, batches of 10,000: polars is 2.00 times as fast as lookup"
    duckdb, polars = ratios.summaries(rates, MILLRACE)
    assert str(duckdb) == "duckdb is never ahead; the best of Millrace has 3.00 times its rate (median; 3.00 to 3.00)"
    assert (polars.wins, polars.middle) == (1, 0.5)
    ((_, _, texts),) = ratios.table(rates, ["ssbj", "lookup", "duckdb", "polars"], MILLRACE, 1_000_000)
    assert texts == ["100", "300", "100 (3.00×)", "600 (0.50×)"]


def test_rounds_count_by_their_median_and_failures_are_named() -> None:
    cell = Cell("duckdb", 1_000_000, 1.0, 10_000)
    rounds = [(replace(cell, round=i), CellResult(rate=rate)) for i, rate in enumerate((5.0, 1.0, 3.0), 1)]
    failed = (replace(cell, engine="pandas"), CellResult(failed="out of memory"))
    rates = ratios.by_setting([*rounds, failed, *_found(lookup=6.0)])
    here = rates[CellSetting(1_000_000, 1.0, 10_000)]
    assert here["duckdb"].rate == 3
    assert ratios.ratio(here, "pandas", MILLRACE) is None
    assert [str(s) for s in ratios.summaries(rates, MILLRACE)][1] == "pandas: no result in 1 settings"
    assert "out of memory" in page.markdown(ratios.Matrix(rates, {}, MILLRACE))


def test_rows_that_differ_are_told() -> None:
    found = _found(ssbj=1.0, duckdb=1.0)
    found[1][1].checksum = "other"
    (line,) = ratios.differing(ratios.by_setting(found))
    assert "ROWS DIFFER" in line


def test_a_page_is_written_beside_the_results(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    journal = CellJournal(path)
    wanted = matrix.cells(("ssbj", "duckdb"), (1_000, 2_000), (0, 1), (10, 100), memories=("5%",))
    matrix.run(wanted, tmp_path, journal, Limits(), console=_quiet(), measure=lambda *_: CellResult(rate=2.0, p50=0.1))
    console = _quiet()
    show_and_write(wanted, journal, console, path)
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    text = path.with_suffix(".md").read_text()
    assert "| 0 | 10 | 2 | 2 (1.00×) |" in text
    assert "| 5% | 2 (" in text
    again = read_matrix(path)
    assert page.markdown(again, "cells.png") == text, "the file has all of it"
    part = page.html(again, "cells")
    assert "<td class=number>2 (1.00×)</td>" in part
    assert all(part.count(f"<{tag}>") == part.count(f"</{tag}>") for tag in ("table", "tr", "h4", "li"))
    with pytest.raises(ConfigError, match="peers: expected a file"):
        read_matrix(tmp_path / "none.jsonl")


def test_engines_take_turns_where_all_files_fit_in_memory() -> None:
    small, large = 1_000_000, 50_000_000
    wanted = matrix.cells(("ssbj", "duckdb"), (small, large), (0, 1), (10,))
    assert [cell.engine for cell in wanted if cell.rows == small] == ["ssbj", "duckdb"] * 2
    assert [cell.engine for cell in wanted if cell.rows == large] == ["ssbj"] * 2 + ["duckdb"] * 2


def test_on_spark_what_is_measured_stays_when_an_engine_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = spark_matrix.cells(("lookup", "spark"), (1_000,), (0, 0.5, 1), (10,))

    def dying(settings: list[Any]) -> Iterator[dict[str, Any]]:
        for setting in settings:
            if setting.engine == "spark" and setting.skew == 0.5:
                raise RuntimeError("java.lang.OutOfMemoryError: Java heap space")
            yield {"durations": [0.5], "memory_growth": 7, "checksum": "10 1"}

    monkeypatch.setattr(spark_matrix, "_measured", dying)
    journal = CellJournal(tmp_path / "cells.jsonl")
    spark_matrix.run(wanted, tmp_path, journal, _quiet())
    found = {(cell.engine, cell.skew): one for cell, one in CellJournal(tmp_path / "cells.jsonl")}
    assert [one.rate for one in found.values()] == [20, 20, 20, 20, 0, 20]
    assert found["spark", 0.5].failed == "out of memory"
    assert journal.missing(wanted) == [wanted[4]], "it is tried again"
