"""``enrich`` gives what Spark's own join gives, for streams and batches, drained and carried."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from streams import KINDS, master_frame, run_to_parquet, same_rows, streamed, write_files

import millrace as mr
from millrace.core.errors import (
    BudgetTooSmallError,
    ConfigError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from millrace.master.store import MasterStore
from millrace.spark import build_master, enrich
from millrace.spark.transport.shard_names import shard_names
from millrace.spark.watch import observed

pytestmark = pytest.mark.sampled(4)

ROWS, FILES, DOMAIN = 2_000, 4, 3_500


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stream, and stores of one and three shards, unique and not."""
    root = tmp_path_factory.mktemp("enrich")
    write_files(root / "in", FILES, ROWS, DOMAIN)
    for copies in (1, 3):
        for shards in (1, 3):
            frame = master_frame(spark, 3_000, copies)
            build_master(frame, root / f"store-{copies}-{shards}", "key", shards=shards).verify()
    return root


@pytest.mark.parametrize("how", list(KINDS))
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_batch_frame(spark: SparkSession, place: Path, how: str, copies: int, shards: int) -> None:
    stream = spark.read.parquet(str(place / "in"))
    out = enrich(stream, place / f"store-{copies}-{shards}", "key", how, algorithm="ssbj", memory="600kB")
    same_rows(out, stream.join(master_frame(spark, 3_000, copies), "key", KINDS[how]))


@pytest.mark.parametrize("pending", ["drain", "carry"])
@pytest.mark.parametrize(("how", "copies", "shards"), [("inner", 1, 1), ("left", 3, 3), ("anti", 1, 3), ("semi", 3, 1)])
def test_a_stream(
    spark: SparkSession, place: Path, tmp_path: Path, pending: str, how: str, copies: int, shards: int
) -> None:
    out = enrich(
        streamed(spark, place / "in"),
        place / f"store-{copies}-{shards}",
        on="key",
        how=how,
        algorithm="ssbj",
        memory="600kB",
        pending=pending,
    )
    query = run_to_parquet(out, tmp_path / "out", tmp_path / "check", carry=pending == "carry", rows=ROWS * FILES)
    stream = spark.read.parquet(str(place / "in"))
    expected = stream.join(master_frame(spark, 3_000, copies), "key", KINDS[how])
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)
    seen = [m for p in query.recentProgress for m in observed(p).values() if m["tuples_in"] is not None]
    assert sum(m["tuples_in"] for m in seen) == ROWS * FILES
    assert sum(m["rows_out"] for m in seen) == expected.count()
    assert all(m["memory_bytes"] <= m["budget_bytes"] <= 600_000 for m in seen)
    assert all(m["wait_max_cycles"] <= 1.0 for m in seen)
    assert all(m["algorithm"] == "ssbj" for m in seen)


@pytest.mark.parametrize(("how", "algorithm"), [("left", "auto"), ("semi", "ssbj")])
def test_a_condition_beside_the_key(spark: SparkSession, place: Path, tmp_path: Path, how: str, algorithm: str) -> None:
    near = mr.band("sid", "number", below=2_000, above=1_000)
    arriving, store = streamed(spark, place / "in"), place / "store-3-3"
    out = enrich(arriving, store, "key", how, algorithm=algorithm, where=near, memory="600kB")
    run_to_parquet(out, tmp_path / "out", tmp_path / "check", carry=False, rows=ROWS * FILES)
    stream = spark.read.parquet(str(place / "in")).withColumnRenamed("key", "ours")
    matches = F.expr("ours = key and sid - 2000 <= number and number <= sid + 1000")
    expected = stream.join(master_frame(spark, 3_000, 3), matches, KINDS[how])
    expected = expected.drop("key").withColumnRenamed("ours", "key")
    assert expected.count() > 100
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)
    with pytest.raises(ConfigError, match="where: conditions work with pending='drain'"):
        enrich(streamed(spark, place / "in"), place / "store-3-3", "key", where=near, pending="carry")


@pytest.mark.parametrize("how", list(KINDS))
def test_rows_looked_up_through_the_index(spark: SparkSession, place: Path, how: str) -> None:
    stream = spark.read.parquet(str(place / "in"))
    for copies, shards in ((1, 1), (3, 3)):
        out = enrich(stream, place / f"store-{copies}-{shards}", "key", how, algorithm="lookup", memory="600kB")
        same_rows(out, stream.join(master_frame(spark, 3_000, copies), "key", KINDS[how]))


