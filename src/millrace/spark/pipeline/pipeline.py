"""Pipelines: whole queries described in a TOML file, with source, master, join and sink.

``pipeline_keys`` defines what a file may contain, ``pipeline_check`` checks a file, and this module starts the
query. ``millrace run`` is the usual way to start one; ``spark-submit`` can run this module too.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.core.errors import MillraceError
from millrace.master.manifest import is_store
from millrace.master.store import MasterStore
from millrace.spark.build_master import build_master
from millrace.spark.enrich import enrich
from millrace.spark.error_messages import SPARK_ERRORS, readable
from millrace.spark.pipeline.pipeline_check import PipelineError, checked
from millrace.spark.pipeline.pipeline_keys import WITH_COLUMNS, label, listed
from millrace.spark.pipeline.toml_lines import Name, TomlLines
from millrace.spark.session import session

__all__ = ["SPARK_ERRORS", "Pipeline", "PipelineError", "TomlLines", "listed", "readable"]


@dataclass(frozen=True)
class Pipeline:
    """A query described in a TOML file; ``tables`` are the file's tables, with paths made absolute.

    Examples
    --------
    >>> Pipeline.load("/nowhere/p.toml")
    Traceback (most recent call last):
    millrace.spark.pipeline.pipeline_check.PipelineError: /nowhere/p.toml: could not be read: No such file or directory
    """

    file: Path
    tables: Mapping[str, Any]
    lines: TomlLines

    @staticmethod
    def load(path: str | os.PathLike[str], *, available_now: bool = False) -> Pipeline:
        """Read and check a file.

        Parameters
        ----------
        path
            The TOML file. Relative paths in it are relative to its folder.
        available_now
            Whether to process the available input and then end, whatever the file's ``[trigger]`` says.

        Raises
        ------
        PipelineError
            The file cannot be read, or is wrong; the error lists everything that is wrong.
        """
        file = Path(path)
        try:
            text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            raise PipelineError([f"{file}: could not be read: {error.strerror}"]) from None
        except UnicodeDecodeError as error:
            raise PipelineError([f"{file}: expected text in UTF-8; {error}"]) from None
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            what, _, where = str(error).removesuffix(")").partition(" (at ")
            line = re.search(r"line (\d+)", where)
            number = line[1] if line else text.rstrip().count("\n") + 1
            raise PipelineError([f"{file}:{number}: not TOML: {what}" + (f" ({where})" if where else "")]) from None
        lines = TomlLines(text)
        if available_now:
            tables["trigger"] = {"available_now": True}
        return Pipeline(file, checked(file, lines, tables), lines)

    @property
    def name(self) -> str:
        """The name of the application and of the query."""
        return str(self.tables.get("spark", {}).get("name", self.file.stem))

    @property
    def checkpoint(self) -> str | None:
        """The folder in which the query records its progress; None if no folder is given."""
        found = self.tables["sink"].get("checkpoint", self.tables.get("checkpoint"))
        return None if found is None else str(found)

    def session(self, **settings: object) -> SparkSession:
        """Return a session with ``settings`` and the settings of the file's ``[spark]``, which take precedence.

        Under ``spark-submit``, the Spark master is the one given to it.
        """
        spark = self.tables.get("spark", {})
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        master = None if submitted else spark.get("master")
        return session(self.name, master=master, **settings | spark.get("settings", {}))

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Build the master store if it does not exist yet, and start the query. Errors name the file and the line."""
        store = self._store(spark)
        stream = self._stream(spark)
        join = {name: value for name, value in self.tables["join"].items() if name != "options"}
        with self._located_errors(("join",)):
            joined = enrich(stream, store, **join, **self.tables["join"].get("options", {}))
        if "select" in self.tables:
            with self._located_errors(("select", "columns")):
                joined = joined.selectExpr(*listed(self.tables["select"]["columns"]))
        with self._located_errors(("sink",)):
            return self._started(joined)

    def run(self, spark: SparkSession) -> StreamingQuery:
        """Start the query, wait until it ends, and return it."""
        query = self.start(spark)
        query.awaitTermination()
        return query

    # parts

    def _stream(self, spark: SparkSession) -> DataFrame:
        source = self.tables["source"]
        kind, path, options = source["format"], source.get("path"), source.get("options", {})
        _register_format(spark, kind)
        reader = spark.readStream.format(kind).options(**options)
        schema = source.get("schema")
        with self._located_errors(("source", "schema")):
            if schema is None and kind in WITH_COLUMNS:
                schema = spark.read.format(kind).options(**options).load(path).schema
            if schema is not None:
                reader = reader.schema(schema)
        with self._located_errors(("source",)):
            return reader.load(path)

    def _store(self, spark: SparkSession) -> MasterStore:
        master = self.tables["master"]
        path, build = Path(master["store"]), master.get("build")
        with self._located_errors(("master",)):
            if build is None or is_store(path):
                return MasterStore.open(path)
            _register_format(spark, build["format"])
            reader = spark.read.format(build["format"]).options(**build.get("options", {}))
            if "schema" in build:
                reader = reader.schema(build["schema"])
            rows = reader.load(build.get("path"))
            return build_master(rows, path, build["key"], build.get("shards", 1), build.get("columns"))

    def _started(self, joined: DataFrame) -> StreamingQuery:
        sink = self.tables["sink"]
        writer = joined.writeStream.format(sink["format"]).outputMode("append").queryName(self.name)
        writer = writer.options(**sink.get("options", {}))
        if self.checkpoint is not None:
            writer = writer.option("checkpointLocation", self.checkpoint)
        if "partition_by" in sink:
            writer = writer.partitionBy(*listed(sink["partition_by"]))
        trigger = self.tables.get("trigger", {})
        if "processing_time" in trigger:
            writer = writer.trigger(processingTime=trigger["processing_time"])
        elif "available_now" in trigger:
            writer = writer.trigger(availableNow=True)
        elif "once" in trigger:
            writer = writer.trigger(once=True)
        return writer.start(sink.get("path"))

    @contextmanager
    def _located_errors(self, name: Name) -> Iterator[None]:
        """Turn errors in this block into errors that name a part of the file, such as a table, and its line."""
        try:
            yield
        except (MillraceError, *SPARK_ERRORS) as error:
            problem = f"{self.file}:{self.lines.find(name)}: {label(name)}: {readable(error)}"
            raise PipelineError([problem]) from error


def _register_format(spark: SparkSession, kind: str) -> None:
    """Register the format ``kind`` with Spark if it is one of Millrace's."""
    if kind == "millrace-zipf":
        from millrace.spark import zipf_source as zipf

        zipf.register(spark)


def main(arguments: Sequence[str]) -> int:
    """Run the pipeline that the arguments name until it ends, and return the exit code."""
    if len(arguments) != 1:
        print("usage: spark-submit pipeline.py PIPELINE.toml", file=sys.stderr)
        return 2
    try:
        pipeline = Pipeline.load(arguments[0])
        with pipeline.session() as spark:
            pipeline.run(spark)
    except PipelineError as error:
        print("\n".join(f"error: {problem}" for problem in error.problems), file=sys.stderr)
        return 1
    except (MillraceError, *SPARK_ERRORS) as error:
        print(f"error: {readable(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
