"""Measure the engines on Spark: ``enrich``, Spark's stream-static joins, and pandas in ``foreachBatch``.

An engine's cells for one master share a process and a session, so that Java compiles their code once.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.core.errors import one_of
from millrace_bench.engines.batch_engine import MasterFiles, arrow_file
from millrace_bench.engines.spark_inputs import prepare_master, prepare_stream
from millrace_bench.engines.spark_process import measure_all
from millrace_bench.engines.spark_worker import SparkSetting
from millrace_bench.rivals.cell import Cell, CellJournal, CellResult
from millrace_bench.rivals.result_files import show_and_write

MEMORY = "256MB"
ENGINES: dict[str, dict[str, str]] = {
    "drain": {"join": "enrich, ssbj, pending=drain", "memory": MEMORY},
    "lookup": {"join": "enrich, lookup", "memory": MEMORY},
    "spark": {
        "join": "stream-static, the micro-batch is broadcast (at most 256 MB, instead of 10)",
        "master": "Parquet",
    },
    "spark-cached": {"join": "stream-static, the micro-batch is broadcast", "master": "cached in the heap"},
    "spark-sort-merge": {"join": "stream-static, sort-merge: broadcasts turned off", "master": "Parquet"},
    "pandas": {"join": "foreachBatch: toPandas through Arrow, get_indexer of an index built once, take"},
    "pandas-merge": {"join": "foreachBatch: toPandas through Arrow, merge"},
}
USUAL = ("drain", "lookup", "spark", "spark-cached", "spark-sort-merge", "pandas")

_COSTS = {
    # time of a micro-batch: seconds, plus seconds per million master rows, plus microseconds per tuple
    "drain": (0.5, 0.03, 1.0),
    "lookup": (0.4, 0.0, 1.0),
    "spark": (0.6, 0.4, 1.0),
    "spark-cached": (0.6, 0.3, 1.0),
    "spark-sort-merge": (0.8, 1.8, 1.5),
    "pandas": (0.4, 0.0, 2.0),
    "pandas-merge": (0.4, 0.5, 2.0),
}
_OPENING = {"spark-cached": 2.5, "pandas": 0.3}  # seconds per million master rows, once
_START, _QUERY = 12.0, 1.0
_WARM = 5.0
_MOST = 60.0
_LARGE = 5_000_000  # master rows above which only one or two micro-batches of Spark's own joins are measured
_HUGE = 20_000_000


def cells(engines: Sequence[str], sizes: Sequence[int], skews: Sequence[float], batches: Sequence[int]) -> list[Cell]:
    """Return the cells of the matrix, ordered so that an engine's cells for one master follow each other."""
    for engine in engines:
        one_of("engine", engine, ENGINES)
    return [
        Cell(engine, rows, skew, batch, MEMORY)
        for rows in sizes
        for engine in engines
        for skew in skews
        for batch in batches
    ]


def expected(wanted: Iterable[Cell]) -> float:
    """Estimate how many seconds it takes to measure some cells whose inputs exist."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in wanted:
        groups.setdefault((cell.engine, cell.rows), []).append(cell)
    total = 0.0
    for (engine, rows), group in groups.items():
        fixed, per_row, per_tuple = _COSTS[engine]
        total += _START + _WARM + _OPENING.get(engine, 0.0) * rows / 1e6
        for cell in group:
            one = fixed + per_row * rows / 1e6 + per_tuple * 1e-6 * cell.batch_rows
            warm, count = _counts(cell)
            total += _QUERY + min((warm + count) * one, max(_MOST, one)) + _checks(cell) * one
    return total


def _counts(cell: Cell) -> tuple[int, int]:
    """Return how many micro-batches to warm up with, and how many to measure.

    Both numbers are smaller if each micro-batch takes many seconds.
    """
    if cell.engine.startswith("spark") and cell.rows > _LARGE:
        return 1, 1 if cell.rows > _HUGE else 2
    return 2, 3


def _checks(cell: Cell) -> bool:
    """Return whether to compute the checksum of a cell's rows, which is left out in some cells that take long."""
    if not cell.engine.startswith("spark") or cell.rows <= _LARGE:
        return True
    return cell.engine != "spark-sort-merge" and (cell.rows <= _HUGE or cell.skew == 1)


def _heap(cell: Cell) -> str:
    """Return the size of Java's heap, large enough to cache the whole master if the engine does so."""
    return "12g" if cell.engine == "spark-cached" and cell.rows > _HUGE else "6g"


