"""Compare ``enrich`` with Spark's own stream-static join, and with the bare data transfer, on the same files.

Every engine runs in a process and a session of its own, with ``local[2]``, a no-op sink and the parallel collector. All
read the same Parquet files, with a fixed number of rows per micro-batch. Engines are warmed up for a while, since Java
compiles as it runs, and then take turns, a few micro-batches each, round after round, so that a slow minute of the
machine affects all of them. If the master is too large for several engines at once, one engine runs at a time, and
starts again every round. Figures are medians. Each result is written at once; after an interruption, run the same
command again to continue.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millrace_bench.engines.spark_inputs import prepare_master, prepare_stream
from millrace_bench.engines.spark_process import SparkProcess
from millrace_bench.engines.spark_worker import SparkSetting

OWN = ("spark", "spark-sort-merge")
"""Engines that use Spark's own join, as Spark plans it or as a sort-merge join; the faster of the two is reported."""

ENGINES = ("spark", "identity", "lookup", "carry")
STEPS = ("source", "narrow", "shuffle", "identity", "drain", "lookup", "carry")
"""Engines that show what each part of the work costs, from reading the stream alone to complete joins."""

_LARGE = 20_000_000
"""Number of master rows above which only one engine runs at a time."""

_HEAP = "3g"
"""Size of each engine's Java heap. Engines run side by side, and larger heaps would leave too little page cache."""

Say = Callable[[str], None]
Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """Engines to compare, and the numbers of rows of the master and of a micro-batch.

    A share ``hot`` of the tuples, from 0 to 1, has the same key.
    """

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
    journal: Path | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure all cases that are not in the file ``journal`` yet, then print and return a report on all of them.

    By default the journal is in ``directory``; its name contains the memory and the warm-up.
    """
    console = console or Console()
    journal = journal or directory / f"spark-{memory}-{warm_seconds:g}.jsonl"
    done = _read(journal)
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
                with journal.open("a") as file:
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


def _read(journal: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads(line) for line in journal.read_text().splitlines()) if journal.exists() else {}


def in_turn(cases: Sequence[Case], common: SparkSetting, rounds: int, say: Say) -> Iterator[tuple[Case, Figures]]:
    """Measure cases that have the same master; yield each case with the figures of its engines, by engine name."""
    if not cases:
        return
    names = list(dict.fromkeys(name for case in cases for name in case.engines))
    settings = {(case, name): _setting(case, name, common) for case in cases for name in case.engines}
    for case in cases[1:]:  # Java has compiled the shared code in the first case
        for name in case.engines:
            settings[case, name].warm_seconds /= 4
    if cases[0].rows > _LARGE:
        parts: dict[tuple[Case, str], list[dict[str, Any]]] = {key: [] for key in settings}
        for number in range(min(rounds, 2)):
            for name in names:
                with SparkProcess() as engine:
                    for case in (case for case in cases if name in case.engines):
                        say(f"{case}: {name}, round {number + 1}")
                        whole = settings[case, name]
                        many = whole.batches * max(1, rounds // 2)
                        parts[case, name].append(engine.measure(replace(whole, batches=many, check=number == 0)))
        yield from ((case, {name: _combined(case, parts[case, name]) for name in case.engines}) for case in cases)
        return
    engines = {name: SparkProcess() for name in names}
    try:
        for case in cases:
            yield case, _rounds(case, {name: settings[case, name] for name in case.engines}, engines, rounds, say)
    finally:
        for engine in engines.values():
            engine.close()


def _rounds(
    case: Case, settings: dict[str, SparkSetting], engines: dict[str, SparkProcess], rounds: int, say: Say
) -> Figures:
    """Warm engines up one after the other, then measure them in turn; return the figures of each by name."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in settings}
    for name, setting in settings.items():
        say(f"{case}: {name} warms up")
        found[name].append(engines[name].measure(replace(setting, batches=1)) | {"durations": []})
    for number in range(rounds):
        for name, setting in settings.items():
            say(f"{case}: {name}, round {number + 1}")
            repeated = replace(setting, warm_seconds=0.0, warm_batches=min(2, setting.warm_batches), check=False)
            found[name].append(engines[name].measure(repeated))
    return {name: _combined(case, parts) for name, parts in found.items()}


def _setting(case: Case, engine: str, common: SparkSetting) -> SparkSetting:
    own = replace(common, engine=engine, master_rows=case.rows, batch_rows=case.batch, hot=case.hot)
    if engine == "spark-sort-merge" or (engine == "spark" and case.rows > _LARGE):
        return replace(own, batches=1, warm_batches=1)  # a micro-batch takes many seconds
    return own


def _combined(case: Case, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    durations = [seconds for part in parts for seconds in part["durations"]]
    middle = median(durations)
    return {
        **parts[-1],
        "durations": durations,
        "seconds": middle,
        "rate": case.batch / middle,
        "checksum": parts[0]["checksum"],
    }


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the tables of a report."""
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
    console.print("where the time of a micro-batch goes (seconds, each step includes those before it):")
    for name, found in report["steps"].items():
        console.print(f"  {name:>14} {found['seconds']:.2f}  join {found.get('join_ms', 0) / 1000:.2f}")
    for name, found in report["hot"]["engines"].items():
        console.print(
            f"{report['hot']['share']:.0%} of the stream on one key, {name}: {found['rate']:,.0f} tuples/s, "
            f"{found['rate'] / first[name]['rate']:.2f} of the Zipf rate"
        )
