"""``join_streams`` gives what Spark's own batch join gives, whatever comes first, and goes on exactly after a crash."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import campaign
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import stream_joins
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from streams import same_rows

from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError
from millrace.spark import join_streams
from millrace.spark.error_messages import readable

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


def finish(out: DataFrame, root: Path) -> StreamingQuery:
    """Run a query to its end."""
    writer = out.writeStream.format("parquet").option("path", str(root / "out"))
    query = writer.option("checkpointLocation", str(root / "check")).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return query


@pytest.mark.thorough
def test_equal_keys_and_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    write_sides(tmp_path, 3)

    def joined(shards: int) -> DataFrame:
        left, right = streams(spark, tmp_path, 1, 2)
        return join_streams(left.drop("tags"), right.drop("t"), "k", suffix="_right", shards=shards, memory="4MB")

    assert joined(3).columns == ["k", "n", "t", "lid", "n_right", "rid"]
    query = finish(joined(3), tmp_path)
    told = [row["streams"] for row in (p["observedMetrics"]["millrace streams"] for p in query.recentProgress)]
    assert sum(row["rows_out"] for row in told) == spark.read.parquet(str(tmp_path / "out")).count()
    more = pq.read_table(tmp_path / "left" / "0.parquet")
    pq.write_table(more, tmp_path / "left" / "more.parquet")
    with pytest.raises(StreamingQueryException) as caught:
        finish(joined(2), tmp_path)
    assert readable(caught.value).startswith("join_streams: the checkpoint belongs to another join")
    finish(joined(3), tmp_path)
    ours, theirs = tables(spark, tmp_path)
    expected = ours.drop("tags").join(theirs.select("k", theirs.n.alias("n_right"), "rid"), "k")
    assert expected.count() > 10_000
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)


def near(left: DataFrame, right: DataFrame) -> DataFrame:
    """What ``NEAR`` should give."""
    theirs = right.select(right.n.alias("m"), right.t.alias("t_right"), right.k.alias("k_right"), "rid")
    return left.join(
        theirs, F.expr("n = m and t_right between t - interval 40 seconds and t + interval 3 seconds")
    ).drop("m")


NEAR: Any = {"on": ["n", "t"], "band": (timedelta(seconds=-40), timedelta(seconds=3)), "suffix": "_right"}


def test_a_band_beside_a_key_and_columns_that_are_lists(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    out = join_streams(*streams(spark, place, 2, 3), **NEAR)
    finish(out, tmp_path)
    expected = near(*tables(spark, place))
    assert expected.count() > 1_000
    same_rows(
        spark.read.parquet(str(tmp_path / "out")).withColumn("tags", F.col("tags").cast("string")),
        expected.withColumn("tags", F.col("tags").cast("string")),
    )


def test_batch_frames(spark: SparkSession, place: Path) -> None:
    left, right = tables(spark, place)
    same_rows(join_streams(left.drop("tags"), right, **NEAR), near(left.drop("tags"), right))


def test_three_streams(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    left, right = streams(spark, place, 4, 4)
    third = spark.readStream.schema("k long, n string").parquet(str(place / "left"))
    third = third.selectExpr("n as letter", "k % 7 as seven").where("k > 40")
    ours, theirs = left.select("k", "lid"), right.select("k", "n", "rid").where("k > 20")
    finish(join_streams([ours, theirs, third], on=["k", {"n": "letter"}]), tmp_path)
    left, right = tables(spark, place)
    third = left.selectExpr("n", "k % 7 as seven").where("k > 40")
    expected = left.select("k", "lid").join(right.select("k", "n", "rid").where("k > 20"), "k").join(third, "n")
    assert expected.count() > 500
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)


def test_streams_with_names_meet_in_the_cells_of_a_grid(spark: SparkSession, tmp_path: Path) -> None:
    stream_joins.prepare(tmp_path, files=2)
    joined = stream_joins.cube(spark, tmp_path, shards=6)
    assert joined.columns == ["k", "n", "lid", "m", "at", "rid", "thirds_at", "third"]
    query = finish(joined, tmp_path)
    told = [p["observedMetrics"]["millrace streams"]["streams"] for p in query.recentProgress]
    assert sum(row["rows_out"] for row in told) == spark.read.parquet(str(tmp_path / "out")).count()
    stream_joins.check(spark, tmp_path, "cube")
    lefts, rights, thirds = stream_joins.tables(spark, tmp_path)
    frames = {"lefts": lefts, "rights": rights, "thirds": thirds}
    same_rows(join_streams(frames, on=stream_joins.TIES, shards=3), stream_joins.expected(spark, tmp_path, "cube"))


@pytest.mark.parametrize("mode", ["cube"])
@pytest.mark.thorough
def test_a_killed_query_goes_on_exactly(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    stream_joins.prepare(tmp_path, files=4)
    assert campaign.survive(tmp_path, mode, campaign.kill_driver, times=1, seed=1) == 1
    stream_joins.check(spark, tmp_path, mode)


def test_what_cannot_be_is_said_before_anything_runs(spark: SparkSession, place: Path) -> None:
    left, right = streams(spark, place)
    batch, _ = tables(spark, place)
    with pytest.raises(ConfigError, match=r"left: expected a stream, because the other side .*; got a batch.*enrich"):
        join_streams(batch, right, "k")
    with pytest.raises(ConfigError, match=r"how: expected 'inner'; got 'left'.*cannot be taken back"):
        join_streams(left, right, "k", how="left")
    with pytest.raises(SchemaError, match="right: has no column 'lid'; it has k, n, t, rid"):
        join_streams(left, right, ["k", "lid"])
    with pytest.raises(SchemaError, match="the left's 'k' is int64, but the right's 'n' is string"):
        join_streams(left, right, {"k": "n"})
    with pytest.raises(SchemaError, match=r"both the left and the right have a column 'n'.*suffix='_right'"):
        join_streams(left, right, "k")
    with pytest.raises(SchemaError, match="key column 'tags'"):
        join_streams(left, left.select("tags"), "tags")
    with pytest.raises(ConfigError, match=r"expected timedeltas for columns of timestamp.*got 0"):
        join_streams(left, right, "t", (0, 5), suffix="_right")
    with pytest.raises(ConfigError, match="low not above high"):
        join_streams(left, right, "k", (1, 0), suffix="_right")
    with pytest.raises(SchemaError, match=r"band: expected columns of numbers .*, dates or timestamps; got string"):
        join_streams(left, right, "n", (0, 1), suffix="_right")
    with pytest.raises(BudgetTooSmallError, match="the least is 2097152 bytes"):
        join_streams(left, right, "k", suffix="_right", memory="1MB")
    with pytest.raises(ConfigError, match="shards: expected a whole number"):
        join_streams(left, right, "k", suffix="_right", shards=0)
    with pytest.raises(ConfigError, match="on: expected one column name, or a list of 2, one for each join of the 3"):
        join_streams([left, right, left], on=["k"])


def test_what_cannot_be_is_said_of_streams_with_names(spark: SparkSession, place: Path) -> None:
    left, right = streams(spark, place)
    three = {"a": left.select("k", "n"), "b": right.select("k", "n"), "c": left.select("n", "lid")}
    on = [("a.k", "b.k"), ("b.n", "c.n")]
    with pytest.raises(ConfigError, match=r"b\.n = c\.n has a band.*joined on equal columns"):
        join_streams(three, on=[("a.k", "b.k"), ("b.n", "c.n", (0, 1))])
    with pytest.raises(ConfigError, match="right, band and columns cannot be used"):
        join_streams(three, on=on, band=(0, 1))
    with pytest.raises(ConfigError, match="expected a list of conditions"):
        join_streams(three, on="k")
    with pytest.raises(ConfigError, match="no condition connects c to the others"):
        join_streams(three, on=on[:1])
    with pytest.raises(ConfigError, match="there is no input 'd'; the inputs are a, b, c"):
        join_streams(three, on=[*on, ("c.n", "d.n")])
    with pytest.raises(ConfigError, match="closes a cycle"):
        join_streams(three, on=[*on, ("a.n", "c.n")])
    with pytest.raises(SchemaError, match="c: has no column 'k'; it has n, lid"):
        join_streams(three, on=[("a.k", "b.k"), ("b.k", "c.k")])
    with pytest.raises(SchemaError, match="c: expected a DataFrame; got int"):
        join_streams({**three, "c": 3}, on=on)  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"c: expected a stream, because others are streams; got a batch.*enrich"):
        join_streams({**three, "c": tables(spark, place)[0]}, on=on)
    with pytest.raises(ConfigError, match="sizes: expected a number for each of a, b, c"):
        join_streams(three, on=on, sizes={"a": 1})
    with pytest.raises(ConfigError, match="sizes: expected a number above 0 for b; got 0"):
        join_streams(three, on=on, sizes={"a": 1, "b": 0, "c": 2})
    with pytest.raises(ConfigError, match="sizes: expected only with named inputs"):
        join_streams(left, right, "k", sizes={"left": 1, "right": 2})
