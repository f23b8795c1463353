"""Surrogate keys, duplicates and new rows, compared with plain Spark."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.core.errors import ConfigError, SchemaError, StoreExistsError
from millrace.master.store import MasterStore
from millrace.spark import assign_keys, build_master, find_duplicates, find_new, merge_keys
from millrace.spark.zipf_source import register


def key_map(path: Path) -> dict[Any, int]:
    """The numbers a key map has given out, which are those from 1 on."""
    table = MasterStore.open(path).to_table()
    keys = list(zip(*(table[name].to_pylist() for name in table.column_names[:-1]), strict=True))
    numbers = dict(
        zip(keys if table.num_columns > 2 else [key for (key,) in keys], table["sk"].to_pylist(), strict=True)
    )
    assert sorted(numbers.values()) == list(range(1, table.num_rows + 1))
    return numbers


def rows_of(df: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, in an order that has a place for nulls."""
    return sorted((tuple(row) for row in df.collect()), key=lambda row: [(value is not None, value) for value in row])


# surrogate keys


def test_new_keys_get_the_next_numbers(spark: SparkSession, tmp_path: Path) -> None:
    first = spark.createDataFrame([("pear", 1), ("apple", 2), ("pear", 3), (None, 4)], "fruit string, sid int")
    out = assign_keys(first, tmp_path / "keys", on="fruit")
    assert out.columns == ["fruit", "sid", "sk"]
    assert sorted(out.collect(), key=lambda row: row.sid) == [
        ("pear", 1, 2),
        ("apple", 2, 1),
        ("pear", 3, 2),
        (None, 4, None),
    ]
    second = spark.createDataFrame([("fig", 5), ("apple", 6), ("elder", 7)], "fruit string, sid int")
    numbers = {row.fruit: row.sk for row in assign_keys(second, tmp_path / "keys", on="fruit", memory="1MB").collect()}
    assert numbers == {"elder": 3, "fig": 4, "apple": 1}
    assert key_map(tmp_path / "keys") == {"apple": 1, "pear": 2, "elder": 3, "fig": 4}
    MasterStore.open(tmp_path / "keys").verify()


def test_a_batch_that_is_run_again_comes_out_the_same(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"key": [number * 7 % 100 for number in range(300)], "sid": range(300)})
    batch = spark.createDataFrame(table).repartition(5)
    once = assign_keys(batch, tmp_path / "keys", on="key").collect()
    snapshot = MasterStore.open(tmp_path / "keys").manifest.snapshot
    assert sorted(assign_keys(batch.repartition(2), tmp_path / "keys", on="key").collect()) == sorted(once)
    assert MasterStore.open(tmp_path / "keys").manifest.snapshot == snapshot, "nothing new, so nothing is written"
    assert key_map(tmp_path / "keys") == {key: key + 1 for key in range(100)}


def test_keys_of_several_columns_under_other_names(spark: SparkSession, tmp_path: Path) -> None:
    known = spark.createDataFrame([("de", 7, 1), ("fr", 7, 2)], "system string, id long, sk int")
    build_master(known, tmp_path / "keys", ["system", "id"], shards=3, page_rows=10)
    batch = spark.createDataFrame([("fr", 7), ("fr", 8), ("de", 8), ("de", None)], "source string, number int")
    out = assign_keys(batch, tmp_path / "keys", on={"number": "id", "source": "system"})
    assert set(out.collect()) == {("fr", 7, 2), ("fr", 8, 4), ("de", 8, 3), ("de", None, None)}
    store = MasterStore.open(tmp_path / "keys")
    assert (store.shards, store.manifest.page_rows, store.schema.field("sk").type) == (3, 10, pa.int32())
    store.verify()


