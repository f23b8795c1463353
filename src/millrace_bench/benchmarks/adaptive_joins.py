"""Measure the CPU time of adaptive joins of two inputs, whose batches arrive in turn, with ample or little memory.

Engines run in turn for several rounds. Other work on the machine makes a run slower, never faster, so the fastest run
is given beside the median one, and ratios of two engines compare their fastest runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from millrace.adaptive.join import StreamJoin
from millrace.adaptive.pair.pair_algorithms import ALGORITHMS
from millrace.core.sizes import format_size

_PAYLOAD = 100


def run(
    directory: Path,
    *,
    rows: int = 1_000_000,
    large_rows: int = 5_000_000,
    duckdb: bool = True,
    rounds: int = 5,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure joins of small inputs with ample and with little memory, and of large inputs with little memory.

    Each small input has ``rows`` rows, and each large input ``large_rows``. Ample memory is 3 times the size of both
    inputs together, and little memory 0.1 times.
    """
    console = console or Console()
    directory.mkdir(parents=True, exist_ok=True)
    together: Any = {"duckdb": duckdb, "rounds": rounds, "console": console}
    found = _compared(directory, rows, 10_000, (3.0, 0.1), ("diner", "xjoin"), **together)
    large = _compared(directory, large_rows, 50_000, (0.1,), ("diner",), **together)
    return {"rows": rows, "figures": found, "large_rows": large_rows, "large": large}


def _compared(
    directory: Path,
    rows: int,
    batch_rows: int,
    shares: tuple[float, ...],
    algorithms: tuple[str, ...],
    *,
    duckdb: bool,
    rounds: int,
    console: Console,
) -> list[dict[str, Any]]:
    """Measure the CPU seconds of each algorithm, and of DuckDB if ``duckdb`` is true, with each memory budget.

    Budgets are given as shares of the total bytes of both inputs. A table is printed, and the figures are returned.
    """
    left, right = (list(_input(name, rows, batch_rows, seed)) for name, seed in (("l", 1), ("r", 2)))
    size = 2 * rows * (_PAYLOAD + 8)
    _measured("diner", left[:2], right[:2], size // 100)  # compiles the kernels
    table = Table(title=f"{rows:,} rows of {_PAYLOAD + 8} bytes on each side, batches of {batch_rows:,}")
    for column in (
        "engine",
        "memory",
        "CPU s",
        "median",
        "rows/s per side",
        "of DuckDB",
        "online",
        "read MB",
        "written MB",
    ):
        table.add_column(column, justify="left" if column == "engine" else "right")
    figures: list[dict[str, Any]] = []
    for share in shares:
        memory = int(size * share)
        runs: dict[str, Callable[[], dict[str, Any]]] = {
            name: partial(_measured, name, left, right, memory)
            for name in algorithms
            if ALGORITHMS[name].spills or share > 1
        }
        if duckdb:
            runs["duckdb"] = partial(_duckdb, directory, left, right, memory)
            needed = runs["duckdb"]()["memory"]
            if needed > memory:  # also run Millrace with the memory that DuckDB needed
                runs |= {
                    f"{name}, as DuckDB": partial(_measured, name, left, right, needed)
                    for name in algorithms
                    if name in runs
                }
        figures += [{"engine": name, "share": share, **figure} for name, figure in _in_turn(runs, rounds).items()]
    for figure in figures:
        rival = [f for f in figures if f["engine"] == "duckdb" and f["share"] == figure["share"]]
        table.add_row(
            figure["engine"],
            format_size(figure["memory"]),
            f"{figure['seconds']:.2f}",
            f"{figure['median']:.2f}",
            f"{rows / figure['seconds']:,.0f}",
            f"{figure['seconds'] / rival[0]['seconds']:.2f}" if rival else "",
            f"{figure.get('online', 0):.0%}",
            f"{figure.get('bytes_read', 0) / 1e6:.0f}",
            f"{figure.get('bytes_written', 0) / 1e6:.0f}",
        )
    console.print(table)
    same = len({figure["rows"] for figure in figures}) == 1
    console.print("all give as many rows" if same else "ROW COUNTS DIFFER")
    return figures


def _in_turn(runs: dict[str, Callable[[], dict[str, Any]]], rounds: int) -> dict[str, dict[str, Any]]:
    """Run engines in turn, ``rounds`` times; return the fastest run's figures and the median seconds of each engine."""
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run_once in runs.items():
            taken[name].append(run_once())
    return {
        name: min(figures, key=lambda f: float(f["seconds"])) | {"median": median(f["seconds"] for f in figures)}
        for name, figures in taken.items()
    }


def _input(name: str, rows: int, batch_rows: int, seed: int) -> Iterable[pa.RecordBatch]:
    """Yield batches with random keys from 0 to ``rows - 1``, and a payload of fixed width in a column ``name``."""
    random = np.random.default_rng(seed)
    for start in range(0, rows, batch_rows):
        count = min(batch_rows, rows - start)
        payload = pa.Array.from_buffers(
            pa.binary(_PAYLOAD), count, [None, pa.py_buffer(random.bytes(_PAYLOAD * count))]
        )
        yield pa.record_batch({"key": pa.array(random.integers(0, rows, count)), name: payload})


def _measured(name: str, left: list[pa.RecordBatch], right: list[pa.RecordBatch], memory: int) -> dict[str, Any]:
    join = StreamJoin(on="key", algorithm=name, memory=memory)
    start = time.process_time()
    out = 0
    for ours, theirs in zip(left, right, strict=True):
        out += sum(len(batch) for batch in join.push("left", ours))
        out += sum(len(batch) for batch in join.push("right", theirs))
    arriving, early = time.process_time() - start, out
    out += sum(len(batch) for batch in join.finish())
    seconds, metrics = time.process_time() - start, join.metrics
    join.close()
    return {
        "memory": memory,
        "seconds": seconds,
        "arriving": arriving,
        "rows": out,
        "online": early / max(1, out),
        "bytes_read": metrics.bytes_read,
        "bytes_written": metrics.bytes_written,
        "peak_ledger": metrics.peak_bytes,
    }


def _duckdb(directory: Path, left: list[pa.RecordBatch], right: list[pa.RecordBatch], memory: int) -> dict[str, Any]:
    """Join two complete inputs with DuckDB on one thread; try again with more memory if DuckDB runs out of it."""
    import duckdb

    tables = {"a": pa.Table.from_batches(left), "b": pa.Table.from_batches(right)}
    while True:
        with duckdb.connect() as connection:
            connection.execute("SET threads = 1; SET preserve_insertion_order = false")
            connection.execute(f"SET memory_limit = '{memory}B'; SET temp_directory = '{directory / 'duckdb-spill'}'")
            for name, table in tables.items():
                connection.register(name, table)
            start = time.process_time()
            try:
                query: Any = connection.sql("SELECT a.key, l, r FROM a JOIN b ON a.key = b.key")
                out = sum(len(batch) for batch in query.to_arrow_reader(65_536))
            except duckdb.OutOfMemoryException:
                memory = memory * 5 // 4
                continue
            return {"seconds": time.process_time() - start, "rows": out, "memory": memory}
