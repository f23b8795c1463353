"""Run points of experiments, several at a time, and record their outcomes in a file, so that a run can be continued.

Every outcome is one line of a JSON-lines file, written as soon as it is known. A point that several figures share is
run once. An outcome depends on its point and seed alone, and on the machine if wall time is measured. So points can run
in several processes at a time, once their data is complete.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import blake2s
from importlib.metadata import version
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import millrace
from millrace.core.errors import MillraceError
from millrace.core.jit import interrupts_wait
from millrace_bench.experiments.experiment import SEEDS, Experiment, Point, Run, Size
from millrace_bench.experiments.inputs import own_name, own_orders
from millrace_bench.experiments.outcomes import Outcome, make_data, outcome
from millrace_bench.experiments.sets import bytes_to_make, own_reports, real_name, stamp_of
from millrace_bench.shared.json_lines import JsonLinesFile

_NOT_MEASURED = ("__main__.py", "cli", "spark", "testing", "worker")  # outcomes hardly depend on these
_MOST_FILLED = 0.9  # share of the free disk space that inputs may take

Measure = Callable[[Path, Any, int], Outcome]


def code_digest() -> str:
    """Return a digest of the code that outcomes depend on, to recognize those measured with another version of it."""
    root = Path(millrace.__file__).parent
    files = sorted(path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in _NOT_MEASURED)
    return blake2s(b"".join(path.read_bytes() for path in files), digest_size=6).hexdigest()


class OutcomeJournal:
    """A file of outcomes by point and seed; outcomes of another version of Millrace are ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLinesFile(path, "an outcome of `millrace bench run`")
        self._found: dict[str, Outcome] = {}
        self._of_other_code: set[str] = set()
        self._version, self._code = version("millrace"), code_digest()
        self._lines.read(self._read_entry)

    def _read_entry(self, entry: Any) -> None:
        if entry["version"] == self._version:
            key, outcome = entry["point"], entry["outcome"]
            if not all(math.isfinite(value) for value in outcome.values()):
                raise ValueError(f"outcome: expected finite numbers; got {outcome}")
            self._found[key] = outcome
            (self._of_other_code.discard if entry.get("code") == self._code else self._of_other_code.add)(key)

    def get(self, point: Run, seed: int) -> Outcome | None:
        """Return the outcome of a point with a seed; None if there is none."""
        return self._found.get(point.key(seed))

    def of_other_code(self, points: Iterable[tuple[Run, int]]) -> int:
        """Return how many pairs of a point and a seed have an outcome measured with another version of the code."""
        return sum(point.key(seed) in self._of_other_code for point, seed in points)

    def record(self, point: Run, seed: int, found: Outcome) -> None:
        """Append an outcome, which is in the file when the method returns."""
        key = point.key(seed)
        self._lines.append({"version": self._version, "point": key, "code": self._code, "outcome": found})
        self._found[key] = found
        self._of_other_code.discard(key)

    def forget(self, points: Iterable[tuple[Run, int]]) -> None:
        """Remove the outcomes of some points and seeds from the journal and its file."""
        keys = {point.key(seed) for point, seed in points}
        if keys & self._found.keys():
            self._lines.keep_only(lambda entry: entry["point"] not in keys)
        self._found = {key: found for key, found in self._found.items() if key not in keys}

    def __len__(self) -> int:
        return len(self._found)


def run(
    experiments: Sequence[Experiment],
    size: Size,
    directory: Path,
    journal: OutcomeJournal,
    *,
    seeds: Sequence[int] | None = None,
    processes: int = 1,
    console: Console | None = None,
    measure: Measure = outcome,
) -> int:
    """Run the points that are not in the journal; return their number. An interrupt loses only points in progress."""
    wanted = points_of(experiments, size, directory, seeds)
    missing = [(name, point, seed) for (point, seed), name in wanted.items() if journal.get(point, seed) is None]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    unseen = console is not None and not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=unseen) as progress:
        task = progress.add_task("", total=len(wanted), completed=len(wanted) - len(missing))
        if processes > 1:
            for point in dict.fromkeys(point for _, point, _ in missing):
                progress.update(task, description=f"data: {point.data}, {point.rows:,} rows")
                make_data(directory, point)
        tasks = [(name, directory, point, seed, measure) for name, point, seed in missing]
        with closing(_outcomes(tasks, min(processes, len(tasks)))) as outcomes:
            for name, point, seed, found in outcomes:
                journal.record(point, seed, found)
                progress.update(task, advance=1, description=f"{name}: {point.algorithm}, seed {seed}")
    return len(missing)


