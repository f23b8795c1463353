"""How the rows of a micro-batch leave an operator: through a file, which the next step of the same task reads.

::

    operator ── path of the file, metrics ──► observe ──► mapInArrow ──► rows
        └────────── rows ──► local file ──────────────────────┘

Without files, every row would pass through ``observe`` and a filter that removes the metrics. A stateful operator
would also return all rows as pandas frames in one nested column, and Spark checks every value in it for null. For a
million rows of 15 columns the former costs 0.2 core-seconds, both together 0.4. With files, only a line that names the
file is processed in this way. The files themselves are written and read in :mod:`millrace.worker.row_files`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import pandas as pd
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from millrace.spark.metrics.metric_fields import METRICS_COLUMN
from millrace.worker import row_files
from millrace.worker.shipping import in_worker

_FILE = "file"

OUTPUT_LINES = StructType([StructField(_FILE, StringType()), StructField(METRICS_COLUMN, StringType())])
"""The columns that an operator returns. Each row, called a line, holds the path of a file or the metrics of a task."""


# in the worker


def file_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write output rows to a file, and yield the line that names it; without rows, yield nothing."""
    path = _write(batches)
    if path is not None:
        yield _line(path, None)


def metrics_line(metrics: str) -> pa.RecordBatch:
    """Return the line of a task's output that carries the task's metrics, as a record batch."""
    return _line(None, metrics)


def file_frames(batches: Iterator[pa.RecordBatch]) -> Iterator[pd.DataFrame]:
    """Write output rows to a file, and yield a one-row frame with its path; yield nothing if there are no rows."""
    path = _write(batches)
    if path is not None:
        yield pd.DataFrame({_FILE: [path], METRICS_COLUMN: [None]})


def metrics_frame(metrics: str) -> pd.DataFrame:
    """Return a line with the metrics of a task, as a pandas frame."""
    return pd.DataFrame({_FILE: [None], METRICS_COLUMN: [metrics]})


def _write(batches: Iterator[pa.RecordBatch]) -> str | None:
    first = next(batches, None)
    return None if first is None else row_files.write_rows(chain([first], batches), first.schema)


def _line(file: str | None, metrics: str | None) -> pa.RecordBatch:
    columns = [pa.array([value], pa.string()) for value in (file, metrics)]
    return pa.RecordBatch.from_arrays(columns, OUTPUT_LINES.names)


# on the driver


def output_rows(lines: DataFrame, output: StructType) -> DataFrame:
    """Return the rows of the files that ``lines`` name, in the columns of ``output``; lines of metrics are dropped."""
    with _readers(lines.sparkSession.sparkContext):
        return lines.mapInArrow(in_worker(row_files.read_rows), output)


@contextmanager
def _readers(context: SparkContext) -> Iterator[None]:
    """Run the functions made in this block in separate workers, which only read files.

    Spark reuses a worker only for functions with an equal environment, so a variable keeps these workers apart. If
    every worker could join and read files, chance would decide which of them join, and a worker that has never joined
    has to load kernels and map the master's pages, which takes up to a second of a micro-batch.
    """
    context.environment[row_files.ROLE] = row_files.READER
    try:
        yield
    finally:
        context.environment.pop(row_files.ROLE, None)  # another thread may have removed it
