"""``enrich`` beside Spark's own stream-static join, and beside the bare plumbing: one run, the same files.

Every engine runs in a process and a Spark of its own (``local[2]``, no-op sink, the parallel collector) over the same
Parquet files, so many rows to a micro-batch. Figures are medians of micro-batches that come after the third and after a
minute: Java goes on compiling for as long, and a query runs for longer. What is measured is kept at once, and the same
command goes on where it was stopped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace.bench.spark_worker import SparkSetting
from millrace.datasets import synthetic_master, zipf_stream
from millrace.master.store import MasterStore

OWN = ("spark", "spark-sort-merge")
"""Spark's own join as Spark plans it, and with its other strategy forced; the best counts."""

ENGINES = ("spark", "identity", "lookup", "carry")
ONCE = ("drain", "spark-sort-merge", "source", "narrow", "shuffle")
"""Measured with the first master and the first size of micro-batches only; ``drain`` scans, with ``ssbj``."""


def run(
    directory: Path,
    *,
    sizes: tuple[int, ...] = (10_000_000, 50_000_000),
    batches: tuple[int, ...] = (1_000_000, 200_000),
    count: int = 12,
    memory: str = "256MB",
    skew: float = 1.0,
    hot: float = 0.6,
    warm_seconds: float = 60.0,
    kept: Path | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure everything and print it. Outcomes are kept in the file ``kept``, by default in the directory."""
    console = console or Console()
    kept = kept or directory / f"spark-{memory}-{warm_seconds:g}.jsonl"
    done = _read(kept)
    settings = [
        SparkSetting(name, str(directory), rows, batch, _few(name, rows, count), memory, skew, 0.0, warm_seconds)
        for rows in sizes
        for batch in batches
        for name in (*ENGINES, *(ONCE if (rows, batch) == (sizes[0], batches[0]) else ()))
    ]
    settings += [
        SparkSetting(name, str(directory), sizes[0], batches[0], count, memory, skew, hot, warm_seconds)
        for name in ("lookup", "carry")
    ]
    with Progress(transient=True, console=console) as progress:
        task = progress.add_task("", total=len(settings))
        for setting in settings:
            of = "hot keys" if setting.hot else f"{setting.master_rows:,} rows, batches of {setting.batch_rows:,}"
            progress.update(task, description=f"{of}: {setting.engine}")
            if _key(setting) not in done:
                prepare_master(directory, setting.master_rows)
                prepare_stream(directory, setting.master_rows, setting.batch_rows, 8, skew, setting.hot)
                done[_key(setting)] = measure(setting)
                with kept.open("a") as file:
                    file.write(json.dumps([_key(setting), done[_key(setting)]]) + "\n")
            progress.advance(task)
    results: list[dict[str, Any]] = []
    for rows in sizes:
        for batch in batches:
            mine = [s for s in settings if (s.master_rows, s.batch_rows, s.hot) == (rows, batch, 0.0)]
            results.append({"rows": rows, "batch": batch, "engines": {s.engine: done[_key(s)] for s in mine}})
    hot_ones = {setting.engine: done[_key(setting)] for setting in settings if setting.hot}
    report = {"results": results, "hot": {"share": hot, "engines": hot_ones}, "memory": memory, "skew": skew}
    print_report(report, console)
    return report


def _few(engine: str, rows: int, count: int) -> int:
    """Micro-batches that are counted; fewer of those that take long."""
    return 3 if engine.startswith("spark") and rows > 20_000_000 else count


def _key(setting: SparkSetting) -> str:
    return f"{setting.engine} {setting.master_rows} {setting.batch_rows} {setting.hot:g} {setting.batches}"


def _read(kept: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads(line) for line in kept.read_text().splitlines()) if kept.exists() else {}


def measure(setting: SparkSetting) -> dict[str, Any]:
    """One engine in a process of its own."""
    return measure_several([setting])[0]


def measure_several(settings: Sequence[SparkSetting]) -> list[dict[str, Any]]:
    """Settings of one engine and one master, in one process."""
    asked = json.dumps([asdict(setting) for setting in settings])
    command = [sys.executable, "-m", "millrace.bench.spark_worker", asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise RuntimeError(f"{settings[0].engine}: {tail}")
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    for setting, one in zip(settings, found, strict=True):
        one["seconds"] = median(one["durations"])
        one["rate"] = setting.batch_rows / one["seconds"]
    return found


# inputs


def master_path(directory: Path, rows: int) -> Path:
    return directory / f"spark-master-{rows}.parquet"


def store_path(directory: Path, rows: int, shards: int) -> Path:
    return directory / f"spark-master-{rows}-{shards}.store"


def stream_path(directory: Path, rows: int, batch: int, skew: float, hot: float) -> Path:
    return directory / f"spark-stream-{rows}-{batch}-{skew:g}-{hot:g}"


def prepare_master(directory: Path, rows: int, shards: tuple[int, ...] = (1, 2)) -> None:
    """The master as a folder of Parquet files, and as stores of one shard and of two."""
    folder = master_path(directory, rows)
    if not folder.exists():
        aside = folder.with_suffix(".making")
        aside.mkdir(parents=True, exist_ok=True)
        reader = synthetic_master(rows)
        writer, number, held = None, 0, 0
        for batch in reader:
            if writer is None or held >= 2_500_000:
                if writer is not None:
                    writer.close()
                writer, held = pq.ParquetWriter(aside / f"{number:04d}.parquet", reader.schema), 0
                number += 1
            writer.write_batch(batch)
            held += len(batch)
        if writer is not None:
            writer.close()
        aside.rename(folder)
    for count in shards:
        if not store_path(directory, rows, count).exists():
            MasterStore.build(str(folder), store_path(directory, rows, count), key="key", shards=count)


def prepare_stream(directory: Path, rows: int, batch: int, count: int, skew: float, hot: float) -> None:
    """Two files to a micro-batch; with ``hot`` that share of the tuples is all of one key."""
    folder = stream_path(directory, rows, batch, skew, hot)
    if folder.exists() and len(list(folder.glob("*.parquet"))) >= 2 * count:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(zipf_stream(rows, skew, batch_rows=batch // 2, batches=2 * count, seed=11)):
        table = pa.Table.from_batches([part])
        if hot:
            keys = table["key"].to_numpy().copy()
            keys[: int(hot * len(keys))] = 12_345
            table = table.set_column(table.column_names.index("key"), "key", pa.array(keys))
        pq.write_table(table, folder / f"{number:04d}.parquet")


# the report


def print_report(report: dict[str, Any], console: Console) -> None:
    table = Table(title=f"seconds per micro-batch, and times as fast as Spark's own join (memory {report['memory']})")
    names = ("master", "micro-batch", "Spark's own", "identity", "look-up", "×", "carry", "×", "look-up / identity")
    for column in names:
        table.add_column(column, justify="right")
    for here in report["results"]:
        seconds = {name: found["seconds"] for name, found in here["engines"].items()}
        own = min(seconds[name] for name in OWN if name in seconds)
        table.add_row(
            f"{here['rows']:,}",
            f"{here['batch']:,}",
            f"{own:.2f}",
            f"{seconds['identity']:.2f}",
            f"{seconds['lookup']:.2f}",
            f"{own / seconds['lookup']:.1f}",
            f"{seconds['carry']:.2f}",
            f"{own / seconds['carry']:.1f}",
            f"{seconds['lookup'] / seconds['identity']:.2f}",
        )
    console.print(table)
    for here in report["results"]:
        sums = {found["checksum"] for name, found in here["engines"].items() if found["checksum"]}
        verdict = "agree" if len(sums) == 1 else "DIFFER"
        console.print(f"{here['rows']:,} rows, batches of {here['batch']:,}: counts and checksums {verdict}")
    first = report["results"][0]["engines"]
    if "source" in first:
        console.print("where the time of a micro-batch goes (seconds, each with all before it):")
        for name in ("source", "narrow", "shuffle", "identity", "drain", "lookup", "carry"):
            console.print(f"  {name:>14} {first[name]['seconds']:.2f}  join {first[name].get('join_ms', 0) / 1000:.2f}")
    for name, found in report["hot"]["engines"].items():
        plain = first.get(name)
        if plain:
            console.print(
                f"{report['hot']['share']:.0%} of the stream on one key, {name}: {found['rate']:,.0f} tuples/s, "
                f"{found['rate'] / plain['rate']:.2f} of the Zipf rate"
            )
