"""Compare Millrace's service rate with DuckDB's on the same batches, with checksums and the memory of each process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.core.sizes import format_size
from millrace_bench.benchmarks.join_worker import JoinSetting
from millrace_bench.benchmarks.rounds import checked, middle, side_by_side

SLACK = 48_000_000
"""Bytes beyond its budget that a process may take for input and output batches and for the interpreter."""


def run(
    directory: Path,
    *,
    rows: int = 10_000_000,
    tuples: int = 8_000_000,
    batches: tuple[int, ...] = (100_000, 1_000_000),
    rounds: int = 3,
    memory: str = "1%",
    duckdb: bool = True,
    check: bool = True,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure ``ssbj``, ``meshjoin`` and DuckDB in turn; print the table and return the figures."""
    console = console or Console()
    engines = ["ssbj", "meshjoin"] + (["duckdb"] if duckdb else [])
    settings = [
        JoinSetting(engine, str(directory), rows, tuples, batch_rows, memory=memory)
        for batch_rows in batches
        for engine in engines
    ]
    measured = side_by_side(settings, rounds)
    table = Table(title=f"{rows:,} master rows, {tuples:,} tuples, Zipf 1, memory {memory} ({rounds} rounds, median)")
    for column in ("batch", "engine", "tuples/s", "× DuckDB", "hit rate", "budget", "ledger", "RssAnon grew"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    figures: list[dict[str, Any]] = []
    for setting, runs in zip(settings, measured, strict=True):
        ratios = []
        if duckdb:
            base = measured[settings.index(JoinSetting(**{**vars(setting), "engine": "duckdb"}))]
            ratios = [one.rate / other.rate for one, other in zip(runs, base, strict=True)]
        growth = max(run.memory_growth for run in runs)
        figures.append(
            {
                "engine": setting.engine,
                "batch_rows": setting.batch_rows,
                "rate": middle([run.rate for run in runs]),
                "rates": [run.rate for run in runs],
                "steady_rate": middle([run.steady_rate for run in runs]),
                "ratios_to_duckdb": ratios,
                "rows_out": runs[0].rows_out,
                "hit_rate": runs[0].hit_rate,
                "budget": runs[0].budget,
                "peak_ledger": max(run.peak_ledger for run in runs),
                "memory_growth": growth,
                "memory_kept": not runs[0].budget or growth <= runs[0].budget + SLACK,
            }
        )
        budget = runs[0].budget
        table.add_row(
            f"{setting.batch_rows:,}",
            setting.engine,
            f"{figures[-1]['rate']:,.0f}",
            f"{middle(ratios):.2f}" if ratios else "",
            f"{runs[0].hit_rate:.0%}" if budget else "",
            format_size(budget) if budget else "256 MB",
            format_size(figures[-1]["peak_ledger"]) if budget else "",
            format_size(growth) + ("" if figures[-1]["memory_kept"] else " !"),
        )
    console.print(table)
    outputs = {}
    if check:
        for batch_rows in batches:
            of_size = [s for s in settings if s.batch_rows == batch_rows]
            outputs[str(batch_rows)] = {s.engine: checked(s) for s in of_size}
            same = len(set(outputs[str(batch_rows)].values())) == 1
            verdict = "all give the same rows" if same else "ROWS DIFFER"
            console.print(f"batches of {batch_rows:,}: {verdict}: {outputs[str(batch_rows)]}")
    return {"rows": rows, "tuples": tuples, "memory": memory, "figures": figures, "checksums": outputs}
