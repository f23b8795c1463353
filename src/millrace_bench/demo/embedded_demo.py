"""Run two joins on the same generated stream, check every row, and compare them: ``millrace embedded-demo``."""

from __future__ import annotations

import ctypes
import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from millrace.cli.display import out
from millrace.core.errors import ConfigError, MillraceError
from millrace.core.sizes import format_size

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.cli.files import StreamFiles
    from millrace.core.metrics import JoinMetrics
    from millrace.master.store import MasterStore

COMPARED = ("meshjoin", "ssbj")
COLUMNS = ("a1", "x1", "label")
"""Master columns in the output: a few, as is usual when a stream is enriched."""

_BATCH_ROWS = 16_384
"""Rows of input and output batches, which take memory outside the budget and are therefore small."""


class WrongResultError(MillraceError):
    """The output of a join differs from that of pyarrow's own join."""


@dataclass(frozen=True)
class JoinOutcome:
    """The figures of one join, and the file that holds its output."""

    algorithm: str
    metrics: JoinMetrics
    service_rate: float
    grown: int | None
    """Peak growth of the process's anonymous memory in bytes; None where the system does not report this memory."""
    result: Path


def embedded_demo(
    rows: Annotated[int, typer.Option(help="Rows of the master.")] = 2_000_000,
    tuples: Annotated[int, typer.Option(help="Tuples of the stream.")] = 3_000_000,
    skew: Annotated[float, typer.Option(help="The stream's Zipf exponent: 0 is uniform.")] = 1.0,
    memory: Annotated[str, typer.Option(help="The budget of a join: 4MB, or 1% of the master.")] = "1%",
    directory: Annotated[
        Path | None,
        typer.Option(help="Folder for the data, which a later demo uses again; by default a temporary one."),
    ] = None,
) -> None:
    """Watch two joins work without Spark on generated data, see that they are exact, and compare them.

    A master is generated and built into a store. Then meshjoin and ssbj each join the same skewed stream
    with it inside the same small budget. Every row of both results is compared with the result of pyarrow's own join.
    """
    if rows < 1 or tuples < 1:
        raise ConfigError(f"rows, tuples: expected at least 1 of each; got {rows} and {tuples}")
    with _workplace(directory) as place:
        store, stream = _prepare(place, rows, tuples, skew)
        _say(f"[bold]The master:[/bold] {store.rows:,} rows, {format_size(store.nbytes)} in {place}")
        _say(f"[bold]The stream:[/bold] {tuples:,} tuples whose keys follow a Zipf law with exponent {skew:g}")
        _load_kernels()
        with tempfile.TemporaryDirectory(dir=place, prefix=".results-") as results:
            outcomes = [_run(name, store, stream, memory, Path(results)) for name in COMPARED]
            _check(outcomes, rows, stream)
        _compare(outcomes)
        _summarize(outcomes, store, directory, stream.path)


def _say(text: str = "") -> None:
    out().print(text, highlight=False)


