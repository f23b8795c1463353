"""The Zipf source gives the same rows whoever reads them, and goes on where it was."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from millrace.core.clock import VirtualClock
from millrace.core.errors import ConfigError, SchemaError
from millrace.datasets import ZipfSampler
from millrace.spark.zipf_source import (
    SCHEMA,
    ZipfOptions,
    ZipfSource,
    ZipfStreamReader,
    register,
    row_ranges,
    zipf_rows,
)

EVERYTHING = ReadAllAvailable()


def table(options: ZipfOptions, start: int, end: int) -> pa.Table:
    return pa.Table.from_batches(zipf_rows(options, start, end))


def popular(options: ZipfOptions, start: int, end: int, count: int) -> set[int]:
    """The most frequent keys of a stretch of rows."""
    counts = np.bincount(table(options, start, end)["key"].to_numpy())
    return set(np.argsort(counts)[-count:].tolist())


# rows


@pytest.mark.parametrize("drift", [0, 700, 30_000])
def test_rows_do_not_depend_on_how_they_are_cut(drift: int) -> None:
    options = ZipfOptions(domain=5_000, seed=3, drift=drift)
    whole = table(options, 0, 60_000)
    assert whole["sid"].to_pylist() == list(range(60_000))
    cuts = [0, 1, 5_000, 16_383, 16_384, 16_385, 40_000, 60_000]
    pieces = [table(options, start, end) for start, end in pairwise(cuts)]
    assert pa.concat_tables(pieces) == whole
    assert list(zipf_rows(options, 100, 100)) == []


def test_rows_depend_on_the_seed() -> None:
    one, other = (table(ZipfOptions(domain=5_000, seed=seed), 0, 1_000) for seed in (1, 2))
    assert one["key"] != other["key"]
    assert one["value"] != other["value"]


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.5])
def test_keys_are_as_popular_as_zipf_says(skew: float) -> None:
    rows, domain = 200_000, 1_000
    keys = table(ZipfOptions(domain=domain, skew=skew, seed=5), 0, rows)["key"].to_numpy()
    zipf = ZipfSampler(domain, skew, seed=5)
    ranks = np.array([1, 2, 5, 20])
    expected = rows * zipf.probability(ranks)
    found = np.bincount(keys, minlength=domain + 1)[zipf.keys_of(ranks)]
    assert (np.abs(found - expected) < 5 * np.sqrt(expected)).all()
    assert keys.min() >= 1
    assert keys.max() <= domain


def test_a_popularity_that_stays() -> None:
    options = ZipfOptions(domain=100_000, seed=1)
    assert len(popular(options, 0, 50_000, 20) & popular(options, 1_000_000, 1_050_000, 20)) >= 15


def test_popular_keys_change_gradually_and_in_the_end_completely() -> None:
    drift = 200_000
    options = ZipfOptions(domain=100_000, skew=1.2, seed=1, drift=drift)
    at_first = popular(options, 0, 10_000, 30)
    left = [len(at_first & popular(options, row, row + 10_000, 30)) for row in range(0, drift + 1, drift // 4)]
    assert left[0] == 30
    assert 18 <= left[1] <= 28, "after a quarter of the way about a quarter have gone"
    assert 8 <= left[2] <= 22
    assert 2 <= left[3] <= 13
    assert left[4] <= 1, "after the whole way nobody is left"
    later = popular(options, 5 * drift, 5 * drift + 10_000, 30)
    assert len(later & popular(options, 6 * drift, 6 * drift + 10_000, 30)) <= 1, "and so it goes on"


def test_a_drift_keeps_the_distribution_of_ranks() -> None:
    still, moving = (table(ZipfOptions(domain=10_000, seed=2, drift=drift), 0, 100_000) for drift in (0, 20_000))
    assert still["value"] == moving["value"]
    most = [table.slice(0, 2_000)["key"].value_counts().field("counts") for table in (still, moving)]
    assert abs(pc.max(most[0]).as_py() - pc.max(most[1]).as_py()) < 100


# offsets


def test_rows_come_at_their_rate() -> None:
    clock = VirtualClock()
    reader = ZipfStreamReader(ZipfOptions(rate=100, rows=1_000), clock)
    here = reader.initialOffset()
    assert reader.latestOffset(here, EVERYTHING) == {"rows": 0}
    clock.advance(2.5)
    here = reader.latestOffset(here, EVERYTHING)
    assert here == {"rows": 250}
    assert reader.latestOffset(here, EVERYTHING) == here
    reader.commit(here)
    clock.advance(0.5)
    assert reader.latestOffset(here, ReadMaxRows(7)) == {"rows": 257}
    clock.advance(60)
    assert reader.latestOffset(here, EVERYTHING) == {"rows": 1_000}
    assert reader.latestOffset({"rows": 1_000}, EVERYTHING) == {"rows": 1_000}


def test_another_reader_goes_on_from_the_checkpoint() -> None:
    clock = VirtualClock()
    clock.advance(1_000_000)
    reader = ZipfStreamReader(ZipfOptions(rate=100), clock)
    assert reader.latestOffset({"rows": 777}, EVERYTHING) == {"rows": 777}
    clock.advance(1)
    assert reader.latestOffset({"rows": 777}, EVERYTHING) == {"rows": 877}


def test_rows_per_batch() -> None:
    endless = ZipfStreamReader(ZipfOptions(rowsPerBatch=400))
    assert endless.getDefaultReadLimit() == ReadMaxRows(400)
    assert endless.latestOffset({"rows": 800}, ReadMaxRows(400)) == {"rows": 1_200}
    limited = ZipfStreamReader(ZipfOptions(rowsPerBatch=400, rows=1_000))
    assert limited.latestOffset({"rows": 800}, ReadMaxRows(400)) == {"rows": 1_000}
    assert limited.latestOffset({"rows": 0}, EVERYTHING) == {"rows": 1_000}
    assert limited.latestOffset({"rows": 1_500}, EVERYTHING) == {"rows": 1_500}, "never back"


def test_ranges_are_even_and_complete() -> None:
    assert [part.value for part in row_ranges(10, 20, 3)] == [(10, 13), (13, 16), (16, 20)]
    assert [part.value for part in row_ranges(10, 12, 3)] == [(10, 11), (11, 12)]
    assert row_ranges(10, 10, 3) == []


# options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drfit": "1"}, "drfit: not an option of millrace-zipf, which has rate, rowsPerBatch, rows, domain"),
        ({"rate": "fast"}, "rate: expected a whole number; got 'fast'"),
        ({"rate": "0"}, "rate: expected a whole number of at least 1; got 0"),
        ({"rowsPerBatch": "-5"}, "rowsPerBatch: expected a whole number of at least 1; got -5"),
        ({"rows": "-1"}, "rows: expected a whole number of at least 0"),
        ({"domain": "0"}, "domain: expected a whole number from 1"),
        ({"domain": "1.5"}, "domain: expected a whole number; got '1.5'"),
        ({"skew": "-1"}, "skew: expected a finite number of at least 0"),
        ({"skew": "steep"}, "skew: expected a number; got 'steep'"),
        ({"drift": "-1"}, "drift: expected a whole number of at least 0"),
        ({"seed": "-1"}, "seed: expected a whole number from 0"),
        ({"partitions": "0"}, "partitions: expected a whole number of at least 1"),
    ],
)
def test_bad_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        ZipfSource(options).schema()


def test_options_that_do_not_go_together() -> None:
    for options, got in ({}, "neither"), ({"rate": "1", "rowsPerBatch": "1"}, "both"):
        with pytest.raises(ConfigError, match=f"rate, rowsPerBatch: .* needs one of the two; got {got}"):
            ZipfSource(options).streamReader(SCHEMA)
    with pytest.raises(ConfigError, match="rows: a batch of millrace-zipf needs the number of rows"):
        ZipfSource({}).reader(SCHEMA)
    with pytest.raises(ConfigError, match="rows: with the trigger availableNow"):
        ZipfStreamReader(ZipfOptions(rate=5)).prepareForTriggerAvailableNow()
    with pytest.raises(SchemaError, match="expected the schema struct<key:bigint"):
        ZipfSource({"rows": "5"}).reader(StructType([*SCHEMA, StructField("more", LongType())]))


# on Spark


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def same_as_generated(got: DataFrame, options: ZipfOptions) -> int:
    """Assert that a DataFrame has the rows of the generator from the first on, each once; return how many."""
    rows = got.toArrow().sort_by("sid")
    assert rows.cast(table(options, 0, 1).schema) == table(options, 0, len(rows))
    return len(rows)


def test_a_batch(spark: SparkSession) -> None:
    read = spark.read.format("millrace-zipf").options(rows=40_000, domain=3_000, skew=0.8, seed=9, partitions=3)
    frame = read.load()
    assert frame.schema == SCHEMA
    assert frame.rdd.getNumPartitions() == 3
    assert same_as_generated(frame, ZipfOptions(domain=3_000, skew=0.8, seed=9)) == 40_000
    with pytest.raises(AnalysisException, match="drfit: not an option of millrace-zipf"):
        read.option("drfit", 5).load()


def test_a_stream_in_batches_of_a_size(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("millrace-zipf").options(rowsPerBatch=3_000, rows=7_000, drift=4_000).load()
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "check"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [3_000, 3_000, 1_000]
    assert same_as_generated(spark.read.parquet(str(tmp_path / "out")), ZipfOptions(drift=4_000)) == 7_000


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("millrace-zipf").options(rate=20_000, domain=500, seed=4).load()
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "check"))
    taken = []
    for _ in range(2):
        query = writer.start(str(tmp_path / "out"))
        deadline = time.monotonic() + 60
        while len([p for p in query.recentProgress if p["numInputRows"]]) < 2:
            assert query.isActive
            assert time.monotonic() < deadline
            time.sleep(0.05)
        query.stop()
        taken.append(same_as_generated(spark.read.parquet(str(tmp_path / "out")), ZipfOptions(domain=500, seed=4)))
    assert 0 < taken[0] < taken[1]
