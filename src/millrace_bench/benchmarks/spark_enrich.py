"""``enrich`` beside Spark's own stream-static join, and beside the bare plumbing: one run, the same files.

Every engine runs in a process and a Spark of its own (``local[2]``, no-op sink, the parallel collector) over the same
Parquet files, so many rows to a micro-batch. Engines are warmed up for a while (Java goes on compiling, and a query
runs for longer), then take turns, a few micro-batches each, round after round: a machine that is slow for a minute is
slow for all. Masters that do not fit into memory several times over have one engine at a time, which is begun anew for
every round. Figures are medians. What is measured is kept at once, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace.datasets import synthetic_master, zipf_stream
from millrace.master.store import MasterStore
from millrace_bench.benchmarks import data
from millrace_bench.benchmarks.spark_enrich_worker import SparkSetting

OWN = ("spark", "spark-sort-merge")
"""Spark's own join as Spark plans it, and with its other strategy forced; the best counts."""

ENGINES = ("spark", "identity", "lookup", "carry")
STEPS = ("source", "narrow", "shuffle", "identity", "drain", "lookup", "carry")
"""Each does a little more than those before it; ``drain`` scans, with ``ssbj``."""

_LARGE = 20_000_000
"""Rows of a master above which engines are not kept beside one another."""

_HEAP = "3g"
"""Java's heap. Engines lie side by side; with more each, they would take the page cache that all of them live on."""

Said = Callable[[str], None]
Found = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """Engines that take turns with one master and one stream."""

    engines: tuple[str, ...]
    rows: int
    batch: int
    hot: float = 0.0

    def __str__(self) -> str:
        hot = f", {self.hot:.0%} on one key" if self.hot else ""
        return f"{self.rows:,} rows, batches of {self.batch:,}{hot}"


