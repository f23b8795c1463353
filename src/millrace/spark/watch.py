"""``watch``: the metrics of a running query, live in the terminal."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.table import Table

from millrace.core.sizes import format_size
from millrace.spark.metrics import PREFIX


def watch(query: StreamingQuery, *, every: float = 1.0, console: Console | None = None) -> None:
    """Show what the joins of a query are doing until it ends or Ctrl-C is pressed, which leaves the query running."""
    console = console or Console()
    try:
        with Live(_table(None), console=console, refresh_per_second=4) as live:
            while query.isActive:
                live.update(_table(query.lastProgress))
                time.sleep(every)
            live.update(_table(query.lastProgress))
    except KeyboardInterrupt:
        console.print("the query goes on; query.stop() ends it")
    error = query.exception()
    if error is not None:
        raise error


def observed(progress: Any) -> dict[str, dict[str, Any]]:
    """The metrics of every join in a query's progress, by name."""
    if progress is None:
        return {}
    found = progress["observedMetrics"] if isinstance(progress, dict) else progress.observedMetrics
    return {
        name: row if isinstance(row, dict) else row.asDict() for name, row in found.items() if name.startswith(PREFIX)
    }


def _table(progress: Any) -> Table:
    joins = observed(progress)
    table = Table(title="millrace", title_justify="left")
    table.add_column(f"batch {progress['batchId']}" if progress else "waiting for the first batch")
    for name in joins:
        table.add_column(name.removeprefix(PREFIX).strip() or name, justify="right")
    if progress:
        seconds = max(0.001, progress["batchDuration"] / 1000)
        for label, show in FACTS.items():
            table.add_row(label, *(show(m, seconds) for m in joins.values()))
    return table


FACTS: dict[str, Any] = {
    "arrived": lambda m, s: f"{m['tuples_in'] or 0:,} tuples",
    "service rate": lambda m, s: f"{(m['tuples_in'] or 0) / s:,.0f} tuples/s",
    "rows out": lambda m, s: f"{m['rows_out'] or 0:,}",
    "answered by the cache": lambda m, s: f"{m['hit_rate'] or 0:.1%}",
    "without a match": lambda m, s: f"{m['unmatched'] or 0:,}",
    "waiting": lambda m, s: f"{m['waiting'] or 0:,} ({format_size(m['waiting_bytes'] or 0)})",
    "waited p50 / p99": lambda m, s: f"{m['wait_p50_cycles'] or 0:.2f} / {m['wait_p99_cycles'] or 0:.2f} turns",
    "a turn takes": lambda m, s: f"{m['cycle_ms'] or 0:,.0f} ms",
    "cache": lambda m, s: f"{m['cached_keys'] or 0:,} keys ({format_size(m['cache_bytes'] or 0)})",
    "memory": lambda m, s: f"{format_size(m['memory_bytes'] or 0)} of {format_size(m['budget_bytes'] or 0)}",
}