@pytest.mark.parametrize("algorithm", ["sscj", "hybridjoin-pq", "hybridjoin-l", "r-meshjoin", "cmeshjoin"])
def test_other_algorithms(spark: SparkSession, place: Path, algorithm: str) -> None:
    stream = spark.read.parquet(str(place / "in"))
    for copies in (1,) if algorithm == "cmeshjoin" else (1, 3):
        out = enrich(stream, place / f"store-{copies}-3", "key", "left", algorithm=algorithm, memory="600kB")
        same_rows(out, stream.join(master_frame(spark, 3_000, copies), "key", "left"))


def test_carrying_needs_a_wheel(spark: SparkSession, place: Path) -> None:
    with pytest.raises(ConfigError, match=r"carry.*meshjoin, ssbj.*sscj works with 'drain'"):
        enrich(streamed(spark, place / "in"), place / "store-1-3", "key", algorithm="sscj", pending="carry")


def test_columns_that_cannot_be_null_say_so(spark: SparkSession, tmp_path: Path) -> None:
    master = spark.range(50).selectExpr(
        "id as key",
        "concat('n', id) as name",
        "if(id = 7, null, id) as some",
        "array(id) as list",
        "id > 3 as flag",
        "cast(id as decimal(9, 2)) as price",
    )
    build_master(master, tmp_path / "store", "key")
    stream = spark.range(60).selectExpr("if(id = 5, null, id) as key", "id as sid", "if(id = 6, null, 'x') as text")
    nullable = {
        how: [f.name for f in enrich(stream, tmp_path / "store", "key", how, memory="600kB").schema if f.nullable]
        for how in KINDS
    }
    assert nullable["inner"] == ["text", "some", "list"]
    assert nullable["semi"] == ["text"]
    assert nullable["left"] == ["key", "text", "name", "some", "list", "flag", "price"]
    assert nullable["anti"] == ["key", "text"]
    for how, spark_how in KINDS.items():
        out = enrich(stream, tmp_path / "store", "key", how, memory="600kB")
        same_rows(out.drop("list"), stream.join(master, "key", spark_how).drop("list"))


def test_carried_tuples_wait_across_batches_and_hits_do_not(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    out = enrich(streamed(spark, place / "in"), place / "store-1-3", "key", pending="carry", memory="600kB", turns=4)
    query = run_to_parquet(out, tmp_path / "out", tmp_path / "check", carry=True, rows=ROWS * FILES)
    seen = [m for p in query.recentProgress for m in observed(p).values() if m["tuples_in"] is not None]
    assert max(m["waiting"] for m in seen) > 0, "somebody waits from one batch to the next"
    assert seen[-1]["waiting"] == 0, "with no more input the room empties"
    assert sum(m["cache_hits"] for m in seen) > 0
    before = 0
    for m in seen:
        assert m["waiting"] == before + m["tuples_in"] - m["rows_out"] - m["unmatched"], "each is answered or waits"
        assert m["rows_out"] >= m["cache_hits"], "hits never wait"
        before = m["waiting"]
    stream = spark.read.parquet(str(place / "in"))
    expected = stream.join(master_frame(spark, 3_000), "key")
    assert sum(m["tuples_in"] for m in seen) == ROWS * FILES
    assert sum(m["rows_out"] for m in seen) == expected.count()
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)


_SIMPLE = """
    value % 40 as key, value as sid, cast(value % 100 as byte) as b, cast(value as short) as s, cast(value as int) as i,
    if(value % 3 = 0, double('NaN'), value / 7) as d, cast(if(value % 4 = 0, null, value) as float) as f,
    value % 2 = 0 as t, cast(value as decimal(20, 3)) as n, encode(cast(value as string), 'utf-8') as raw,
    if(value % 5 = 0, null, concat('é', value)) as text, date_add(date'1969-12-30', cast(value as int)) as day,
    timestamp_micros(value * 1000000007 - 5) as instant, cast(timestamp_micros(value * 977) as timestamp_ntz) as local
"""


