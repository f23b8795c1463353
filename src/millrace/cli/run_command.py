"""``millrace run``: check a pipeline in a TOML file, run it on Spark, show its progress, and stop it on Ctrl-C."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from millrace.cli.display import err, facts_table, out, say_json
from millrace.cli.interrupts import INTERRUPTED, Held, handler_kept
from millrace.core.errors import ConfigError
from millrace.core.sizes import format_size

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.spark.pipeline.pipeline import Pipeline

_LOOK_SECONDS = 2.0


def run(
    file: Annotated[
        Path, typer.Argument(metavar="PIPELINE", help="A TOML file; docs/reference/pipeline-file.md has its keys.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Check the file and print what it would do, without running it.")
    ] = False,
    watch: Annotated[
        bool | None,
        typer.Option("--watch/--no-watch", help="Show the progress of the join; by default, on a terminal only."),
    ] = None,
    available_now: Annotated[
        bool,
        typer.Option("--available-now", help="Process the input available now, then end, whatever [trigger] says."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")] = False,
) -> None:
    """Run a pipeline on Spark: source, master, join and sink from one file. After Ctrl-C, run it again to continue.

    Example: millrace run pipeline.toml --available-now
    """
    try:
        from millrace.spark.pipeline import pipeline as pipelines
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"run: needs Spark, but {error.name} is not installed: pip install 'millrace[spark]'"
        ) from None
    try:
        pipeline = pipelines.Pipeline.load(file, available_now=available_now)
        if check:
            _print_plan(pipeline, as_json)
            return
        shown = err().is_terminal and not as_json if watch is None else watch
        counts, interrupted = _run(pipeline, shown)
    except pipelines.PipelineError as error:
        raise _failed(error.problems) from None
    except pipelines.SPARK_ERRORS as error:
        raise _failed([pipelines.readable(error)]) from None
    if as_json:
        say_json(counts.facts() | {"interrupted": interrupted})
    else:
        out().print(_summary(pipeline, counts))
    if interrupted:
        err().print(Text(_how_to_continue(pipeline), style="yellow"), soft_wrap=True)
        raise typer.Exit(INTERRUPTED)


def _failed(problems: list[str]) -> typer.Exit:
    """Print every problem on a line of its own, and return the exception that ends the command with exit code 1."""
    for problem in problems:
        err().print(Text(f"error: {' '.join(problem.split())}", style="red"), soft_wrap=True)
    return typer.Exit(1)


def _run(pipeline: Pipeline, shown: bool) -> tuple[QueryCounts, bool]:
    """Run a query until it ends or Ctrl-C stops it; return its counts and whether it was interrupted."""
    from millrace.spark.quiet_session import hush
    from millrace.spark.watch import watch

    hush()
    with handler_kept():
        session = pipeline.session(**{"spark.log.level": "OFF"})
    with session as spark:
        query = pipeline.start(spark)
        with _QueryMonitor(query) as monitor:
            try:
                if shown:
                    watch(query, console=err())
                else:
                    query.awaitTermination()
            except Exception:
                if not monitor.interrupted:
                    raise
        return monitor.counts, monitor.interrupted


class _QueryMonitor(threading.Thread):
    """Adds up the progress of a query before Spark discards it, and stops the query on Ctrl-C.

    Ctrl-C must not raise an exception during a call to Spark. It wakes this thread instead, which stops the query.
    """

    def __init__(self, query: StreamingQuery) -> None:
        super().__init__(daemon=True)
        self.counts = QueryCounts()
        self._query = query
        self._wake = threading.Event()
        self._held = Held(self._wake.set)
        self._ended = False

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._held.interrupted

    def run(self) -> None:
        while not self._ended:
            self._wake.wait(_LOOK_SECONDS)
            if self.interrupted:
                self._query.stop()
                return
            self.counts.add(self._query.recentProgress)

    def __enter__(self) -> _QueryMonitor:
        self._held.__enter__()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._wake.set()
        self.join()
        self._held.__exit__()
        self.counts.add(self._query.recentProgress)


@dataclass
class QueryCounts:
    """Counts of a query, added up over its micro-batches."""

    batches: int = 0
    tuples: int = 0
    rows_out: int = 0
    cache_hits: int = 0
    unmatched: int = 0
    waiting: int = 0
    seconds: float = 0.0
    last_batch: int = -1

    def add(self, progress: list[Any]) -> None:
        """Add the micro-batches that are not counted yet."""
        from millrace.spark.watch import observed

        for one in progress:
            if one.batchId <= self.last_batch or "addBatch" not in one.durationMs:
                continue  # it was counted already, or the report is not about a micro-batch
            self.last_batch = one.batchId
            self.batches += 1
            self.seconds += one.batchDuration / 1000
            joins = list(observed(one).values())
            self.tuples += sum(numbers["tuples_in"] or 0 for numbers in joins)
            self.rows_out += sum(numbers["rows_out"] or 0 for numbers in joins)
            self.cache_hits += sum(numbers["cache_hits"] or 0 for numbers in joins)
            self.unmatched += sum(numbers["unmatched"] or 0 for numbers in joins)
            self.waiting = sum(numbers["waiting"] or 0 for numbers in joins)

    @property
    def rate(self) -> float:
        """Number of tuples per second, over the time that the micro-batches took."""
        return self.tuples / self.seconds if self.seconds else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of tuples that the cache answered, from 0 to 1."""
        return self.cache_hits / self.tuples if self.tuples else 0.0

    def facts(self) -> dict[str, Any]:
        """Return the counts by name, for ``--json``."""
        return {
            "batches": self.batches,
            "tuples": self.tuples,
            "rows_out": self.rows_out,
            "unmatched": self.unmatched,
            "waiting": self.waiting,
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate, 1),
            "hit_rate": round(self.hit_rate, 4),
        }


