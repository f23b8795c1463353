"""``watch``: the metrics of a running query, live in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.table import Table

from millrace.core.sizes import format_size
from millrace.spark.metrics.enrich_metrics import ALGORITHM, HIT_RATE, EnrichMetrics, observed_metrics
from millrace.spark.metrics.metric_fields import PREFIX

WAITING = "waiting for input"


def watch(query: StreamingQuery, *, every: float = 1.0, console: Console | None = None) -> None:
    """Show the metrics of a query's joins, updated every ``every`` seconds, until the query ends.

    Ctrl-C ends the display and leaves the query running. An error that ended the query is raised.
    """
    console = console or Console()
    board = Board()
    try:
        with Live(board.table(), console=console, refresh_per_second=4) as live:
            while query.isActive:
                board.note(query.recentProgress)
                live.update(board.table())
                time.sleep(every)
            board.note(query.recentProgress)
            live.update(board.table(ended=True))
    except KeyboardInterrupt:
        console.print("the query goes on; query.stop() ends it")
    error = query.exception()
    if error is not None:
        raise error


def observed(progress: Any) -> dict[str, dict[str, Any]]:
    """Return the metrics of each join in a query's progress, by name. All are None if the join did not run."""
    if progress is None:
        return {}
    found = progress["observedMetrics"] if isinstance(progress, dict) else progress.observedMetrics
    return {
        name: numbers
        for name, numbers in ((name, observed_metrics(row)) for name, row in found.items())
        if numbers is not None
    }


@dataclass(frozen=True)
class JoinStatus:
    """The metrics of a join in the last micro-batch in which it ran."""

    metrics: EnrichMetrics
    hit_rate: float | None
    """The share of tuples that the cache answered, from 0 to 1; None until a tuple has come."""
    algorithm: str
    batch: int
    """Number of the micro-batch."""
    seconds: float
    """Duration of the micro-batch, in seconds."""

    @staticmethod
    def of(row: Mapping[str, Any], progress: Any, before: JoinStatus | None) -> JoinStatus:
        """Return the status after a micro-batch; if no tuples came in it, keep the hit rate of ``before``."""
        hit_rate = row[HIT_RATE]
        if hit_rate is None and before is not None:
            hit_rate = before.hit_rate
        seconds = max(0.001, progress["batchDuration"] / 1000)
        return JoinStatus(EnrichMetrics.of(row), hit_rate, str(row[ALGORITHM]), progress["batchId"], seconds)


class Board:
    """The latest metrics of every join of a query, from the last micro-batch in which that join ran."""

    def __init__(self) -> None:
        self._joins: dict[str, JoinStatus | None] = {}
        self._at_work: set[str] = set()
        self._head = "waiting for the first batch"

    def note(self, recent: list[Any]) -> None:
        """Update the metrics from a query's recent progress reports, oldest first; repeated reports change nothing."""
        for progress in recent:
            joins = observed(progress)
            self._at_work = {name for name, row in joins.items() if row["tuples_in"] is not None}
            self._head = f"batch {progress['batchId']}" if self._at_work else WAITING
            for name, row in joins.items():
                before = self._joins.setdefault(name, None)
                if row["tuples_in"] is not None:
                    self._joins[name] = JoinStatus.of(row, progress, before)

    def table(self, *, ended: bool = False) -> Table:
        """Return the table to show, with a column for every join."""
        table = Table(title="millrace", title_justify="left")
        table.add_column("ended" if ended else self._head)
        for name in self._joins:
            table.add_column(name.removeprefix(f"{PREFIX} "), justify="right")
        if self._joins:
            table.add_row("last at work", *(self._last(name, ended) for name in self._joins))
            for label, show in FACTS.items():
                table.add_row(label, *("–" if status is None else show(status) for status in self._joins.values()))
        return table

    def _last(self, name: str, ended: bool) -> str:
        """Return a text that says which micro-batch a join's metrics are from, and whether the join waits for input."""
        status = self._joins[name]
        batch = [] if status is None else [f"batch {status.batch}"]
        waits = [WAITING] if not ended and name not in self._at_work else []
        return ", ".join(batch + waits) or "never"


FACTS: dict[str, Callable[[JoinStatus], str]] = {
    "algorithm": lambda status: status.algorithm,
    "arrived": lambda status: f"{status.metrics.tuples_in:,} tuples",
    "service rate": lambda status: f"{status.metrics.tuples_in / status.seconds:,.0f} tuples/s",
    "rows out": lambda status: f"{status.metrics.rows_out:,}",
    "answered by the cache": lambda status: "–" if status.hit_rate is None else f"{status.hit_rate:.1%}",
    "without a match": lambda status: f"{status.metrics.unmatched:,}",
    "waiting": lambda status: f"{status.metrics.waiting:,} ({format_size(status.metrics.waiting_bytes)})",
    "waited p50 / p99": lambda status: (
        f"{status.metrics.wait_p50_cycles:.2f} / {status.metrics.wait_p99_cycles:.2f} turns"
    ),
    "a turn takes": lambda status: f"{status.metrics.cycle_ms:,.0f} ms",
    "cache": lambda status: f"{status.metrics.cached_keys:,} keys ({format_size(status.metrics.cache_bytes)})",
    "memory": lambda status: (
        f"{format_size(status.metrics.memory_bytes)} of {format_size(status.metrics.budget_bytes)}"
    ),
}
"""The rows of the table: a mapping from each row's label to the function that returns the row's text for a join."""
