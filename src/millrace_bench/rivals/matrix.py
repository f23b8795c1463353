"""List the cells of the matrix, estimate their time, and measure those that are missing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millrace.core.errors import MillraceError, one_of
from millrace_bench.engines.engine_list import BUDGETED, ENGINES
from millrace_bench.rivals.cell import Cell, CellJournal, CellResult
from millrace_bench.rivals.cell_worker import Limits

_MOST_SECONDS = 600.0  # a process that takes longer is ended
_CACHED = 10_000_000  # master rows up to which the files of all engines together stay in the page cache

_COSTS = {
    # seconds to open the master, per million rows; seconds per batch, per million rows; microseconds per tuple
    "ssbj": (0.02, 0.0, 0.8),
    "meshjoin": (0.02, 0.0, 1.0),
    "lookup": (0.02, 0.0, 0.6),
    "duckdb": (0.02, 0.03, 0.5),
    "duckdb-256MB": (0.02, 0.03, 0.5),
    "polars": (0.1, 0.02, 0.5),
    "sqlite": (0.02, 0.0, 5.0),
    "pandas": (0.3, 0.0, 1.0),
    "pandas-merge": (0.05, 0.4, 1.0),
}
_USUAL = Limits()
_START = 3.0  # seconds to start a process, import everything, and end the process
_READ = 0.1  # seconds per million rows to read a file from the page cache


def cells(
    engines: Sequence[str],
    sizes: Sequence[int],
    skews: Sequence[float],
    batches: Sequence[int],
    *,
    memory: str = "1%",
    memories: Sequence[str] = (),
    rounds: int = 1,
    limits: Limits = _USUAL,
) -> list[Cell]:
    """Return the cells of the matrix, and, for engines with a budget, cells with each of ``memories`` in one setting.

    Engines take turns in each setting, so that changes of the machine's speed affect all engines alike. Where the page
    cache cannot hold the files of all engines, an engine's cells for one master follow each other.
    """
    for engine in engines:
        one_of("engine", engine, ENGINES)
    found = [
        Cell(engine, rows, skew, batch, memory, number, limits.seconds, limits.warm)
        for rows in sizes
        for number in range(1, rounds + 1)
        for skew in skews
        for batch in batches
        for engine in engines
    ]
    order = {engine: number for number, engine in enumerate(engines)}
    found.sort(key=lambda cell: (cell.rows, cell.round, order[cell.engine] if cell.rows > _CACHED else 0))
    middle, batch = (sorted(values)[len(values) // 2] for values in (sizes, batches))
    found += [
        Cell(engine, middle, max(skews), batch, other, number, limits.seconds, limits.warm)
        for number in range(1, rounds + 1)
        for other in memories
        for engine in engines
        if engine in BUDGETED
    ]
    return list(dict.fromkeys(found))


def expected(cell: Cell, limits: Limits) -> float:
    """Estimate how many seconds it takes to measure a cell whose inputs exist, from rough costs of the engines."""
    opening, batch, tuple_ = _COSTS[cell.engine]
    millions = cell.rows / 1e6
    one = batch * millions + tuple_ * 1e-6 * cell.batch_rows
    warm = limits.warm * (3 if cell.engine == "sqlite" else 1)
    tries = 4 if cell.engine == "polars" else 1
    rows = 1e-6 * cell.batch_rows  # to compute the checksum of the first batch
    return _START + (_READ + opening) * millions + max(warm, tries * one) + max(limits.seconds, one) + one + rows


def run(
    wanted: Sequence[Cell],
    directory: Path,
    journal: CellJournal,
    limits: Limits,
    *,
    console: Console | None = None,
    measure: Callable[[Cell, Path, Limits], CellResult] | None = None,
) -> int:
    """Measure the wanted cells that the journal does not have, or has as failed; return their number."""
    measure = measure or measure_apart
    missing = journal.missing(wanted)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(wanted), completed=len(wanted) - len(missing))
        for cell in missing:
            where = f"{cell.rows:,} rows, skew {cell.skew:g}, batches of {cell.batch_rows:,}"
            progress.update(task, description=f"{cell.engine}: {where}")
            journal.record(cell, measure(cell, directory, limits))
            progress.advance(task)
    return len(missing)


def prepare(wanted: Iterable[Cell], directory: Path, limits: Limits, console: Console) -> None:
    """Write all inputs in advance, with one process for each master, so that no measurement has to write them."""
    kinds: dict[int, dict[tuple[str, float], Cell]] = {}
    for cell in wanted:
        kinds.setdefault(cell.rows, {})[cell.engine, cell.skew] = cell
    for rows, some in kinds.items():
        began = time.perf_counter()
        request = {"prepare": [asdict(cell) for cell in some.values()]}
        done = _process(request, directory, limits)
        if done.returncode:
            raise MillraceError(f"inputs of {rows:,} rows: could not be made: {_last_line(done.stderr)}")
        console.print(f"inputs of {rows:,} rows: {time.perf_counter() - began:.0f} s")


def measure_apart(cell: Cell, directory: Path, limits: Limits) -> CellResult:
    """Measure a cell in a fresh process; if the engine fails or takes too long, return a result that says so."""
    began = time.perf_counter()
    try:
        done = _process({"cell": asdict(cell)}, directory, limits, _MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return CellResult(failed=f"more than {_MOST_SECONDS:.0f} s", took=_MOST_SECONDS)
    took = time.perf_counter() - began
    if done.returncode < 0:
        return CellResult(failed="out of memory: killed" if done.returncode == -9 else "crashed", took=took)
    if done.returncode:
        return CellResult(failed=_last_line(done.stderr), took=took)
    return CellResult(**{**json.loads(done.stdout.strip().splitlines()[-1]), "took": took})


def _process(
    request: dict[str, Any], directory: Path, limits: Limits, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    arguments = json.dumps({**request, "directory": str(directory), "limits": asdict(limits)})
    command = [sys.executable, "-m", "millrace_bench.rivals.cell_worker", arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