_Task = tuple[str, Path, Run, int, Measure]


def _outcomes(tasks: Sequence[_Task], processes: int) -> Generator[tuple[str, Run, int, Outcome]]:
    """Run tasks in ``processes`` processes; yield each task's outcome as soon as it is complete."""
    if processes <= 1:
        yield from map(_outcome, tasks)
        return
    seldom = (100_000, 20, 20)  # thresholds: there is little garbage, and collecting it took 8 % of the time
    with ProcessPoolExecutor(processes, get_context("spawn"), _start_process, seldom) as pool:
        try:
            with _without_interrupts():  # this process handles an interrupt and ends the others
                waiting = [pool.submit(_outcome, one) for one in tasks]
            for done in as_completed(waiting):
                yield done.result()
        except BaseException as error:  # Ctrl-C, or a task failed: stop the other tasks
            with _without_interrupts():
                for process in active_children():
                    process.terminate()
                pool.shutdown(cancel_futures=True)  # waits for the pool's thread, which must not run during the exit
            if isinstance(error, BrokenProcessPool):
                raise MillraceError(
                    "run: a worker process was killed; finished points are kept; run the same command again to "
                    "continue, with fewer --processes if memory is short"
                ) from None
            raise


def _start_process(*garbage: int) -> None:
    """Set a worker process's garbage-collection thresholds, and start a thread that ends it when its parent ends."""
    gc.set_threshold(*garbage)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT in processes started within the ``with`` block; this process handles the signal afterwards."""
    with interrupts_wait():  # other threads of this process do not block SIGINT
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _outcome(task: _Task) -> tuple[str, Run, int, Outcome]:
    name, directory, point, seed, measure = task
    return name, point, seed, measure(directory, point, seed)


def fitting(
    experiments: Sequence[Experiment], size: Size, directory: Path, free: int | None = None
) -> tuple[list[Experiment], dict[str, int]]:
    """Return the experiments whose data fits on the disk, and, by name, the bytes that each of the others needs."""
    if free is None:
        there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
        free = shutil.disk_usage(there).free
    left, fits, others = free * _MOST_FILLED, [], {}
    counted: set[tuple[str, int, float | None]] = set()
    for experiment in experiments:
        points = (with_real_data(p, directory) for _, _, p in experiment.points(size) if p.by != "equations")
        sets = {(p.data.removesuffix("-skewed"), p.rows, p.z_R) for p in points if isinstance(p, Point)} - counted
        needed = sum(bytes_to_make(directory, *one) for one in sets)
        if needed > left:
            others[experiment.name] = needed
            continue
        fits.append(experiment)
        counted |= sets
        left -= needed
    return fits, others


def points_of(
    experiments: Iterable[Experiment], size: Size, directory: Path, seeds: Sequence[int] | None = None
) -> dict[tuple[Run, int], str]:
    """Return a mapping from each point and seed to the name of the first of the experiments that has the point."""
    found: dict[tuple[Run, int], str] = {}
    for experiment in experiments:
        for _, _, point in experiment.points(size):
            for seed in SEEDS[size] if seeds is None else seeds:
                found.setdefault((with_real_data(point, directory), seed), experiment.name)
    return found


def with_real_data(point: Run, directory: Path) -> Run:
    """Return the point, with the weather archive's or the user's own files as its data if the directory holds them."""
    name = own_name(real_name(point.data, directory), directory)
    files = own_reports(directory) if name.endswith("-archive") else own_orders(directory, name)
    return replace(point, data=name, files=stamp_of(files))
