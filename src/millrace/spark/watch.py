"""``watch``: the metrics of a running query, live in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.table import Table

from millrace.core.sizes import format_size
from millrace.spark.metrics.enrich_metrics import observed_metrics
from millrace.spark.metrics.metric_fields import PREFIX

WAITING = "waiting for input"


def watch(query: StreamingQuery, *, every: float = 1.0, console: Console | None = None) -> None:
    """Show what the joins of a query do until it ends or Ctrl-C is pressed, which leaves the query running."""
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
    """Return the metrics of every join in a query's progress, by name; all None for a join that had nothing to do."""
    if progress is None:
        return {}
    found = progress["observedMetrics"] if isinstance(progress, dict) else progress.observedMetrics
    return {
        name: numbers
        for name, numbers in ((name, observed_metrics(row)) for name, row in found.items())
        if numbers is not None
    }


class Board:
    """The last metrics of every join. A micro-batch in which a join had nothing to do leaves them as they are."""

    def __init__(self) -> None:
        self._joins: dict[str, dict[str, Any]] = {}
        self._at_work: set[str] = set()
        self._head = "waiting for the first batch"

    def note(self, recent: list[Any]) -> None:
        """Take in a query's recent progress, the latest last; some of it may have been taken in before."""
        for progress in recent:
            joins = observed(progress)
            self._at_work = {name for name, row in joins.items() if row["tuples_in"] is not None}
            self._head = f"batch {progress['batchId']}" if self._at_work else WAITING
            for name, row in joins.items():
                known = {number: value for number, value in row.items() if value is not None}
                if known:
                    known |= {"batch": progress["batchId"], "seconds": max(0.001, progress["batchDuration"] / 1000)}
                self._joins[name] = self._joins.get(name, {}) | known

    def table(self, *, ended: bool = False) -> Table:
        """Return a table with a column for every join."""
        table = Table(title="millrace", title_justify="left")
        table.add_column("ended" if ended else self._head)
        for name in self._joins:
            table.add_column(name.removeprefix(f"{PREFIX} "), justify="right")
        if self._joins:
            table.add_row("last at work", *(self._last(name, ended) for name in self._joins))
            for label, show in FACTS.items():
                table.add_row(label, *(show(numbers) if numbers else "–" for numbers in self._joins.values()))
        return table

    def _last(self, name: str, ended: bool) -> str:
        """Return the micro-batch that a join's metrics are of, and whether it waits for input."""
        numbers = self._joins[name]
        batch = [f"batch {numbers['batch']}"] if numbers else []
        waits = [WAITING] if not ended and name not in self._at_work else []
        return ", ".join(batch + waits) or "never"


def _hit_rate(m: Mapping[str, Any]) -> str:
    """Return the share of tuples that the cache answered, which is unknown until a tuple has come."""
    return f"{m['hit_rate']:.1%}" if "hit_rate" in m else "–"


FACTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "algorithm": lambda m: str(m["algorithm"]),
    "arrived": lambda m: f"{m['tuples_in']:,} tuples",
    "service rate": lambda m: f"{m['tuples_in'] / m['seconds']:,.0f} tuples/s",
    "rows out": lambda m: f"{m['rows_out']:,}",
    "answered by the cache": _hit_rate,
    "without a match": lambda m: f"{m['unmatched']:,}",
    "waiting": lambda m: f"{m['waiting']:,} ({format_size(m['waiting_bytes'])})",
    "waited p50 / p99": lambda m: f"{m['wait_p50_cycles']:.2f} / {m['wait_p99_cycles']:.2f} turns",
    "a turn takes": lambda m: f"{m['cycle_ms']:,.0f} ms",
    "cache": lambda m: f"{m['cached_keys']:,} keys ({format_size(m['cache_bytes'])})",
    "memory": lambda m: f"{format_size(m['memory_bytes'])} of {format_size(m['budget_bytes'])}",
}
"""The lines of the table, each with the text that it shows of a join's metrics."""