@pytest.mark.parametrize("more", ["", ", array(value, null) as list, named_struct('x', value) as pair"])
def test_every_type_comes_out_of_carry_as_it_went_in(spark: SparkSession, tmp_path: Path, more: str) -> None:
    rows = spark.range(300).selectExpr("id as value").selectExpr(*_columns(_SIMPLE + more))
    rows.repartition(2).write.parquet(str(tmp_path / "in"))
    master = spark.range(50).selectExpr("id as key", "timestamp_micros(id * 3) as since", "concat('n', id) as name")
    build_master(master, tmp_path / "store", "key", shards=2)
    kept = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        stream = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        out = enrich(stream, tmp_path / "store", "key", pending="carry", memory="600kB")
        run_to_parquet(out, tmp_path / "out", tmp_path / "check", carry=True, rows=300)
        got = spark.read.parquet(str(tmp_path / "out"))
        assert [(f.name, f.dataType) for f in got.schema] == [(f.name, f.dataType) for f in out.schema]
        expected = spark.read.parquet(str(tmp_path / "in")).join(master, "key")
        assert got.count() == 300
        assert got.exceptAll(expected.select(*got.columns)).count() == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", kept)


def _columns(text: str) -> list[str]:
    """The expressions of a select list; commas inside parentheses do not count."""
    depth, found = 0, [""]
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def test_names_of_both_sides_may_differ_and_clash(spark: SparkSession, place: Path) -> None:
    orders = spark.createDataFrame([(1, "a"), (2, "b"), (9_999, "c")], "cust int, name string")
    with pytest.raises(SchemaError, match="both the stream and the master have a column 'name'"):
        enrich(orders, place / "store-1-3", on={"cust": "key"})
    out = enrich(orders, place / "store-1-3", on={"cust": "key"}, suffix="_master", columns=["name", "price"])
    assert out.columns == ["cust", "name", "name_master", "price"]
    assert sorted(out.collect()) == [(1, "a", "name 1", 1.5), (2, "b", "name 2", 3.0)]


def test_sparks_words_for_kinds_of_join(spark: SparkSession, place: Path) -> None:
    stream, store = spark.read.parquet(str(place / "in")), place / "store-1-1"
    for word, how in (("left_outer", "left"), ("left_semi", "semi"), ("leftanti", "anti")):
        assert enrich(stream, store, "key", word).schema == enrich(stream, store, "key", how).schema


def test_columns_that_are_never_null(spark: SparkSession, place: Path) -> None:
    stream = spark.range(2_990, 3_010).withColumnRenamed("id", "key")
    assert enrich(stream, place / "store-1-3", "key", "left", columns=["name"]).where("name is null").count() == 10


def test_it_composes(spark: SparkSession, place: Path) -> None:
    stream = spark.read.parquet(str(place / "in"))
    one = stream.transform(enrich, place / "store-1-3", on="key", columns=["name"])
    both = one.transform(enrich, place / "store-1-1", on="key", columns=["price"])
    master = master_frame(spark, 3_000)
    same_rows(both.union(both), (expected := stream.join(master.drop("number"), "key")).union(expected))
    assert both.coalesce(1).count() == expected.count()


def test_settings_views_and_cache_are_left_alone(spark: SparkSession, place: Path) -> None:
    before = dict(spark.sparkContext.getConf().getAll()), spark.conf.get("spark.sql.shuffle.partitions")
    enrich(spark.read.parquet(str(place / "in")), place / "store-1-3", "key").count()
    assert (dict(spark.sparkContext.getConf().getAll()), spark.conf.get("spark.sql.shuffle.partitions")) == before
    assert spark.catalog.listTables() == []


@pytest.mark.thorough
def test_keys_of_many_types(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(datetime(2020, 1, i % 28 + 1), Decimal(i) / 4, f"k{i}", bytes([i]), i % 2 == 0, i) for i in range(90)]
    frame = spark.createDataFrame(rows, "t timestamp, d decimal(10,2), s string, b binary, f boolean, v int")
    for key in (["t"], ["d"], ["s"], ["b"], ["s", "d"], ["t", "f"]):
        path = tmp_path / "-".join(key)
        master = frame.select(*key, F.col("v").alias("number"))
        build_master(master, path, key, shards=3).verify()
        stream = frame.where("v % 3 < 2").select(*key, "v")
        same_rows(enrich(stream, path, key, memory="1MB"), stream.join(master, key))


