"""What a session of Millrace does about memory beside the budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import stream_joins
from pyspark.sql import SparkSession

from millrace.spark.session import BOUND_MB, BOUNDED, TRIM


def test_state_stores_are_bounded_and_give_back_what_they_free(spark: SparkSession) -> None:
    assert spark.conf.get(BOUNDED) == "true"
    assert int(spark.conf.get(BOUND_MB) or 0) > 0
    runtime = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()  # type: ignore[union-attr]
    assert TRIM in list(runtime.getInputArguments())


def test_workers_of_stateful_operators_have_the_environment_of_all_others(spark: SparkSession, tmp_path: Path) -> None:
    """Spark shares workers among those whose environments are equal."""
    stream_joins.prepare(tmp_path, files=1)
    query = stream_joins.query(spark, tmp_path, "streams").writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 400
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    environments = list(_environments_of_daemons(java))
    assert environments
    assert not any(b"SPARK_SIMPLIFIED_TRACEBACK" in environment for environment in environments)


def _environments_of_daemons(java: int) -> Iterator[bytes]:
    """What the processes that fork Python workers for this Java were started with."""
    for children in Path(f"/proc/{java}/task").glob("*/children"):
        for child in children.read_text().split():
            try:
                if b"pyspark.daemon" in Path(f"/proc/{child}/cmdline").read_bytes():
                    yield Path(f"/proc/{child}/environ").read_bytes()
            except OSError:  # it has ended meanwhile
                continue
