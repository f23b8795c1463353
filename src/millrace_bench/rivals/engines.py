"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable

from millrace_bench.rivals.on_duckdb import DuckDB
from millrace_bench.rivals.on_millrace import Millrace
from millrace_bench.rivals.on_pandas import Pandas
from millrace_bench.rivals.on_polars import Polars
from millrace_bench.rivals.on_sqlite import SQLite
from millrace_bench.rivals.rival import Place, Rival

ENGINES: dict[str, Callable[[Place], Rival]] = {
    "ssbj": lambda place: Millrace(place, "ssbj"),
    "meshjoin": lambda place: Millrace(place, "meshjoin"),
    "lookup": lambda place: Millrace(place, "auto"),
    "duckdb": DuckDB,
    "duckdb-256MB": lambda place: DuckDB(place, "256MB"),
    "polars": Polars,
    "sqlite": SQLite,
    "pandas": Pandas,
    "pandas-merge": lambda place: Pandas(place, merge=True),
}
MILLRACE = ("ssbj", "meshjoin", "lookup", "drain")
"""Those that are Millrace, here and on Spark."""
USUAL = ("ssbj", "lookup", "duckdb", "polars", "sqlite", "pandas")
BUDGETED = ("ssbj", "lookup", "sqlite")
"""Those whose memory can be set to a share of the master."""
