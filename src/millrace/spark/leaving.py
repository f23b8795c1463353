"""How rows leave a stateful operator, which wants pandas.

Columns of simple types go as they are: pandas holds Arrow arrays too, and Spark takes them out again untouched. Columns
of other types would be turned into Python objects, value by value; rows that have one are packed into a blob and
unpacked behind the operator, which costs one more trip through Python.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
from pandas.arrays import ArrowExtensionArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from millrace.spark import metrics
from millrace.spark.blobs import from_blob, to_blob
from millrace.spark.shipping import shipped
from millrace.spark.types import blank, is_simple, sent_schema


def way_out(output: StructType) -> WayOut:
    """The quickest way these columns can take."""
    simple = all(is_simple(field.dataType) for field in output)
    return AsColumns(output) if simple else AsBlobs(output)


class WayOut(ABC):
    """How output rows, and a row of metrics among them, get out of the operator and become rows again."""

    schema: StructType
    """What the operator gives out."""

    @abstractmethod
    def frame(self, batch: pa.RecordBatch) -> pd.DataFrame:
        """Output rows, for the operator to give out."""

    @abstractmethod
    def metrics_frame(self, numbers: list[float]) -> pd.DataFrame:
        """A row of metrics."""

    @abstractmethod
    def rows(self, given: DataFrame) -> DataFrame:
        """The output from what the operator gave out, metrics left behind."""


class AsColumns(WayOut):
    """Column by column. Timestamps travel as microseconds: pandas would move them to the session's zone and back."""

    def __init__(self, output: StructType) -> None:
        self._output = output
        self._instants = [isinstance(field.dataType, T.TimestampType) for field in output]
        fields = [
            StructField(f"c{place}", T.LongType() if instant else field.dataType, field.nullable)
            for place, (field, instant) in enumerate(zip(output, self._instants, strict=True))
        ]
        self.schema = StructType([*fields, StructField(metrics.COLUMN, T.StringType())])

    def frame(self, batch: pa.RecordBatch) -> pd.DataFrame:
        columns = [
            column.cast(pa.int64()) if instant else column
            for column, instant in zip(batch.columns, self._instants, strict=True)
        ]
        return _frame(self.schema.names, [*columns, pa.nulls(len(batch), pa.string())])

    def metrics_frame(self, numbers: list[float]) -> pd.DataFrame:
        columns = [blank(kind) for kind in sent_schema(self.schema).types[:-1]]
        return _frame(self.schema.names, [*columns, pa.array([metrics.line(numbers)])])

    def rows(self, given: DataFrame) -> DataFrame:
        columns = [
            (F.timestamp_micros(f"c{place}") if instant else F.col(f"c{place}")).alias(field.name)
            for place, (field, instant) in enumerate(zip(self._output, self._instants, strict=True))
        ]
        return given.where(F.col(metrics.COLUMN).isNull()).select(*columns)


class AsBlobs(WayOut):
    """Many rows in one binary value, unpacked by a worker behind the operator."""

    def __init__(self, output: StructType) -> None:
        self._output = output
        self.schema = StructType([StructField("blob", T.BinaryType()), StructField(metrics.COLUMN, T.StringType())])

    def frame(self, batch: pa.RecordBatch) -> pd.DataFrame:
        return _frame(self.schema.names, [pa.array([to_blob(batch)], pa.binary()), pa.nulls(1, pa.string())])

    def metrics_frame(self, numbers: list[float]) -> pd.DataFrame:
        return _frame(self.schema.names, [pa.nulls(1, pa.binary()), pa.array([metrics.line(numbers)])])

    def rows(self, given: DataFrame) -> DataFrame:
        return given.mapInArrow(shipped("millrace.spark.leaving", "unpack"), self._output)


def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows from blobs."""
    for batch in batches:
        for blob in batch.column(0):
            if blob.is_valid:
                yield from_blob(blob.as_buffer())


def _frame(names: list[str], columns: list[pa.Array]) -> pd.DataFrame:
    return pd.DataFrame({name: ArrowExtensionArray(column) for name, column in zip(names, columns, strict=True)})
