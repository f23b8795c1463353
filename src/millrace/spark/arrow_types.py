"""Conversion between Spark's types and Arrow's. Timestamps with a zone are in UTC, whatever the session's zone is."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StringType, StructField, StructType

from millrace.core.errors import SchemaError

_SIMPLE = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


def is_simple(type_: DataType) -> bool:
    """Return whether the type is a boolean, a number, text, bytes, a date or a timestamp, and not nested."""
    return type(type_) in _SIMPLE


def blank(type_: pa.DataType) -> pa.Array:
    """Return an array with one filler value, which is zero or empty, or null for nested types and Arrow's null type."""
    if pa.types.is_nested(type_) or pa.types.is_null(type_):
        return pa.nulls(1, type_)
    zeros = pa.py_buffer(bytes(32))
    return pa.Array.from_buffers(type_, 1, [None] + [zeros] * (type_.num_buffers - 1))


def arrow_schema(schema: StructType, what: str) -> pa.Schema:
    """Return the Arrow schema in which Python receives rows of a Spark schema; error messages begin with ``what``."""
    try:
        return pa.schema([field.with_nullable(True) for field in to_arrow_schema(schema, timezone="UTC")])
    except (PySparkException, TypeError) as error:
        raise SchemaError(f"{what}: {error}") from None


def check_collation(field: StructField, what: str) -> None:
    """Check that Spark compares a key column byte by byte, as the join does."""
    if isinstance(field.dataType, StringType) and field.dataType.collation not in (None, "UTF8_BINARY"):
        raise SchemaError(
            f"{what}: key column {field.name!r} has the collation {field.dataType.collation}, but keys are compared "
            "byte by byte; convert both sides to one form, such as lower(…), and use no collation"
        )


def spark_fields(schema: Iterable[pa.Field], what: str) -> list[StructField]:
    """Return the Spark fields that correspond to Arrow fields; error messages begin with ``what``."""
    fields = []
    for field in schema:
        try:
            fields.append(StructField(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True), True))
        except (PySparkException, TypeError):
            raise SchemaError(
                f"{what}: column {field.name!r} has Arrow's type {field.type}, which Spark does not have; "
                "leave it out with columns=[…]"
            ) from None
    return fields


def sent_schema(fields: StructType) -> pa.Schema:
    """Return the Arrow schema that rows with these fields must have when Python returns them to Spark."""
    return pa.schema([pa.field(f.name, to_arrow_type(f.dataType, timezone="UTC")) for f in fields])


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly this schema; columns are cast where their types differ."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