@contextmanager
def _workplace(directory: Path | None) -> Iterator[Path]:
    """Yield the given directory, created if it is missing, or a temporary one that is removed afterwards."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
        return
    place = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _prepare(place: Path, rows: int, tuples: int, skew: float) -> tuple[MasterStore, StreamFiles]:
    """Return the master store and the stream, each made if it is missing; file names contain the sizes and the skew."""
    from millrace.cli.files import StreamFiles, TableWriter
    from millrace.cli.generate_command import zipf_rows
    from millrace.cli.progress import row_progress
    from millrace.datasets import STREAM_SCHEMA, synthetic_master
    from millrace.master.store import MasterStore

    store_path = place / f"master-{rows}.store"
    if not store_path.exists():
        with row_progress("building the master", rows) as done:
            MasterStore.build(synthetic_master(rows), store_path, key="key", progress=done)
    stream_path = place / f"stream-{tuples}-of-{rows}-skew{skew:g}.arrow"
    if not stream_path.exists():
        with (
            TableWriter(stream_path, STREAM_SCHEMA) as writer,
            row_progress("making the stream", tuples) as done,
        ):
            for batch in zipf_rows(tuples, rows, skew):
                writer.write(batch)
                done(writer.rows)
    return MasterStore.open(store_path), StreamFiles(stream_path)


def _load_kernels() -> None:
    """Compile and load the kernels beforehand, so that this work adds neither time nor memory to a measured join."""
    from millrace.cli.generate_command import zipf_rows
    from millrace.cli.progress import spinner
    from millrace.datasets import synthetic_master
    from millrace.master.store import MasterStore
    from millrace.semistream.join import SemiStreamJoin

    with (
        spinner("loading kernels (the first time, they are compiled)"),
        tempfile.TemporaryDirectory(prefix="millrace-warm-") as place,
    ):
        store = MasterStore.build(synthetic_master(5_000), Path(place, "store"), key="key")
        for name in COMPARED:
            warm = SemiStreamJoin(store, on="key", algorithm=name, memory="60kB", columns=COLUMNS)
            for _ in warm.run(zipf_rows(200_000, 5_000, 1.0)):
                pass


def _run(name: str, store: MasterStore, stream: StreamFiles, memory: str, results: Path) -> JoinOutcome:
    """Run a join and write its output to a file for the check."""
    from millrace.cli.files import TableWriter
    from millrace.cli.progress import WatchedJoin
    from millrace.semistream.join import SemiStreamJoin

    _give_back_memory()
    before = most = anonymous_bytes()
    join = SemiStreamJoin(store, on="key", algorithm=name, memory=memory, columns=COLUMNS, output_rows=_BATCH_ROWS)
    watched = WatchedJoin(join, stream.rows)
    with TableWriter(results / f"{name}.arrow", join.bind(stream.schema)) as writer:
        for batch in watched.run(stream.batches(_BATCH_ROWS)):
            writer.write(batch)
            most = max(most, anonymous_bytes())
    _say(f"[green]done[/green] {name}: {watched.service_rate:,.0f} tuples/s")
    return JoinOutcome(name, join.metrics, watched.service_rate, most - before if before else None, writer.path)


def _give_back_memory() -> None:
    """Make the allocators return free memory to the system, so that all joins start under the same conditions."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):  # not every C library has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def anonymous_bytes() -> int:
    """Return the bytes of this process's memory that are not backed by a file; 0 if the system does not report them."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


# the check


def _check(outcomes: Iterable[JoinOutcome], rows: int, stream: StreamFiles) -> None:
    """Compare every row of every result with the result of pyarrow's own join."""
    import pyarrow as pa

    from millrace.cli.progress import row_progress
    from millrace.datasets import synthetic_master

    began = time.perf_counter()
    reader = synthetic_master(rows)
    wanted = pa.schema([reader.schema.field(name) for name in ("key", *COLUMNS)])
    master = pa.Table.from_batches((batch.select(wanted.names) for batch in reader), wanted).combine_chunks()
    tuples = pa.Table.from_batches(stream.batches(_BATCH_ROWS)).combine_chunks()
    oracle = Oracle(tuples, master)
    for outcome in outcomes:
        with row_progress(f"checking {outcome.algorithm}", oracle.rows) as done:
            oracle.check(outcome.algorithm, pa.ipc.open_file(pa.memory_map(str(outcome.result))), done)
    _say(
        f"[green]exact[/green]: all {oracle.rows:,} rows of both results, in every column, are those of a join "
        f"by pyarrow (checked in {time.perf_counter() - began:.1f} s)"
    )


