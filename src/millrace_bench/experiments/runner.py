"""Runs points of experiments, some at a time, and keeps what is finished: a run can be stopped and gone on with.

Every outcome is one line of a JSON-lines file, written at once. Points that several figures share are run once. An
outcome depends on its point and seed alone, and on the machine where that is measured. So points run in processes
beside each other, once their data is there.
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
from millrace_bench.experiments.outcomes import Outcome, made, outcome
from millrace_bench.experiments.sets import bytes_to_make, own_reports, real_name, stamp_of
from millrace_bench.shared.json_lines import Lines

_NOT_MEASURED = ("__main__.py", "cli", "spark", "testing", "worker")  # outcomes do not depend on it, nearly
_FILLED = 0.9  # of what is free on the disk, inputs may take so much

Measure = Callable[[Path, Any, int], Outcome]


def code_digest() -> str:
    """By which the code of the joins is known, so that outcomes of another one can be told."""
    root = Path(millrace.__file__).parent
    files = sorted(path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in _NOT_MEASURED)
    return blake2s(b"".join(path.read_bytes() for path in files), digest_size=6).hexdigest()


class Journal:
    """Outcomes that have been kept, by point and seed; those of another version of Millrace are not looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = Lines(path, "an outcome of `millrace bench run`")
        self._found: dict[str, Outcome] = {}
        self._of_other_code: set[str] = set()
        self._version, self._code = version("millrace"), code_digest()
        self._lines.read(self._take)

    def _take(self, entry: Any) -> None:
        if entry["version"] == self._version:
            key, outcome = entry["point"], entry["outcome"]
            if not all(math.isfinite(value) for value in outcome.values()):
                raise ValueError("not an outcome")
            self._found[key] = outcome
            (self._of_other_code.discard if entry.get("code") == self._code else self._of_other_code.add)(key)

    def get(self, point: Run, seed: int) -> Outcome | None:
        return self._found.get(point.key(seed))

    def of_other_code(self, points: Iterable[tuple[Run, int]]) -> int:
        """How many of these were found by code that is not the one that is running."""
        return sum(point.key(seed) in self._of_other_code for point, seed in points)

    def keep(self, point: Run, seed: int, found: Outcome) -> None:
        """Write an outcome down; it is there whatever happens next."""
        key = point.key(seed)
        self._lines.append({"version": self._version, "point": key, "code": self._code, "outcome": found})
        self._found[key] = found
        self._of_other_code.discard(key)

    def forget(self, points: Iterable[tuple[Run, int]]) -> None:
        """Outcomes of these points are no longer there; those of others are."""
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
    journal: Journal,
    *,
    seeds: Sequence[int] | None = None,
    processes: int = 1,
    console: Console | None = None,
    measure: Measure = outcome,
) -> int:
    """Run what is not in the journal yet; how many points that were. Stopping it loses the points being run."""
    wanted = points_of(experiments, size, directory, seeds)
    missing = [(name, point, seed) for (point, seed), name in wanted.items() if journal.get(point, seed) is None]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    unseen = console is not None and not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=unseen) as progress:
        task = progress.add_task("", total=len(wanted), completed=len(wanted) - len(missing))
        if processes > 1:
            for point in dict.fromkeys(point for _, point, _ in missing):
                progress.update(task, description=f"data: {point.data}, {point.rows:,} rows")
                made(directory, point)
        asked = [(name, directory, point, seed, measure) for name, point, seed in missing]
        with closing(_outcomes(asked, min(processes, len(asked)))) as outcomes:
            for name, point, seed, found in outcomes:
                journal.keep(point, seed, found)
                progress.update(task, advance=1, description=f"{name}: {point.algorithm}, seed {seed}")
    return len(missing)


_Asked = tuple[str, Path, Run, int, Measure]


def _outcomes(asked: Sequence[_Asked], processes: int) -> Generator[tuple[str, Run, int, Outcome]]:
    """The outcomes as they come about."""
    if processes <= 1:
        yield from map(_outcome, asked)
        return
    seldom = (100_000, 20, 20)  # there is little garbage; looking for it took 8 % of the time
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, seldom) as pool:
        try:
            with _unheard():  # an interrupt is for this process, which ends the others
                waiting = [pool.submit(_outcome, one) for one in asked]
            for done in as_completed(waiting):
                yield done.result()
        except BaseException as error:  # stopped, or one failed: nobody wants the rest
            with _unheard():
                pool.shutdown(wait=False, cancel_futures=True)
                for process in active_children():
                    process.terminate()
                pool.shutdown()
            if isinstance(error, BrokenProcessPool):
                raise MillraceError("run: a process that ran a point was killed; what was found is kept") from None
            raise


def _begin(*garbage: int) -> None:
    """A process of the pool ends with the one that wants its points, however that ends."""
    gc.set_threshold(*garbage)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _unheard() -> Iterator[None]:
    """Block SIGINT for processes that are started in this block; this process handles it afterwards."""
    with interrupts_wait():  # other threads of this process do not block it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _outcome(asked: _Asked) -> tuple[str, Run, int, Outcome]:
    name, directory, point, seed, measure = asked
    return name, point, seed, measure(directory, point, seed)


def fitting(
    experiments: Sequence[Experiment], size: Size, directory: Path, free: int | None = None
) -> tuple[list[Experiment], dict[str, int]]:
    """The experiments whose data fits on the disk beside that of those before, and what the others would take."""
    if free is None:
        there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
        free = shutil.disk_usage(there).free
    left, fits, others = free * _FILLED, [], {}
    made: set[tuple[str, int, float | None]] = set()
    for experiment in experiments:
        points = (on_disk(p, directory) for _, _, p in experiment.points(size) if p.by != "equations")
        sets = {(p.data.removesuffix("-skewed"), p.rows, p.z_R) for p in points if isinstance(p, Point)} - made
        needed = sum(bytes_to_make(directory, *one) for one in sets)
        if needed > left:
            others[experiment.name] = needed
            continue
        fits.append(experiment)
        made |= sets
        left -= needed
    return fits, others


def points_of(
    experiments: Iterable[Experiment], size: Size, directory: Path, seeds: Sequence[int] | None = None
) -> dict[tuple[Run, int], str]:
    """All points with all seeds, each with the first experiment that wants it; those of one data set lie together."""
    found: dict[tuple[Run, int], str] = {}
    for experiment in experiments:
        for _, _, point in experiment.points(size):
            for seed in SEEDS[size] if seeds is None else seeds:
                found.setdefault((on_disk(point, directory), seed), experiment.name)
    return found


def on_disk(point: Run, directory: Path) -> Run:
    """The point with the data that there is: the archive's own weather, or own stock orders, if the files are there."""
    name = own_name(real_name(point.data, directory), directory)
    files = own_reports(directory) if name.endswith("-archive") else own_orders(directory, name)
    return replace(point, data=name, files=stamp_of(files))
