"""What a session of Millrace does about memory beside the budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import stream_joins
from pyspark.sql import SparkSession

from millrace.spark.session import BOUND_MB, BOUNDED, TRIM
from millrace.worker import row_files


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
    environments = [(daemon / "environ").read_bytes() for daemon in _daemons(spark)]
    assert environments
    assert not any(b"SPARK_SIMPLIFIED_TRACEBACK" in environment for environment in environments)


def test_workers_that_read_rows_again_are_others_than_those_that_join(spark: SparkSession, tmp_path: Path) -> None:
    """Those that join come with everything loaded, and those that read do without."""
    stream_joins.prepare(tmp_path, files=1)
    query = stream_joins.query(spark, tmp_path, "streams").writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    roles = {"reader": 0, "any": 0}
    for daemon in _daemons(spark):
        if b"pyspark.worker" in (daemon / "cmdline").read_bytes():
            reader = f"{row_files.ROLE}={row_files.READER}".encode() in (daemon / "environ").read_bytes().split(b"\0")
            assert ("llvmlite" in (daemon / "maps").read_text()) != reader
            roles["reader" if reader else "any"] += 1
    assert all(roles.values()), roles
    assert row_files.ROLE not in spark.sparkContext.environment


def _daemons(spark: SparkSession) -> Iterator[Path]:
    """The processes that fork Python workers for this session, as folders of /proc."""
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    for children in Path(f"/proc/{java}/task").glob("*/children"):
        for child in children.read_text().split():
            try:
                if b".daemon\0pyspark." in Path(f"/proc/{child}/cmdline").read_bytes():
                    yield Path(f"/proc/{child}")
            except OSError:  # it has ended meanwhile
                continue
