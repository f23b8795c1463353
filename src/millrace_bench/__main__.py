"""Run benchmarks: ``python -m millrace_bench NAME … [--directory DIR] [--results FILE] [--small]``.

``python -m millrace_bench rivals`` has options of its own; ``python -m millrace_bench docs`` writes the tables of
the documentation from committed results.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.semistream.choose.unit_cost_file import processor
from millrace_bench import make_docs
from millrace_bench.benchmarks import adaptive_joins, claims, cost, disk, drift, family, grid, machine, peers, scaling
from millrace_bench.benchmarks import spark_enrich as spark
from millrace_bench.benchmarks import spark_streams as streams
from millrace_bench.rivals import rivals_command

_SMALL: dict[str, dict[str, Any]] = {
    "peers": {"rows": 200_000, "tuples": 400_000, "batches": (100_000,), "rounds": 1},
    "memory": {"rows": 200_000, "tuples": 400_000, "batches": (100_000,), "rounds": 1},
    "scaling": {"sizes": (100_000, 200_000), "tuples": 200_000, "rounds": 1, "memory": "2MB"},
    "disk": {"rows": 50_000, "shares": (2, 10), "warm_up": 6, "turns": 3},
    "family": {"rows": 50_000, "shares": (5,), "skews": (1.0,), "seconds": 0.1, "warm_seconds": 0.2, "tuples": 200_000},
    "drift": {"rows": 20_000, "period": 100_000, "moves": 1, "window": 10_000},
    "claims": {"scale": 0.01, "seeds": (11,)},
    "cost": {"rows": 50_000, "shares": (2, 5, 10), "skews": (1.0,), "algorithms": ("meshjoin", "hybridjoin")},
    "machine": {"rows": 50_000, "shares": (5,), "algorithms": ("meshjoin", "ssbj"), "rounds": 2},
    "grid": {
        "rows": 20_000,
        "skews": (1.0,),
        "shares": (10,),
        "machine_rows": 20_000,
        "machine_shares": (10,),
        "seconds": 0.05,
    },
    "adaptive": {"rows": 40_000, "large_rows": 100_000, "duckdb": False, "rounds": 1},
    "spark": {"sizes": (200_000,), "batches": (50_000,), "rounds": 1, "count": 2, "memory": "8MB", "warm_seconds": 1.0},
    "streams": {"batches": 3, "rows": 5_000, "heap": "1g", "memory": "4MB", "sample_every": 1},
}
_FULL: dict[str, dict[str, Any]] = {
    "memory": {"rows": 50_000_000, "tuples": 8_000_000, "batches": (100_000,), "rounds": 1},
}


_RUNS: dict[str, Callable[..., dict[str, Any]]] = {
    "scaling": scaling.run,
    "disk": disk.run,
    "family": family.run,
    "drift": drift.run,
    "claims": claims.run,
    "cost": cost.run,
    "machine": machine.run,
    "grid": grid.run,
    "adaptive": adaptive_joins.run,
    "spark": spark.run,
    "streams": streams.run,
}


def main() -> None:
    """Run the benchmarks that the command line names."""
    if sys.argv[1:2] == ["rivals"]:
        rivals_command.main(sys.argv[2:])
        return
    if sys.argv[1:2] == ["docs"]:
        print(*make_docs.write(Path(*sys.argv[2:3] or ["docs"])), "written")
        return
    parser = argparse.ArgumentParser(prog="python -m millrace_bench", description="Measure the engine.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(_SMALL)}; all by default; or rivals")
    parser.add_argument("--directory", type=Path, default=Path("bench-data"), help="folder of inputs, reused later")
    parser.add_argument("--results", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes, figures mean nothing")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in _SMALL:
            parser.error(f"unknown name {name!r}; expected one of {', '.join(_SMALL)}")
    here = {"cpu": processor(), "python": platform.python_version()}
    figures: dict[str, Any] = {"host": here}
    for name in arguments.names or list(_SMALL):
        options = _SMALL[name] if arguments.small else _FULL.get(name, {})
        if name in ("peers", "memory"):
            figures[name] = peers.run(arguments.directory, duckdb=name == "peers", check=name == "peers", **options)
        else:
            figures[name] = _RUNS[name](arguments.directory, **options)
    if arguments.results:
        arguments.results.parent.mkdir(parents=True, exist_ok=True)
        arguments.results.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
