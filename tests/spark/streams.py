"""Streams of Parquet files for the tests, and what should come out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.spark.watch import observed

STREAM = "key long, sid long"
KINDS = {"inner": "inner", "left": "left", "semi": "left_semi", "anti": "left_anti"}


def write_files(folder: Path, files: int, rows: int, domain: int, seed: int = 0) -> None:
    """Files of a skewed stream; every seventeenth key is null, some are in no master."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(files):
        keys = pa.array(random.zipf(1.3, rows) % domain, mask=np.arange(rows) % 17 == 3)
        table = pa.table({"key": keys, "sid": np.arange(rows) + number * rows})
        pq.write_table(table, folder / f"{number:04d}.parquet")


def streamed(spark: SparkSession, folder: Path, files: int = 1) -> DataFrame:
    """The files as a stream, so many to a micro-batch."""
    return spark.readStream.schema(STREAM).option("maxFilesPerTrigger", files).parquet(str(folder))


def master_frame(spark: SparkSession, rows: int, copies: int = 1) -> DataFrame:
    """Master rows with the keys 0 to ``rows``, each so many times."""
    frame = spark.range(0, rows * copies)
    return frame.selectExpr(f"id % {rows} as key", "concat('name ', id) as name", "id * 1.5 as price", "id as number")


def same_rows(got: DataFrame, expected: DataFrame) -> None:
    """Assert that both have the same rows, each as often."""
    columns = [(name, "ascending") for name in got.columns]
    ours, theirs = (frame.toArrow().sort_by(columns) for frame in (got, expected.select(*got.columns)))
    assert len(ours) == len(theirs), f"{len(ours)} rows instead of {len(theirs)}"
    for name in got.columns:
        assert ours[name].combine_chunks().equals(theirs[name].combine_chunks()), f"column {name} differs"


def run_to_parquet(
    out: DataFrame, folder: Path, checkpoint: Path, *, carry: bool, rows: int, patience: float = 90
) -> StreamingQuery:
    """Run a query into Parquet files until it has taken in ``rows`` tuples and nobody waits any more."""
    writer = out.writeStream.format("parquet").option("path", str(folder)).option("checkpointLocation", str(checkpoint))
    if not carry:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query
    query = writer.trigger(processingTime="50 milliseconds").start()
    try:
        deadline = time.monotonic() + patience
        while not finished(query, rows):
            assert time.monotonic() < deadline, "the waiting room did not empty"
            error = query.exception()
            if error is not None:
                raise error
            time.sleep(0.1)
    finally:
        query.stop()
    return query


def finished(query: StreamingQuery, rows: int) -> bool:
    """Whether a query has taken in all rows and answered them."""
    progress = [p for p in query.recentProgress if observed(p)]
    taken = sum(int(p["numInputRows"]) for p in query.recentProgress)
    return taken >= rows and bool(progress) and waiting(progress[-1]) == 0


def waiting(progress: Any) -> int:
    """Tuples that wait at the end of a micro-batch; none if it had nothing to do."""
    return sum(int(m["waiting"] or 0) for m in observed(progress).values())
