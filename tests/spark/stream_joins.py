"""Three streams for the crash campaigns of ``join_streams``, the queries over them, and what should come out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from streams import same_rows

from millrace.spark import join_streams

SCHEMAS = {
    "left": "k long, n string, lid long",
    "right": "k int, m string, at timestamp, rid long",
    "third": "price string, at timestamp, third long",
}
TIES = [("lefts.k", "rights.k"), ("rights.m", "thirds.price")]
MODES = ("streams", "band", "cube")
_START = np.datetime64("2024-02-28T23:59:00", "us")


def prepare(root: Path, files: int, rows: int = 200) -> None:
    """Files of all three, with keys in common; some are null."""
    random = np.random.default_rng(8)
    for side in SCHEMAS:
        (root / side).mkdir(parents=True)
    for number in range(files):
        ids = pa.array(np.arange(rows) + number * rows)
        names = [pa.array([f"n{x}" for x in random.integers(0, 60, rows)]) for _ in range(3)]
        moments = [pa.array(_START + random.integers(0, 10**9, rows), pa.timestamp("us", "UTC")) for _ in range(2)]
        keys = [pa.array(random.integers(0, 500, rows), mask=np.arange(rows) % 11 == 3) for _ in range(2)]
        tables = {
            "left": {"k": keys[0], "n": names[0], "lid": ids},
            "right": {"k": keys[1].cast(pa.int32()), "m": names[1], "at": moments[0], "rid": ids},
            "third": {"price": names[2], "at": moments[1], "third": ids},
        }
        for side, table in tables.items():
            few = pa.table(table).slice(0, rows // 10 if side == "third" else rows)
            pq.write_table(few, root / side / f"{number:04d}.parquet")


def streams(spark: SparkSession, root: Path) -> list[DataFrame]:
    """All three, a file to a micro-batch."""
    return [
        spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(root / side))
        for side, columns in SCHEMAS.items()
    ]


def tables(spark: SparkSession, root: Path) -> list[DataFrame]:
    """All three as a whole."""
    return [spark.read.schema(columns).parquet(str(root / side)) for side, columns in SCHEMAS.items()]


def query(spark: SparkSession, root: Path, mode: str) -> DataFrame:
    """The join of a mode."""
    if mode == "cube":
        return cube(spark, root)
    left, right, third = streams(spark, root)
    if mode == "streams":
        return join_streams(left, right, on="k", memory="8MB")
    return join_streams(right, third, on="at", band=_BAND, suffix="_third", memory="8MB")


def cube(spark: SparkSession, root: Path, shards: int = 6) -> DataFrame:
    """All three at once."""
    lefts, rights, thirds = streams(spark, root)
    return join_streams(
        {"lefts": lefts, "rights": rights, "thirds": thirds}, on=TIES, shards=shards, sizes=_SIZES, memory="8MB"
    )


_BAND = (timedelta(seconds=-5), timedelta(seconds=9))
_SIZES = {"lefts": 10, "rights": 10, "thirds": 1}


def expected(spark: SparkSession, root: Path, mode: str) -> DataFrame:
    """What should come out, by Spark's own batch join."""
    left, right, third = tables(spark, root)
    if mode == "streams":
        return left.join(right, "k")
    third = third.withColumnRenamed("at", "thirds_at" if mode == "cube" else "at_third")
    if mode == "cube":
        return left.join(right, "k").join(third, F.col("m") == F.col("price")).drop("price")
    return right.join(third, F.expr("at_third between at - interval 5 seconds and at + interval 9 seconds"))


def check(spark: SparkSession, root: Path, mode: str) -> None:
    """The output is the join, every row as often as it should be."""
    wanted = expected(spark, root, mode)
    assert wanted.count() > 100
    same_rows(spark.read.parquet(str(root / "out")), wanted)