class Oracle:
    """The correct result of a join with a master of unique keys, computed by pyarrow's own join.

    With unique keys a tuple has at most one master row. A tuple's number ``sid`` occurs once in the stream. So two
    results hold the same rows if every ``sid`` occurs as often in both and rows with the same ``sid`` are equal.
    """

    def __init__(self, stream: pa.Table, master: pa.Table) -> None:
        import numpy as np
        import pyarrow as pa

        self._stream, self._master = stream, master
        at = pa.table({"key": master["key"], "row": np.arange(len(master))})
        place = pa.table({"key": stream["key"], "place": np.arange(len(stream))})
        pairs = place.join(at, "key", join_type="inner")
        self.rows = len(pairs)
        self._row_of = np.full(len(stream), -1, np.int64)
        self._row_of[pairs["place"].to_numpy()] = pairs["row"].to_numpy()
        if self.rows != int((self._row_of >= 0).sum()):
            raise WrongResultError("embedded-demo: the check needs a master with unique keys; some keys repeat")

    def check(self, name: str, result: pa.RecordBatchFileReader, done: Callable[[int], None]) -> None:
        """Raise WrongResultError unless ``result`` is correct; call ``done`` with the number of rows checked so far."""
        import numpy as np
        import pyarrow as pa

        times = np.zeros(len(self._row_of), np.int64)
        seen = 0
        for number in range(result.num_record_batches):
            batch = result.get_batch(number)
            sid = batch.column("sid").to_numpy()
            if len(sid) and (sid.min() < 0 or sid.max() >= len(times) or (self._row_of[sid] < 0).any()):
                raise WrongResultError(f"{name}: the output has a row that is not in pyarrow's result of the same join")
            np.add.at(times, sid, 1)
            stream = self._stream.take(pa.array(sid))
            master = self._master.take(pa.array(self._row_of[sid]))
            for column in batch.schema.names:
                expected = (stream if column in stream.column_names else master)[column]
                if not pa.chunked_array([batch.column(column)]).equals(expected):
                    raise WrongResultError(f"{name}: column {column!r} differs from pyarrow's result of the same join")
            seen += len(batch)
            done(seen)
        wrong = np.flatnonzero(times != (self._row_of >= 0))
        if len(wrong):
            sid = wrong[0]
            raise WrongResultError(
                f"{name}: {len(wrong):,} tuples are in the output the wrong number of times; the first, sid {sid}, "
                f"is there {times[sid]} times; expected {int(self._row_of[sid] >= 0)}"
            )


# the story


def _compare(outcomes: list[JoinOutcome]) -> None:
    table = Table(title="The same stream, the same budget", title_justify="left")
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.algorithm, justify="right")
    for name, fact in _FACTS.items():
        table.add_row(name, *map(fact, outcomes))
    _say()
    out().print(table)


_FACTS: dict[str, Callable[[JoinOutcome], str]] = {
    "service rate": lambda o: f"{o.service_rate:,.0f} tuples/s",
    "answered by the cache": lambda o: f"{o.metrics.hit_rate:.1%}",
    "cycles over the master": lambda o: f"{o.metrics.cycles:.1f}",
    "read from disk": lambda o: format_size(o.metrics.bytes_read),
    "wait p50 / p99, in steps": lambda o: (
        f"{o.metrics.waits.quantile(0.5):,} / {o.metrics.waits.quantile(0.99):,} of {o.metrics.steps_per_cycle:,}"
    ),
    "peak memory": lambda o: format_size(o.metrics.peak_bytes),
    "… of its budget": lambda o: f"{o.metrics.peak_bytes / o.metrics.budget_bytes:.1%}",
    "process grew by (RssAnon)": lambda o: "not known" if o.grown is None else format_size(o.grown),
}


def _summarize(outcomes: list[JoinOutcome], store: MasterStore, directory: Path | None, stream: Path) -> None:
    mesh, ssbj = (outcome.metrics for outcome in outcomes)
    budget = mesh.budget_bytes
    _say("\n[bold]What you saw[/bold]")
    _say(
        f"The master of {format_size(store.nbytes)} stayed on disk: each join had {format_size(budget)} "
        f"({budget / store.nbytes:.1%} of it) and kept to that. The process grew by more: batches in flight and "
        "working arrays are outside the budget. That part follows the batch size, not the stream's length."
    )
    _say(
        f"meshjoin let every tuple wait for its row to come round, and took {mesh.cycles:.1f} turns of the "
        f"wheel. ssbj ended with {ssbj.cached_keys:,} keys in its cache ({ssbj.cached_keys / store.rows:.2%} of "
        "the master), those whose rows take less memory than the tuples that would wait for them. The cache "
        f"answered {ssbj.hit_rate:.0%} of the stream at once, and {ssbj.cycles:.1f} turns did for the rest."
    )
    _say("\n[bold]Where to go next[/bold]")
    if directory is None:
        steps = {
            "millrace embedded-demo --directory demo-data": "keep the data to try things on",
            "millrace embedded-demo --skew 0": "no popular keys: nothing to cache",
            "millrace embedded-demo --memory 5%": "a larger budget",
            "millrace --help": "the same with your own data",
        }
    else:
        steps = {
            f"millrace master info {store.path}": "",
            f"millrace join {stream} {store.path} --no-output --on key --memory 5% --explain": "",
            "millrace --help": "",
        }
    for command, why in steps.items():
        line = Text(f"  {command:<46}", style="cyan").append(why, style="default")
        out().print(line, soft_wrap=True)
