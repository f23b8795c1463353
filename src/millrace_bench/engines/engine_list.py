"""The engines that run without Spark, by name."""

from __future__ import annotations

from collections.abc import Callable

from millrace_bench.engines.batch_engine import BatchEngine, MasterFiles
from millrace_bench.engines.duckdb_engine import DuckDB
from millrace_bench.engines.millrace_engine import Millrace
from millrace_bench.engines.pandas_engine import Pandas
from millrace_bench.engines.polars_engine import Polars
from millrace_bench.engines.sqlite_engine import SQLite

ENGINES: dict[str, Callable[[MasterFiles], BatchEngine]] = {
    "ssbj": lambda files: Millrace(files, "ssbj"),
    "meshjoin": lambda files: Millrace(files, "meshjoin"),
    "lookup": lambda files: Millrace(files, "auto"),
    "duckdb": DuckDB,
    "duckdb-256MB": lambda files: DuckDB(files, "256MB"),
    "polars": Polars,
    "sqlite": SQLite,
    "pandas": Pandas,
    "pandas-merge": lambda files: Pandas(files, merge=True),
}
MILLRACE = ("ssbj", "meshjoin", "lookup", "drain")
"""Names of the engines that use Millrace, whether without Spark or on Spark."""
USUAL = ("ssbj", "lookup", "duckdb", "polars", "sqlite", "pandas")
BUDGETED = ("ssbj", "lookup", "sqlite")
"""Names of the engines that are also measured with several memory budgets, given in percent of the master."""