def test_two_who_write_to_one_map_take_turns(spark: SparkSession, tmp_path: Path) -> None:
    batches = [spark.createDataFrame(pa.table({"key": range(start, start + 500)})) for start in (0, 250)]
    threads = [Thread(target=merge_keys, args=(batch, tmp_path / "keys", "key")) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(key_map(tmp_path / "keys")) == set(range(750))


@pytest.mark.thorough
def test_a_stream_that_fails_after_the_keys_were_written(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    options = {"rowsPerBatch": 1_000, "rows": 3_000, "domain": 2_000, "skew": 0.7, "seed": 6}
    stream = spark.readStream.format("millrace-zipf").options(**options).load()
    failures = [1]

    def load(batch: DataFrame, number: int) -> None:
        keyed = assign_keys(batch, tmp_path / "keys", on="key")
        if number in failures:
            failures.remove(number)
            raise RuntimeError("the warehouse is away")
        keyed.write.mode("overwrite").parquet(str(tmp_path / "facts" / f"batch={number}"))

    def run() -> None:
        writer = stream.writeStream.foreachBatch(load).option("checkpointLocation", str(tmp_path / "check"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the warehouse is away"):
        run()
    before = key_map(tmp_path / "keys")
    run()
    numbers = key_map(tmp_path / "keys")
    assert before.items() < numbers.items(), "numbers that were given out stay"
    facts = spark.read.parquet(str(tmp_path / "facts"))
    rows = spark.read.format("millrace-zipf").options(**options).load().collect()
    assert sorted((row.sid, row.key, row.sk) for row in facts.collect()) == [
        (r.sid, r.key, numbers[r.key]) for r in rows
    ]


def test_stores_that_are_no_key_maps(spark: SparkSession, tmp_path: Path) -> None:
    batch = spark.createDataFrame([(1, 1)], "key long, sid int")
    build_master(spark.sql("select 1L as key, 'x' as name"), tmp_path / "other", "key")
    with pytest.raises(SchemaError, match="expected a key map with the key key and the column sk; got a store with"):
        assign_keys(batch, tmp_path / "other", on="key")
    with pytest.raises(SchemaError, match="expected whole numbers in 'name'; got string"):
        assign_keys(batch, tmp_path / "other", on="key", surrogate="name")
    build_master(spark.sql("select 1L as key, id as sk from range(2)"), tmp_path / "twice", "key")
    with pytest.raises(SchemaError, match="one row per key; some keys have several"):
        assign_keys(batch, tmp_path / "twice", on="key")
    for surrogate, owner in ("sid", "batch"), ("key", "map's key"):
        with pytest.raises(SchemaError, match=f"a new column name; the {owner} already has a column '{surrogate}'"):
            assign_keys(batch, tmp_path / "keys", on="key", surrogate=surrogate)
    with pytest.raises(SchemaError, match="on: expected columns of the DataFrame, which has key, sid; got 'id'"):
        assign_keys(batch, tmp_path / "keys", on="id")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreExistsError, match="already exists"):
        assign_keys(batch, tmp_path / "folder", on="key")
    assert not (tmp_path / "keys").exists()


# duplicates and new rows


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the even keys below 100, some of them with several rows."""
    path = tmp_path_factory.mktemp("recipes") / "warehouse"
    build_master(spark.range(0, 150).selectExpr("id * 2 % 100 as key", "id as number"), path, "key", shards=2)
    return path


def batch_of(spark: SparkSession) -> DataFrame:
    """Keys that are in the warehouse, keys that are not, once and several times, and rows without a key."""
    keys = [None if number % 10 == 3 else number * number % 120 for number in range(400)]
    return spark.createDataFrame(pa.table({"key": pa.array(keys, pa.int64()), "sid": range(400)})).repartition(3)


def is_there(key: int | None) -> bool:
    return key is not None and key % 2 == 0 and key < 100


def test_rows_that_are_there_and_rows_that_are_not(spark: SparkSession, warehouse: Path) -> None:
    batch = batch_of(spark)
    rows = rows_of(batch)
    assert rows_of(find_duplicates(batch, warehouse, on="key")) == [row for row in rows if is_there(row[0])]
    assert rows_of(find_new(batch, warehouse, on="key")) == [row for row in rows if not is_there(row[0])]


def test_duplicates_within_a_batch(spark: SparkSession, warehouse: Path) -> None:
    batch = batch_of(spark)
    new: list[tuple[Any, ...]] = []
    duplicates: list[tuple[Any, ...]] = []
    seen: set[int] = set()
    for key, sid in rows_of(batch):
        known = is_there(key) or key in seen
        (duplicates if known else new).append((key, sid))
        seen |= {key} - {None}
    assert len([key for key, _ in new if key is None]) == 40
    assert any(not is_there(key) for key, _ in duplicates)
    assert rows_of(find_new(batch, warehouse, on="key", first_by="sid")) == new
    assert rows_of(find_duplicates(batch, warehouse, on="key", first_by=["sid"], memory="1MB")) == duplicates


def test_a_stream_against_the_master(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    register(spark)
    source = spark.readStream.format("millrace-zipf").options(rowsPerBatch=500, rows=1_000, domain=150)
    stream = source.load().select("key", "sid")
    both = find_duplicates(stream, warehouse, on="key").withColumn("there", F.lit(True))
    both = both.unionAll(find_new(stream, warehouse, on="key").withColumn("there", F.lit(False)))
    writer = both.writeStream.option("checkpointLocation", str(tmp_path / "check"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    assert {"millrace duplicates warehouse", "millrace new warehouse"} <= set(
        query.recentProgress[0]["observedMetrics"]
    )
    rows = spark.read.format("millrace-zipf").options(rows=1_000, domain=150).load().select("key", "sid")
    expected = rows.withColumn("there", (F.col("key") % 2 == 0) & (F.col("key") < 100))
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == rows_of(expected)


def test_what_a_stream_cannot_do(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value as key", "timestamp")
    for call in (assign_keys, merge_keys):
        with pytest.raises(ConfigError, match=r"assigned batch by batch; got a streaming DataFrame.*foreachBatch"):
            call(stream, tmp_path / "keys", on="key")
    for find in (find_duplicates, find_new):
        with pytest.raises(ConfigError, match=r"first_by: .* got a streaming DataFrame.*foreachBatch"):
            find(stream, warehouse, on="key", first_by="timestamp")
        with pytest.raises(SchemaError, match=r"first_by: expected columns of the DataFrame, .*; got 'time'"):
            find(batch_of(spark), warehouse, on="key", first_by="time")
        with pytest.raises(SchemaError, match=r"first_by: .*; got none"):
            find(batch_of(spark), warehouse, on="key", first_by=[])