def _partitions(cell: Cell) -> int:
    """Return the number of shuffle partitions, chosen so that each can be sorted in memory."""
    return 16 if cell.engine == "spark-sort-merge" and cell.rows > _HUGE else 2


def _settings(cell: Cell) -> dict[str, str]:
    heap, partitions = _heap(cell).replace("g", " GB"), f"{_partitions(cell)} shuffle partitions"
    spark = f"{version('pyspark')}, local[2], {partitions}, driver {heap}, parallel collector, no-op sink"
    return {**ENGINES[cell.engine], "Spark": spark}


def prepare(wanted: Sequence[Cell], directory: Path) -> None:
    """Write the masters and streams that some cells need, where they are missing."""
    for rows in dict.fromkeys(cell.rows for cell in wanted):
        prepare_master(directory, rows, shards=(1,))
        if any(cell.engine.startswith("pandas") for cell in wanted):
            arrow_file(MasterFiles(directory, rows))
    for cell in wanted:
        prepare_stream(directory, cell.rows, cell.batch_rows, 4, cell.skew, 0.0)


def run(wanted: Sequence[Cell], directory: Path, journal: CellJournal, console: Console, warm: float = _WARM) -> None:
    """Measure the cells that are not in the journal yet, with one process for each engine and master."""
    missing = journal.missing(wanted)
    groups: dict[tuple[int, str], list[Cell]] = {}
    for cell in missing:
        groups.setdefault((cell.rows, cell.engine), []).append(cell)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(wanted), completed=len(wanted) - len(missing))
        for (rows, engine), group in groups.items():
            progress.update(task, description=f"{engine} on Spark: {rows:,} rows")
            left = deque(group)
            while left:
                try:
                    settings = [_setting(cell, directory, warm, first=i == 0) for i, cell in enumerate(left)]
                    for one in _measured(settings):
                        cell = left.popleft()
                        journal.record(cell, _found(one, cell))
                        progress.advance(task)
                except RuntimeError as error:  # the remaining cells are measured in another process
                    cell = left.popleft()
                    journal.record(cell, CellResult(failed=_short(error), settings=_settings(cell)))
                    progress.advance(task)


_measured = measure_all


def _setting(cell: Cell, directory: Path, warm: float, first: bool) -> SparkSetting:
    warm_batches, count = _counts(cell)
    return SparkSetting(
        cell.engine,
        str(directory),
        cell.rows,
        cell.batch_rows,
        count,
        cell.memory,
        cell.skew,
        warm_seconds=warm if first else 0.0,
        warm_batches=warm_batches,
        most_seconds=_MOST,
        check=_checks(cell),
        heap=_heap(cell),
        partitions=_partitions(cell),
    )


def _found(one: dict[str, object], cell: Cell) -> CellResult:
    durations = np.array(one["durations"], np.float64)
    growth = one["memory_growth"]
    assert isinstance(growth, int)
    return CellResult(
        rate=cell.batch_rows / float(np.median(durations)),
        p50=float(np.quantile(durations, 0.5)),
        p99=float(np.quantile(durations, 0.99)),
        batches=len(durations),
        memory_growth=growth,
        checksum=str(one["checksum"]),
        settings=_settings(cell),
    )


def _short(error: RuntimeError) -> str:
    text = str(error)
    return "out of memory" if "OutOfMemory" in text or "MemoryError" in text else text.splitlines()[-1][:160]


def main(options: argparse.Namespace, console: Console) -> None:
    """Measure the missing cells of the matrix that the options describe, and show the results of all its cells."""
    small = options.small
    wanted = cells(
        options.engines or USUAL,
        options.sizes or ((100_000,) if small else (1_000_000, 10_000_000, 50_000_000)),
        options.skews or ((1.0,) if small else (0.0, 0.5, 1.0)),
        options.batches or ((20_000,) if small else (10_000, 100_000, 1_000_000)),
    )
    journal = CellJournal(options.results)
    missing = journal.missing(wanted)
    minutes = math.ceil(expected(missing) / 60)
    console.print(f"{len(wanted)} cells, {len(missing)} to measure: about {minutes} min once the inputs are there")
    if options.estimate:
        return
    options.directory.mkdir(parents=True, exist_ok=True)
    prepare(missing, options.directory)
    if options.prepare:
        return
    run(wanted, options.directory, journal, console, 1.0 if small else _WARM)
    show_and_write(wanted, journal, console, options.results)
