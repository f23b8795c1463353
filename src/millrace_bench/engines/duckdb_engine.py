"""An engine that joins each batch with a table of the master in DuckDB's own format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace_bench.engines.batch_engine import BatchEngine, MasterFiles, made_once

_QUERY = "SELECT batch.*, master.* EXCLUDE (key) FROM batch JOIN master USING (key)"


class DuckDB(BatchEngine):
    """An engine that joins with DuckDB and returns Arrow tables; ``limit`` is DuckDB's memory limit, if one is set."""

    def __init__(self, files: MasterFiles, limit: str | None = None) -> None:
        super().__init__(files)
        self._limit = limit

    def prepare(self) -> Sequence[Path]:
        return [made_once(self.files.file("duck.db"), self._make)]

    def _make(self, path: Path) -> None:
        import duckdb

        with duckdb.connect(str(path)) as database:
            database.register("rows", self.files.store().to_table())
            database.sql("CREATE TABLE master AS SELECT * FROM rows")

    def load(self) -> None:
        import duckdb

        duckdb.connect().sql("SELECT 1").to_arrow_table()

    def open(self) -> None:
        import duckdb

        self._connection = duckdb.connect(str(self.files.file("duck.db")), read_only=True)
        options = {"threads": "2", "preserve_insertion_order": "false"}
        if self._limit:
            options["memory_limit"] = f"'{self._limit}'"
        for option, value in options.items():
            self._connection.execute(f"SET {option} = {value}").fetchall()
        self.settings = {
            "master": "native table",
            "threads": "2",
            "memory limit": self._limit or "its own: 80 % of the machine's",
            "insertion order": "not kept",
            "results": "Arrow",
            "version": duckdb.__version__,
        }

    def join(self, batch: pa.RecordBatch) -> Iterable[Any]:
        self._connection.register("batch", pa.Table.from_batches([batch]))
        return [self._connection.sql(_QUERY).to_arrow_table()]
