"""``join_streams`` gives what Spark's own batch join gives, whatever comes first, and goes on exactly after a crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from streams import same_rows

from millrace.spark import join_streams

LEFT = "k long, n string, t timestamp, lid long, tags array<long>"
RIGHT = "k int, n string, t timestamp, rid long"
START = np.datetime64("2024-02-28T23:59:00", "us")


def write_sides(root: Path, files: int = 4, rows: int = 300, seed: int = 0) -> None:
    """Files of two streams with keys in common, every eleventh null."""
    random = np.random.default_rng(seed)
    for side, small in (("left", False), ("right", True)):
        (root / side).mkdir(parents=True)
        for number in range(files):
            keys = pa.array(random.zipf(1.5, rows) % 90, pa.int64(), mask=np.arange(rows) % 11 == 3)
            table = {
                "k": keys.cast(pa.int32()) if small else keys,
                "n": pa.array([f"n{x}" for x in random.integers(0, 3, rows)], mask=np.arange(rows) % 11 == 5),
                "t": pa.array(START + random.integers(-(10**9), 10**9, rows), pa.timestamp("us", "UTC")),
                f"{side[0]}id": pa.array(np.arange(rows) + number * rows),
            }
            if not small:
                table["tags"] = pa.array([[x, x] if x % 5 else None for x in range(rows)])
            pq.write_table(pa.table(table), root / side / f"{number}.parquet")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("streams")
    write_sides(root)
    return root


def streams(spark: SparkSession, root: Path, left: int = 1, right: int = 1) -> tuple[DataFrame, DataFrame]:
    """Both sides, so many files to a micro-batch."""
    one, other = (
        spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(root / side))
        for side, schema, files in (("left", LEFT, left), ("right", RIGHT, right))
    )
    return one, other


def tables(spark: SparkSession, root: Path) -> tuple[DataFrame, DataFrame]:
    """Both sides as a whole."""
    return spark.read.schema(LEFT).parquet(str(root / "left")), spark.read.schema(RIGHT).parquet(str(root / "right"))


def finish(out: DataFrame, root: Path) -> None:
    """Run a query to its end."""
    writer = out.writeStream.format("parquet").option("path", str(root / "out"))
    query = writer.option("checkpointLocation", str(root / "check")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def test_equal_keys(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    left, right = streams(spark, place, 1, 2)
    out = join_streams(left.drop("tags"), right.drop("t"), "k", suffix="_right", shards=3, memory="4MB")
    assert out.columns == ["k", "n", "t", "lid", "n_right", "rid"]
    finish(out, tmp_path)
    ours, theirs = tables(spark, place)
    expected = ours.drop("tags").join(theirs.select("k", theirs.n.alias("n_right"), "rid"), "k")
    assert expected.count() > 10_000
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)