def _summary(pipeline: Pipeline, counts: QueryCounts) -> Any:
    waiting = [("waiting", f"{counts.waiting:,} tuples, kept in the checkpoint")] if counts.waiting else []
    return facts_table(
        pipeline.name,
        [
            ("batches", f"{counts.batches:,}"),
            ("tuples", f"{counts.tuples:,}"),
            ("rows out", f"{counts.rows_out:,}"),
            ("unmatched", f"{counts.unmatched:,}"),
            *waiting,
            ("rate", f"{counts.rate:,.0f} tuples/s"),
            ("hit rate", f"{counts.hit_rate:.1%}"),
        ],
    )


def _how_to_continue(pipeline: Pipeline) -> str:
    if pipeline.checkpoint is None:
        return "stopped; without a checkpoint, running it again starts from the beginning"
    return f"stopped; running it again continues from the checkpoint in {pipeline.checkpoint}"


# description of the plan


def _print_plan(pipeline: Pipeline, as_json: bool) -> None:
    plan = _plan(pipeline)
    if as_json:
        say_json(dict(plan))
    else:
        out().print(facts_table(f"{pipeline.file} is valid", plan))


def _plan(pipeline: Pipeline) -> list[tuple[str, str]]:
    """Return what the pipeline will do: a name and a description for each of its parts."""
    from millrace.spark.pipeline.pipeline import listed

    tables = pipeline.tables
    source, sink = tables["source"], tables["sink"]
    columns = f"columns {source['schema']}" if "schema" in source else "columns of the source"
    by = f", partitioned by {', '.join(listed(sink['partition_by']))}" if "partition_by" in sink else ""
    return [
        ("source", f"{_at(source)}; {columns}"),
        ("master", _master(tables["master"])),
        ("join", _join(tables["join"], tables["master"]["store"])),
        *([("select", ", ".join(listed(tables["select"]["columns"])))] if "select" in tables else []),
        ("sink", f"{_at(sink)}{by}, appended to"),
        ("checkpoint", pipeline.checkpoint or "none; every run starts from the beginning"),
        ("trigger", _trigger(tables.get("trigger", {}))),
    ]


def _at(table: dict[str, Any]) -> str:
    return f"{table['format']} at {table['path']}" if "path" in table else str(table["format"])


def _master(master: dict[str, Any]) -> str:
    from millrace.master.manifest import is_store
    from millrace.master.store import MasterStore
    from millrace.spark.pipeline.pipeline import listed

    path, build = master["store"], master.get("build")
    if build is None or is_store(Path(path)):
        store = MasterStore.open(path)
        return f"{path}: {store.rows:,} rows, {format_size(store.nbytes)}, keyed by {', '.join(store.key)}"
    key = ", ".join(listed(build["key"]))
    return f"{path}: does not exist yet; it will be built from {_at(build)}, keyed by {key}"


def _join(join: dict[str, Any], store: str) -> str:
    from millrace.semistream.arguments import AUTO
    from millrace.spark.pipeline.pipeline import listed

    on = join["on"]
    pairs = on if isinstance(on, dict) else {name: name for name in listed(on)}
    keys = ", ".join(ours if ours == theirs else f"{ours} = {theirs}" for ours, theirs in pairs.items())
    algorithm = join.get("algorithm", AUTO)
    by = _by(store, join.get("pending", "drain")) if algorithm == AUTO else algorithm
    memory = join.get("memory", "256MB")
    size = format_size(memory) if isinstance(memory, int) else memory
    carried = "cache hits are output at once, other tuples may wait for a later micro-batch"
    return (
        f"{join.get('how', 'inner')} join on {keys} by {by}; "
        f"{size}{' of the master' if size.endswith('%') else ''} of memory per executor; "
        f"{carried if join.get('pending') == 'carry' else 'every micro-batch is joined completely before it ends'}"
    )


def _by(path: str, pending: str) -> str:
    """Return the algorithm that ``auto`` chooses for a store and the reason, as text.

    Before the store exists, the text only says that the algorithm will suit the master.
    """
    from millrace.master.manifest import is_store
    from millrace.master.store import MasterStore
    from millrace.semistream.arguments import AUTO
    from millrace.spark.enrichment.auto_algorithm import choose_algorithm

    if not is_store(Path(path)):
        return "the algorithm that suits the master once it is built"
    chosen = choose_algorithm(AUTO, MasterStore.open(path), pending, {})
    return f"{chosen.algorithm} (chosen because {chosen.why})"


def _trigger(trigger: dict[str, Any]) -> str:
    if "processing_time" in trigger:
        return f"a micro-batch every {trigger['processing_time']}, until stopped"
    if "available_now" in trigger:
        return "processes the available input, then ends"
    return "one micro-batch, then ends" if "once" in trigger else "one micro-batch after another, until stopped"