def test_another_time_zone_and_an_embedded_store(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("select timestamp'2024-05-01 12:00:00' + make_interval(0,0,0,0,id) as at, id from range(50)")
    build_master(frame, tmp_path / "store", "at", shards=2)
    MasterStore.build(frame.toArrow(), tmp_path / "embedded", "at")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        for store in ("store", "embedded"):
            out = enrich(frame.select("at"), tmp_path / store, "at")
            assert sorted(row.id for row in out.collect()) == list(range(50))
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def test_an_empty_master_and_an_empty_stream(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    nothing = master_frame(spark, 10).where("key < 0")
    stream = spark.read.parquet(str(place / "in")).limit(50)
    for shards in (1, 2):
        build_master(nothing, tmp_path / f"empty-{shards}", "key", shards=shards).verify()
        assert enrich(stream, tmp_path / f"empty-{shards}", "key").count() == 0
        assert enrich(stream, tmp_path / f"empty-{shards}", "key", "left").count() == 50
    assert enrich(stream.where("sid < 0"), place / "store-1-3", "key").count() == 0


# what is refused


def test_bad_arguments(spark: SparkSession, place: Path) -> None:
    stream = spark.read.parquet(str(place / "in"))
    store = place / "store-1-3"
    with pytest.raises(SchemaError, match="no key column 'custkey'; it has key, sid"):
        enrich(stream, store, on={"custkey": "key"})
    with pytest.raises(SchemaError, match="keyed by key; got sid"):
        enrich(stream, store, on="sid")
    with pytest.raises(SchemaError, match="key column 'key' is string, but the master's 'key' is int64"):
        enrich(stream.withColumn("key", F.col("key").cast("string")), store, on="key")
    with pytest.raises(ConfigError, match="how: expected one of"):
        enrich(stream, store, "key", "outer")
    with pytest.raises(ConfigError, match="algorithm: expected one of"):
        enrich(stream, store, "key", algorithm="nested loops")
    with pytest.raises(ConfigError, match="pending: expected one of 'drain', 'carry'"):
        enrich(stream, store, "key", pending="later")
    with pytest.raises(ConfigError, match="for streaming DataFrames"):
        enrich(stream, store, "key", pending="carry")
    with pytest.raises(BudgetTooSmallError, match="is too little: 3 tasks share it") as small:
        enrich(stream, store, "key", memory="2kB")
    enrich(stream, store, "key", memory=small.value.minimum)
    with pytest.raises(ConfigError, match="memory: expected bytes, or text such as '64MB'"):
        enrich(stream, store, "key", memory="lots")
    folded = spark.sql("select 'a' collate UTF8_LCASE as key")
    with pytest.raises(SchemaError, match="has the collation UTF8_LCASE"):
        enrich(folded, store, "key")
    with pytest.raises(SchemaError, match="has the collation UTF8_LCASE"):
        build_master(folded, place / "folded", "key")
    with pytest.raises(SchemaError, match="the stream's column 'NAME' and the master's 'name' differ in case only"):
        enrich(stream.withColumn("NAME", F.lit(1)), store, "key")
    for odd in ("a.b", "a`b"):
        with pytest.raises(SchemaError, match=f"cannot pass the column '{odd}' to Python"):
            enrich(stream.withColumn(odd, F.lit(1)), store, "key")
    twins = stream.select("*", F.lit(1).alias("twin"), F.lit(2).alias("TWIN"))
    with pytest.raises(SchemaError, match="stream: the columns 'twin' and 'TWIN' differ in case only"):
        enrich(twins, store, "key")
    for reserved in ("__MILLRACE", "__millrace_Shard"):
        with pytest.raises(SchemaError, match=f"stream: the column name '{reserved}' is reserved"):
            enrich(stream.withColumn(reserved, F.lit(1)), store, "key")
        with pytest.raises(SchemaError, match=f"build_master: the column name '{reserved}' is reserved"):
            build_master(stream.withColumn(reserved, F.lit(1)), place / "reserved", "key")
    with pytest.raises(ConfigError, match="got a DataFrame"):
        enrich(stream, stream, "key")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name: the DataFrame already has metrics named 'millrace store-1-3'"):
        enrich(enrich(stream, store, "key", columns=["name"]), store, "key", columns=["price"])
    with pytest.raises(StoreNotFoundError, match="there is no master store here"):
        enrich(stream, place / "nowhere", "key")
    with pytest.raises(SchemaError, match="expected a DataFrame"):
        enrich([1, 2], store, "key")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="w: not an option on Spark"):
        enrich(stream, store, "key", w=5)
    with pytest.raises(SchemaError, match="columns: the master has no 'colour'"):
        enrich(stream, store, "key", columns=["colour"])


def test_bad_masters(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    frame = master_frame(spark, 10)
    with pytest.raises(StoreExistsError, match="already exists"):
        build_master(frame, place / "store-1-1", "key")
    with pytest.raises(SchemaError, match="has no column 'nothing'"):
        build_master(frame, tmp_path / "store", "nothing")
    with pytest.raises(ConfigError, match="shards: expected"):
        build_master(frame, tmp_path / "store", "key", shards=0)
    with pytest.raises(SchemaError, match="expected a batch DataFrame"):
        build_master(streamed(spark, place / "in"), tmp_path / "store", "key")
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_fails_in_a_worker_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    broken = spark.range(1000).selectExpr("id as key", "assert_true(id < 900) as x")
    with pytest.raises(Exception, match=r"assert_true|USER_RAISED"):
        build_master(broken, tmp_path / "store", "key", shards=2)
    assert list(tmp_path.iterdir()) == []


def test_a_master_replaced_under_a_running_query(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    build_master(master_frame(spark, 3_000), tmp_path / "store", "key", shards=2)
    out = enrich(streamed(spark, place / "in"), tmp_path / "store", "key", memory="600kB")
    build_master(master_frame(spark, 2_000), tmp_path / "store", "key", shards=2, overwrite=True)
    with pytest.raises(Exception, match="was replaced after the query was started"):
        run_to_parquet(out, tmp_path / "out", tmp_path / "check", carry=False, rows=0)
    again = enrich(streamed(spark, place / "in"), tmp_path / "store", "key", memory="600kB")
    run_to_parquet(again, tmp_path / "out", tmp_path / "check", carry=False, rows=0)
    expected = spark.read.parquet(str(place / "in")).join(master_frame(spark, 2_000), "key")
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)


@pytest.mark.thorough
def test_a_checkpoint_of_another_join(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    first = enrich(streamed(spark, place / "in"), place / "store-1-3", "key", pending="carry", memory="600kB")
    run_to_parquet(first, tmp_path / "out", tmp_path / "check", carry=True, rows=ROWS * FILES)
    write_files(tmp_path / "in", FILES + 1, ROWS, DOMAIN)
    other = enrich(streamed(spark, tmp_path / "in"), place / "store-3-3", "key", pending="carry", memory="600kB")
    with pytest.raises(Exception, match="the checkpoint belongs to another join"):
        run_to_parquet(other, tmp_path / "out", tmp_path / "check", carry=True, rows=ROWS)


def test_carry_says_what_it_needs(spark: SparkSession, place: Path) -> None:
    setting = "spark.sql.streaming.stateStore.providerClass"
    before = str(spark.conf.get(setting))
    spark.conf.set(setting, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    try:
        with pytest.raises(ConfigError, match=r"keeps its state in RocksDB: set spark\.sql\.streaming"):
            enrich(streamed(spark, place / "in"), place / "store-1-3", "key", pending="carry")
    finally:
        spark.conf.set(setting, before)


def test_shards_are_spread_over_partitions_as_spark_hashes_them(spark: SparkSession) -> None:
    for shards, partitions in ((2, 2), (3, 3), (8, 8), (5, 2), (2, 200)):
        names = shard_names(shards, partitions)
        frame = spark.createDataFrame([(name,) for name in names], "name int")
        places = [row[0] for row in frame.select(F.pmod(F.hash("name"), F.lit(partitions))).collect()]
        assert max(places.count(place) for place in places) == -(-shards // partitions)
        assert [name % shards for name in names] == list(range(shards)), "a name tells its shard"
