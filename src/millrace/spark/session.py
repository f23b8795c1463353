"""A Spark session that is ready for Millrace. Any other session will do; this one has the settings in place."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"

BOUNDED = "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage"
BOUND_MB = "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB"
"""What all state stores of an executor have together. Without, each fills write buffers of 64 MB, one or two."""

SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
"""Spark puts it into the environment of some workers and not of those that have state, and workers are shared only
where environments are equal: with it there are twice as many."""

ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""With a limit of bytes, Spark measures its Arrow buffers anew for every row; that of rows is limit enough."""

LOCAL_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""For checkpoints on a disk of this machine. A micro-batch writes several small files there, and for each Hadoop
starts processes to set modes and to look at links: a tenth of a second. This manager needs fewer, and Spark's checksums
are not needed where Hadoop has its own."""

DAEMON = {"spark.python.daemon.module": "millrace.worker.daemon"}
"""Workers begin with the joins loaded. Only where they run the driver's interpreter for sure: an executor whose Python
has no Millrace could not say so."""

ARROW_CHECKS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Spark asks whether a value is there before it reads it; without these, Arrow's Java side checks again, every time."""

TRIM = "-XX:TrimNativeHeapInterval=2000"
"""RocksDB takes and frees memory a chunk at a time; the C library keeps what is free until it is asked to give it back.
Java has the option from 17.0.9 on; before, it is ignored, for Spark tells Java to ignore what it does not know."""

JAVA = f"{ARROW_CHECKS} {TRIM}"
"""What Java is told."""


def session(name: str = "millrace", *, master: str | None = None, **settings: object) -> SparkSession:
    """A session whose workers run this interpreter and whose state store is RocksDB: with a changelog, and bounded.

    Parameters
    ----------
    name
        The application's name.
    master
        Where to run, such as ``"local[2]"``; by default what ``spark-submit`` says, or all cores of this machine.
    **settings
        Further settings, with ``__`` for the dots: ``spark__sql__shuffle__partitions=8``.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    defaults: dict[str, object] = {
        STATE_STORE: ROCKSDB,
        CHANGELOG: "true",
        BOUNDED: "true",
        BOUND_MB: 128,
        SIMPLIFIED: "false",
        ARROW_BYTES: 2**31 - 1,
        "spark.driver.extraJavaOptions": JAVA,
        "spark.executor.extraJavaOptions": JAVA,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
    }
    if (master or "").startswith("local"):
        defaults |= LOCAL_FILES
        if os.environ["PYSPARK_PYTHON"] == sys.executable:
            defaults |= DAEMON
    given = {key.replace("__", "."): value for key, value in settings.items()}
    for key, value in {**defaults, **given}.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        builder = builder.config(key, text)
    return builder.getOrCreate()


def slots_per_executor(spark: SparkSession) -> int:
    """Tasks that may run at a time in one executor; where Spark does not tell, those of the whole cluster."""
    settings = spark.sparkContext.getConf()
    cpus = int(settings.get("spark.task.cpus", "1") or 1)
    cores = settings.get("spark.executor.cores")
    if cores is not None and not str(settings.get("spark.master", "")).startswith("local"):
        return max(1, int(cores) // cpus)
    return max(1, spark.sparkContext.defaultParallelism // cpus)
