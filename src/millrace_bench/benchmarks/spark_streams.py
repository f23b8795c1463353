"""Compare ``join_streams`` with Spark's own stream-stream join without a watermark: memory and time by state size.

Both sides contain every key once, in random order, so every row has one partner: as many rows come out as each side
has, and the state grows for ever. Every engine runs in a process and a session of its own, with ``local[2]`` and a
no-op sink. All read the same Parquet files, one file of each side at a time. Spark's own join runs with its default
state store, which holds state in Java's heap, and with RocksDB, which Millrace uses. All have the settings of
:func:`millrace.spark.session`, so RocksDB's memory is bounded for all of them.

Memory is Java's heap in use after a full collection, other memory of the Java process, and the peak of all Python
workers since the last sample.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace_bench.benchmarks.spark_streams_worker import StreamsSetting
from millrace_bench.shared import data

ENGINES = {"millrace": "join_streams", "spark": "Spark", "spark-rocksdb": "Spark, RocksDB"}


def run(
    directory: Path,
    *,
    batches: int = 40,
    rows: int = 50_000,
    memory: str = "64MB",
    heap: str = "5g",
    sample_every: int = 2,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure all engines, check that they return the same rows, and print and return the figures."""
    console = console or Console()
    series = []
    with Progress(transient=True) as progress:
        task = progress.add_task("making the inputs", total=len(ENGINES))
        folder = prepare(directory, batches, rows)
        for engine in ENGINES:
            progress.update(task, description=ENGINES[engine])
            series.append(_measure(StreamsSetting(engine, str(folder), batches, memory, heap, sample_every)))
            progress.advance(task)
    result = {"batches": batches, "rows": rows, "memory": memory, "heap": heap, "series": series}
    _check(result)
    _print(console, result)
    return result


def prepare(directory: Path, batches: int, rows: int) -> Path:
    """Write the files of both sides, with rows of about a hundred bytes, and return their folder."""
    folder = (directory / f"streams-{batches}-{rows}").resolve()
    if folder.exists():
        return folder
    random = np.random.default_rng(17)
    with data.new_folder(folder) as unfinished:
        for side in ("left", "right"):
            (unfinished / side).mkdir()
            keys = random.permutation(batches * rows)
            for number in range(batches):
                mine = keys[number * rows : (number + 1) * rows]
                pad = pa.array([f"{side} {key:064d}" for key in mine.tolist()])
                table = {"key": mine, f"{side}_at": mine * 7, f"{side}_value": random.random(rows), f"{side}_text": pad}
                pq.write_table(pa.table(table), unfinished / side / f"{number:04d}.parquet")
    return folder


def _measure(setting: StreamsSetting) -> dict[str, Any]:
    command = [sys.executable, "-m", "millrace_bench.benchmarks.spark_streams_worker", json.dumps(asdict(setting))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise RuntimeError(f"{setting.engine}: its process failed; its last output:\n{tail}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def memory_in_use(point: dict[str, Any]) -> int:
    """Return the bytes of memory in use at a sampled point: Java's heap, its other memory, and Python workers."""
    return int(point["heap"] + point["native"] + point["python"])


def sampled_points(one: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the points of an engine's series at which memory was sampled."""
    return [point for point in one["points"] if "heap" in point]


def _check(result: dict[str, Any]) -> None:
    """Raise RuntimeError unless all engines returned the same rows, and the right number of them."""
    sums = {one["engine"]: one["checksum"] for one in result["series"]}
    if len(set(sums.values())) != 1:
        raise RuntimeError(f"streams: expected equal rows from all engines; got different rows (count, sum): {sums}")
    count = int(next(iter(sums.values())).split()[0])
    if count != result["batches"] * result["rows"]:
        raise RuntimeError(f"streams: expected {result['batches'] * result['rows']} rows; got {count}")


def _print(console: Console, result: dict[str, Any]) -> None:
    total = result["batches"] * result["rows"]
    table = Table(
        title=f"{result['batches']} micro-batches of {result['rows']:,} rows a side, {total:,} rows out of all three; "
        f"join_streams(memory={result['memory']!r})"
    )
    for column in ("", "MB early", "late", "per M rows", "heap", "native", "Python", "s early", "late"):
        table.add_column(column, justify="right" if column else "left", no_wrap=not column)
    for one in result["series"]:
        points = sampled_points(one)
        first, last = points[len(points) // 4], points[-1]
        rows = sum(point["rows_in"] for point in one["points"] if first["batch"] < point["batch"] <= last["batch"]) or 1
        seconds = [point["seconds"] for point in one["points"]]
        few = max(1, len(seconds) // 5)
        table.add_row(
            ENGINES[one["engine"]],
            *(f"{memory_in_use(point) / 1e6:,.0f}" for point in (first, last)),
            f"{(memory_in_use(last) - memory_in_use(first)) / rows:,.0f}",
            *(f"{last[part] / 1e6:,.0f}" for part in ("heap", "native", "python")),
            f"{median(seconds[few : 2 * few]):.2f}",
            f"{median(seconds[-few:]):.2f}",
        )
    console.print(table)
