"""Measure the time per stream tuple for masters of several sizes and one memory budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from millrace.core.sizes import format_size, parse_size
from millrace_bench.benchmarks.join_worker import JoinSetting
from millrace_bench.benchmarks.rounds import middle, side_by_side


def run(
    directory: Path,
    *,
    sizes: tuple[int, ...] = (1_000_000, 5_000_000, 10_000_000, 50_000_000),
    memory: str = "12MB",
    tuples: int = 4_000_000,
    rounds: int = 1,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure ``ssbj`` and ``meshjoin`` for each master size; print and return the times and their growth exponents."""
    console = console or Console()
    budget = parse_size(memory)
    settings = [
        JoinSetting(engine, str(directory), rows, tuples, 100_000, memory=budget)
        for rows in sizes
        for engine in ("ssbj", "meshjoin")
    ]
    measured = side_by_side(settings, rounds)
    table = Table(title=f"time per tuple under {format_size(budget)}, Zipf 1, batches of 100,000")
    for column in ("master rows", "ssbj", "meshjoin", "ssbj hit rate", "ssbj master rows/tuple", "meshjoin rows/tuple"):
        table.add_column(column, justify="right")
    figures = []
    for i, rows in enumerate(sizes):
        ssbj, mesh = measured[2 * i], measured[2 * i + 1]
        row: dict[str, Any] = {
            "rows": rows,
            "ssbj_us": middle([1e6 / run.steady_rate for run in ssbj]),
            "meshjoin_us": middle([1e6 / run.steady_rate for run in mesh]),
            "ssbj_hit_rate": ssbj[0].hit_rate,
            "ssbj_rows_per_tuple": ssbj[0].cycles * rows / tuples,
            "meshjoin_rows_per_tuple": mesh[0].cycles * rows / tuples,
        }
        figures.append(row)
        table.add_row(
            f"{rows:,}",
            f"{row['ssbj_us']:.2f} µs",
            f"{row['meshjoin_us']:.2f} µs",
            f"{row['ssbj_hit_rate']:.0%}",
            f"{row['ssbj_rows_per_tuple']:.1f}",
            f"{row['meshjoin_rows_per_tuple']:.1f}",
        )
    console.print(table)
    last = figures[-3:]
    slopes = {
        name: float(np.polyfit(np.log([f["rows"] for f in last]), np.log([f[f"{name}_us"] for f in last]), 1)[0])
        for name in ("ssbj", "meshjoin")
    }
    console.print(
        f"over the last {len(last)} sizes time grows as rows^{slopes['ssbj']:.2f} for ssbj, "
        f"rows^{slopes['meshjoin']:.2f} for meshjoin"
    )
    return {"memory": budget, "tuples": tuples, "figures": figures, "exponents": slopes}
