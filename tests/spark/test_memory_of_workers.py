"""Anonymous memory of all Python workers together, while a master ten times the budget is joined."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millrace.datasets import synthetic_master, zipf_stream
from millrace.master.store import MasterStore
from millrace.spark import enrich

ROWS = 400_000
MEMORY = 5_000_000
PER_WORKER = 64_000_000


def workers() -> dict[int, int]:
    """Anonymous bytes of every Python worker forked on behalf of this process."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            words = (status.parent / "cmdline").read_bytes()
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            parent = Path("/proc", lines["PPid"].strip(), "cmdline").read_bytes()
        except (OSError, KeyError):
            continue
        if b".daemon\0pyspark." in words and b".daemon\0pyspark." in parent and "RssAnon" in lines:
            found[int(status.parent.name)] = int(lines["RssAnon"].split()[0]) * 1024
    return found


def _warm(spark: SparkSession, store: MasterStore, place: Path, pending: str) -> None:
    """The same query over a hundred rows: everything is imported and compiled."""
    some = spark.read.parquet(str(place / "in")).limit(100).toArrow()
    (place / "few").mkdir()
    pq.write_table(some, place / "few" / "0.parquet")
    schema = spark.read.parquet(str(place / "in")).schema
    stream = spark.readStream.schema(schema).parquet(str(place / "few"))
    query = (
        enrich(stream, store, "key", algorithm="ssbj", memory=MEMORY, pending=pending)
        .writeStream.format("noop")
        .start()
    )
    while not any(p["numInputRows"] for p in query.recentProgress):
        assert query.exception() is None
        time.sleep(0.1)
    query.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("pending", ["drain", "carry"])
def test_workers_keep_to_the_budget(spark: SparkSession, tmp_path: Path, pending: str) -> None:
    store = MasterStore.build(synthetic_master(ROWS), tmp_path / "store", key="key", shards=2)
    assert store.nbytes > 9 * MEMORY
    (tmp_path / "in").mkdir()
    for number, batch in enumerate(zipf_stream(ROWS, 1.0, batch_rows=100_000, batches=6, seed=3)):
        pq.write_table(batch.schema.empty_table().from_batches([batch]), tmp_path / "in" / f"{number}.parquet")
    schema = spark.read.parquet(str(tmp_path / "in")).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    _warm(spark, store, tmp_path, pending)
    idle = workers()
    most, samples, over = 0, 0, threading.Event()

    def sample() -> None:
        nonlocal most, samples
        while not over.is_set():
            now = workers()
            typical = max(idle.values(), default=0)
            grown = sum(size - idle.get(pid, typical) for pid, size in now.items())
            allowed = MEMORY + PER_WORKER * len(now)
            most = max(most, grown - allowed)
            samples += 1
            time.sleep(0.02)

    query = (
        enrich(stream, store, "key", algorithm="ssbj", memory=MEMORY, pending=pending)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "check"))
        .start()
    )
    watcher = threading.Thread(target=sample)
    watcher.start()
    try:
        deadline = time.monotonic() + 120
        while sum(p["numInputRows"] for p in query.recentProgress) < 600_000 and time.monotonic() < deadline:
            assert query.exception() is None
            time.sleep(0.1)
    finally:
        over.set()
        watcher.join()
        query.stop()
    assert samples > 20
    assert idle
    assert most <= 0, f"{most} bytes more than allowed"
