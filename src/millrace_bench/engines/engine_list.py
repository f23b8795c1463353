"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable

from millrace_bench.engines.batch_engine import Place, Rival
from millrace_bench.engines.duckdb_engine import DuckDB
from millrace_bench.engines.millrace_engine import Millrace
from millrace_bench.engines.pandas_engine import Pandas
from millrace_bench.engines.polars_engine import Polars
from millrace_bench.engines.sqlite_engine import SQLite

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
