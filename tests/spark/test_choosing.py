"""``algorithm="auto"`` on Spark: what is decided, that everybody hears of it, and that a checkpoint goes on."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from streams import KINDS, master_frame, run_to_parquet, same_rows, streamed, waiting, write_files

import millrace as mr
from millrace.core.errors import ConfigError, SchemaError
from millrace.datasets import synthetic_master
from millrace.master.store import MasterStore
from millrace.spark import build_master, enrich, enrich_star, explain
from millrace.spark.enrichment.auto_algorithm import choose_algorithm
from millrace.spark.watch import observed

ROWS, DOMAIN = 2_000, 3_500


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("choosing")
    write_files(root / "in", 4, ROWS, DOMAIN)
    return root


def _bare(spark: SparkSession, path: Path, shards: int) -> Path:
    build_master(master_frame(spark, 3_000), path, "key", shards=shards, index=False)
    return path


def test_the_store_and_pending_decide(tmp_path: Path) -> None:
    stores = {
        indexed: MasterStore.build(synthetic_master(100), tmp_path / f"{indexed}", "key", index=indexed)
        for indexed in (True, False)
    }
    assert choose_algorithm("auto", stores[True], "drain", {}).algorithm == "lookup"
    assert choose_algorithm("auto", stores[False], "drain", {}).algorithm == "ssbj"
    for store in stores.values():
        chosen = choose_algorithm("auto", store, "carry", {})
        assert chosen.algorithm == "ssbj"
        assert "wait for a scan" in chosen.why
    empty = MasterStore.build(stores[True].to_table().slice(0, 0), tmp_path / "empty", "key")
    assert choose_algorithm("auto", empty, "drain", {}).algorithm == "ssbj"
    with pytest.raises(ConfigError, match="b, evict_every: algorithm='auto' chooses options itself"):
        choose_algorithm("auto", stores[True], "drain", {"where": None, "b": 5, "evict_every": 2})
    with pytest.raises(ConfigError, match="algorithm: expected one of 'auto', 'meshjoin'"):
        choose_algorithm("automatic", stores[True], "drain", {})


@pytest.mark.thorough
def test_a_drained_query_goes_on_with_the_index_its_store_has_got(
    spark: SparkSession, place: Path, tmp_path: Path
) -> None:
    store = _bare(spark, tmp_path / "store", shards=3)
    used = []
    (tmp_path / "in").mkdir()
    for files in ("000[01]", "000[23]"):
        for file in (place / "in").glob(f"{files}.parquet"):
            shutil.copy(file, tmp_path / "in")
        out = enrich(streamed(spark, tmp_path / "in"), store, "key", "left", memory="600kB")
        query = run_to_parquet(out, tmp_path / "out", tmp_path / "check", carry=False, rows=0)
        used += [m["algorithm"] for p in query.recentProgress for m in observed(p).values() if m["algorithm"]]
        MasterStore.add_index(store)
    assert used == ["ssbj", "ssbj", "lookup", "lookup"]
    expected = spark.read.parquet(str(place / "in")).join(master_frame(spark, 3_000), "key", KINDS["left"])
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)


@pytest.mark.thorough
def test_carried_tuples_are_answered_after_their_store_has_got_an_index(
    spark: SparkSession, place: Path, tmp_path: Path
) -> None:
    store = _bare(spark, tmp_path / "store", shards=2)
    arguments = {"how": "left", "memory": "600kB", "pending": "carry", "turns": 60}
    out = enrich(streamed(spark, place / "in"), store, "key", **arguments)  # type: ignore[arg-type]
    writer = out.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "check")).start()
    while not any(waiting(p) for p in query.recentProgress):
        assert query.exception() is None
        time.sleep(0.05)
    query.stop()
    assert waiting(query.recentProgress[-1]) > 0, "somebody waits in the checkpoint"
    MasterStore.add_index(store)
    arguments["turns"] = 4
    again = enrich(streamed(spark, place / "in"), store, "key", **arguments)  # type: ignore[arg-type]
    done = run_to_parquet(again, tmp_path / "out", tmp_path / "check", carry=True, rows=ROWS)
    assert {m["algorithm"] for p in done.recentProgress for m in observed(p).values() if m["algorithm"]} == {"ssbj"}
    expected = spark.read.parquet(str(place / "in")).join(master_frame(spark, 3_000), "key", KINDS["left"])
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)


@pytest.mark.thorough
def test_arms_decide_for_themselves(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    frame = master_frame(spark, 3_000)
    build_master(frame.selectExpr("key", "name"), tmp_path / "names", "key", shards=2)
    build_master(frame.selectExpr("key", "price"), tmp_path / "prices", "key", shards=2, index=False)
    arms = [mr.Arm(tmp_path / "names", "key", "left"), mr.Arm(tmp_path / "prices", "key")]
    stream = spark.read.parquet(str(place / "in"))
    expected = stream.join(frame.select("key", "name"), "key", "left").join(frame.select("key", "price"), "key")
    same_rows(enrich_star(stream, arms, memory="1MB"), expected)
    out = enrich_star(streamed(spark, place / "in"), arms, memory="1MB")
    query = run_to_parquet(out, tmp_path / "out", tmp_path / "check", carry=False, rows=0)
    told = {name: m["algorithm"] for name, m in observed(query.recentProgress[0]).items()}
    assert told == {"millrace names": "lookup", "millrace prices": "ssbj"}
    same_rows(spark.read.parquet(str(tmp_path / "out")), expected)
    with pytest.raises(ConfigError, match="arm 'names': b: algorithm='auto' chooses options itself"):
        enrich_star(stream, [mr.Arm(tmp_path / "names", "key", b=5)])


def test_explain_tells_what_is_going_to_run(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    stream, store = spark.read.parquet(str(place / "in")), tmp_path / "store"
    build_master(master_frame(spark, 3_000), store, "key", shards=3)
    told = explain(stream, store, "key", "left_outer", memory="600kB")
    assert told.startswith("lookup on the driver and in all workers, because the master has an index")
    assert "memory 600.0 kB per executor, 200.0 kB per task" in told
    assert "the join of a task with shard 0 of 3" in told
    assert "left join on key with" in told
    assert "instead" in told
    told = explain(stream, store, on="key", memory="600kB", pending="carry", turns=4, name="mine", scratch="/nowhere")
    assert told.startswith("ssbj on the driver and in all workers, because tuples that are carried")
    assert "so a turn of the wheel has k = 4 steps" in told
    assert "because it was given as algorithm=" in explain(stream, store, "key", algorithm="sscj", memory="600kB")
    with pytest.raises(SchemaError, match="keyed by key"):
        explain(stream, store, "sid")
    with pytest.raises(ConfigError, match="sscj works with 'drain'"):
        explain(stream, store, "key", algorithm="sscj", pending="carry")
    with pytest.raises(ConfigError, match="turns: expected a whole number"):
        explain(stream, store, "key", pending="carry", turns=0)
