"""How the rows of a micro-batch leave an operator: through a file, which the next step of the same task reads.

::

    operator ── file, metrics ──► observe ──► mapInArrow ──► rows
        └────── rows ──► local file ──────────────┘

``observe``, and a filter that takes metrics out again, would look at every row. A stateful operator would take rows as
pandas frames and give them out as one nested column, of which every value is asked whether it is null. A million rows
of 15 columns spend 0.2 core-seconds on the one, and 0.4 on both. Here a line that says where they are is all that takes
that way; :mod:`millrace.worker.handover` has the files.
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

from millrace.spark import task_metrics as metrics
from millrace.worker import handover
from millrace.worker.shipping import shipped

_FILE = "file"


class WayOut:
    """How output rows, and a row of metrics beside them, get out of the operator and become rows again."""

    schema = StructType([StructField(_FILE, StringType()), StructField(metrics.COLUMN, StringType())])
    """What the operator gives out."""

    def __init__(self, output: StructType) -> None:
        self._output = output

    def frames(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pd.DataFrame]:
        """Write output rows down, and say where they are, if there are any."""
        first = next(batches, None)
        if first is None:
            return
        path = handover.write_down(chain([first], batches), first.schema)
        yield pd.DataFrame({_FILE: [path], metrics.COLUMN: [None]})

    @staticmethod
    def batches(rows: Iterator[pa.RecordBatch], numbers: list[float]) -> Iterator[pa.RecordBatch]:
        """The same for ``mapInArrow``; behind it a row of metrics, if there are ``numbers`` when all rows have come."""
        first = next(rows, None)
        if first is not None:
            yield _row(handover.write_down(chain([first], rows), first.schema), None)
        if numbers:
            yield _row(None, metrics.line(numbers))

    def metrics_frame(self, numbers: list[float]) -> pd.DataFrame:
        """A row of metrics."""
        return pd.DataFrame({_FILE: [None], metrics.COLUMN: [metrics.line(numbers)]})

    def rows(self, given: DataFrame) -> DataFrame:
        """The output from what the operator gave out, metrics left behind."""
        with _readers(given.sparkSession.sparkContext):
            return given.mapInArrow(shipped("millrace.worker.handover", "read_again"), self._output)


@contextmanager
def _readers(context: SparkContext) -> Iterator[None]:
    """Functions made here run in workers that do nothing else: Spark shares those whose environments are equal.

    Otherwise it would be chance who joins, and one that never did has kernels to load and the master's pages to map:
    up to a second of a micro-batch.
    """
    context.environment[handover.ROLE] = handover.READER
    try:
        yield
    finally:
        context.environment.pop(handover.ROLE, None)  # another thread may be here as well


def _row(file: str | None, line: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([value], pa.string()) for value in (file, line)], WayOut.schema.names)