def run(
    directory: Path,
    *,
    sizes: tuple[int, ...] = (10_000_000, 50_000_000),
    batches: tuple[int, ...] = (1_000_000, 200_000),
    rounds: int = 4,
    count: int = 3,
    memory: str = "256MB",
    skew: float = 1.0,
    hot: float = 0.6,
    warm_seconds: float = 40.0,
    kept: Path | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure everything and print it. Outcomes are kept in the file ``kept``, by default in the directory."""
    console = console or Console()
    kept = kept or directory / f"spark-{memory}-{warm_seconds:g}.jsonl"
    done = _read(kept)
    plans = [[Case(ENGINES, rows, batch) for batch in batches] for rows in sizes]
    plans[0].append(Case(("lookup", "carry"), sizes[0], batches[0], hot))
    other = Case(("spark-sort-merge",), sizes[0], batches[0])
    steps = Case(STEPS, sizes[0], batches[0])
    plans += [[other], [steps]]
    common = SparkSetting("", str(directory), 0, 0, count, memory, skew, warm_seconds=warm_seconds, heap=_HEAP)
    with Progress(transient=True, console=console) as progress:
        task = progress.add_task("", total=None)
        for plan in plans:
            missing = [case for case in plan if repr(case) not in done]
            for case in missing:
                prepare_master(directory, case.rows)
                prepare_stream(directory, case.rows, case.batch, 8, skew, case.hot)
            for case, found in in_turn(missing, common, rounds, lambda text: progress.update(task, description=text)):
                done[repr(case)] = found
                with kept.open("a") as file:
                    file.write(json.dumps([repr(case), found]) + "\n")
    done[repr(plans[0][0])] |= done[repr(other)]
    report = {
        "results": [
            {"rows": case.rows, "batch": case.batch, "engines": done[repr(case)]}
            for plan in plans[: len(sizes)]
            for case in plan
            if not case.hot
        ],
        "steps": done[repr(steps)],
        "hot": {"share": hot, "engines": done[repr(plans[0][-1])]},
        "memory": memory,
        "skew": skew,
    }
    print_report(report, console)
    return report


def _read(kept: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads(line) for line in kept.read_text().splitlines()) if kept.exists() else {}


def in_turn(cases: Sequence[Case], common: SparkSetting, rounds: int, say: Said) -> Iterator[tuple[Case, Found]]:
    """Cases with one master, and what the engines of each found, by name."""
    if not cases:
        return
    names = list(dict.fromkeys(name for case in cases for name in case.engines))
    settings = {(case, name): _setting(case, name, common) for case in cases for name in case.engines}
    for case in cases[1:]:  # what is common to all has been compiled
        for name in case.engines:
            settings[case, name].warm_seconds /= 4
    if cases[0].rows > _LARGE:
        parts: dict[tuple[Case, str], list[dict[str, Any]]] = {key: [] for key in settings}
        for number in range(min(rounds, 2)):
            for name in names:
                with Apart() as engine:
                    for case in (case for case in cases if name in case.engines):
                        say(f"{case}: {name}, round {number + 1}")
                        whole = settings[case, name]
                        many = whole.batches * max(1, rounds // 2)
                        parts[case, name].append(engine.measure(replace(whole, batches=many, check=number == 0)))
        yield from ((case, {name: _together(case, parts[case, name]) for name in case.engines}) for case in cases)
        return
    engines = {name: Apart() for name in names}
    try:
        for case in cases:
            yield case, _rounds(case, {name: settings[case, name] for name in case.engines}, engines, rounds, say)
    finally:
        for engine in engines.values():
            engine.close()


def _rounds(case: Case, settings: dict[str, SparkSetting], engines: dict[str, Apart], rounds: int, say: Said) -> Found:
    """Engines side by side: warmed up one after the other, then in turn."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in settings}
    for name, setting in settings.items():
        say(f"{case}: {name} is warmed up")
        found[name].append(engines[name].measure(replace(setting, batches=1)) | {"durations": []})
    for number in range(rounds):
        for name, setting in settings.items():
            say(f"{case}: {name}, round {number + 1}")
            again = replace(setting, warm_seconds=0.0, warm_batches=min(2, setting.warm_batches), check=False)
            found[name].append(engines[name].measure(again))
    return {name: _together(case, parts) for name, parts in found.items()}


def _setting(case: Case, engine: str, common: SparkSetting) -> SparkSetting:
    own = replace(common, engine=engine, master_rows=case.rows, batch_rows=case.batch, hot=case.hot)
    if engine == "spark-sort-merge" or (engine == "spark" and case.rows > _LARGE):
        return replace(own, batches=1, warm_batches=1)  # they take long
    return own


def _together(case: Case, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    durations = [seconds for part in parts for seconds in part["durations"]]
    middle = median(durations)
    return {
        **parts[-1],
        "durations": durations,
        "seconds": middle,
        "rate": case.batch / middle,
        "checksum": parts[0]["checksum"],
    }


class Apart:
    """An engine in a process of its own, which is asked over its standard input."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- open for as long as the process
        command = [sys.executable, "-m", "millrace_bench.benchmarks.spark_enrich_worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> Apart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def measure(self, setting: SparkSetting) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asdict(setting)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it has ended; what it said is below
            pass
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            tail = "\n".join(self._errors.read().strip().splitlines()[-15:])
            raise RuntimeError(f"{setting.engine}: {tail}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()


def measure_several(settings: Iterable[SparkSetting]) -> Iterator[dict[str, Any]]:
    """Settings of one engine and one master, one after the other in one process."""
    with Apart() as engine:
        for setting in settings:
            yield engine.measure(setting)


# inputs


def master_path(directory: Path, rows: int) -> Path:
    return directory / f"spark-master-{rows}.parquet"


def store_path(directory: Path, rows: int, shards: int) -> Path:
    """A store of one shard is the one that other benchmarks have."""
    return directory / (f"master-{rows}" if shards == 1 else f"spark-master-{rows}-{shards}.store")


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
        if count == 1:
            data.master(directory, rows)
        elif not store_path(directory, rows, count).exists():
            MasterStore.build(str(folder), store_path(directory, rows, count), key="key", shards=count)


def prepare_stream(directory: Path, rows: int, batch: int, count: int, skew: float, hot: float) -> None:
    """Two files to a micro-batch; with ``hot`` that share of the tuples is all of one key."""
    folder = stream_path(directory, rows, batch, skew, hot)
    if folder.exists() and len(list(folder.glob("*.parquet"))) >= 2 * count:
        return
    aside = folder.with_suffix(".making")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for number, part in enumerate(zipf_stream(rows, skew, batch_rows=batch // 2, batches=2 * count, seed=11)):
        table = pa.Table.from_batches([part])
        if hot:
            keys = table["key"].to_numpy().copy()
            keys[: int(hot * len(keys))] = 12_345
            table = table.set_column(table.column_names.index("key"), "key", pa.array(keys))
        pq.write_table(table, aside / f"{number:04d}.parquet")
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


# the report


def print_report(report: dict[str, Any], console: Console) -> None:
    table = Table(title=f"seconds per micro-batch, and times as fast as Spark's own join (memory {report['memory']})")
    names = ("master", "batch", "Spark", "identity", "look-up", "×", "carry", "×", "/ identity")
    for column in names:
        table.add_column(column, justify="right")
    for here in report["results"]:
        seconds = {name: found["seconds"] for name, found in here["engines"].items()}
        own = min(seconds[name] for name in OWN if name in seconds)
        table.add_row(
            f"{here['rows'] / 1e6:g} M",
            f"{here['batch'] / 1e6:g} M",
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
    console.print("where the time of a micro-batch goes (seconds, each with all before it):")
    for name, found in report["steps"].items():
        console.print(f"  {name:>14} {found['seconds']:.2f}  join {found.get('join_ms', 0) / 1000:.2f}")
    for name, found in report["hot"]["engines"].items():
        console.print(
            f"{report['hot']['share']:.0%} of the stream on one key, {name}: {found['rate']:,.0f} tuples/s, "
            f"{found['rate'] / first[name]['rate']:.2f} of the Zipf rate"
        )
