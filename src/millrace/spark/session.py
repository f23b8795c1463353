"""A Spark session with the settings that Millrace works best with. Any other session works too."""

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
"""Memory of all state stores of an executor together. Without a bound, each fills one or two write buffers of 64 MB."""

SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
"""Spark puts this setting into the environment of stateless workers only, and shares workers only where environments
are equal: with it there are twice as many workers."""

ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""With a limit of bytes, Spark measures its Arrow buffers again for every row; the limit of rows is enough."""

LOCAL_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Settings for checkpoints on a disk of this machine. A micro-batch writes several small files, and for each of them
Hadoop starts processes that set modes and look at links: a tenth of a second. This manager starts fewer, and Spark's
checksums are not needed where Hadoop has its own."""

DAEMON = {"spark.python.daemon.module": "millrace.worker.daemon"}
"""Workers begin with the joins loaded. Set only where they certainly run the driver's interpreter: with a Python that
has no Millrace, an executor could not report it."""

ARROW_CHECKS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Spark checks for null before it reads a value; without these options, Arrow's Java side checks again, every time."""

TRIM = "-XX:TrimNativeHeapInterval=2000"
"""RocksDB allocates and frees memory a chunk at a time, and the C library keeps free memory until it is trimmed.
Java has the option from 17.0.9 on; older versions ignore it, because Spark has Java ignore unknown options."""

JAVA = f"{ARROW_CHECKS} {TRIM}"
"""The options of Java, on the driver and on executors."""


def session(name: str = "millrace", *, master: str | None = None, **settings: object) -> SparkSession:
    """Return a session whose workers run this interpreter and whose state store is RocksDB, bounded, with a changelog.

    Parameters
    ----------
    name
        The application's name.
    master
        Where to run, such as ``"local[2]"``; by default as ``spark-submit`` says, or on all cores of this machine.
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
    """Return how many tasks may run at a time in one executor; if that is not set, in the whole cluster."""
    settings = spark.sparkContext.getConf()
    cpus = int(settings.get("spark.task.cpus", "1") or 1)
    cores = settings.get("spark.executor.cores")
    if cores is not None and not str(settings.get("spark.master", "")).startswith("local"):
        return max(1, int(cores) // cpus)
    return max(1, spark.sparkContext.defaultParallelism // cpus)
