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
"""The setting that limits the memory of all state stores of an executor together, in MB. Without a limit, each store
fills one or two write buffers of 64 MB."""

SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
"""The setting for short Python tracebacks. Spark puts it into the environment of stateless workers only, and reuses a
worker only for tasks with an equal environment. So if the setting is on, there are twice as many workers."""

ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""The setting that limits the bytes of an Arrow batch. With such a limit, Spark measures its Arrow buffers again for
every row; the limit on the number of rows is enough."""

LOCAL_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Settings for checkpoints on a disk of this machine. A micro-batch writes several small files, and for each of them
Hadoop starts processes that set file modes and check for links, which takes a tenth of a second. The file manager that
is set here starts fewer processes. Spark's checksums are turned off, as Hadoop has its own."""

DAEMON = {"spark.python.daemon.module": "millrace.worker.daemon"}
"""The setting that starts workers with the joins already loaded. It is used only where workers certainly run the
driver's interpreter: if an executor's Python has no Millrace, workers started in this way cannot report that."""

ARROW_CHECKS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Java options that turn off checks in Arrow's Java library. Spark checks for null before it reads a value; without
these options, Arrow would check every value again."""

TRIM = "-XX:TrimNativeHeapInterval=2000"
"""The Java option that gives free memory back to the system every two seconds. RocksDB allocates and frees memory a
chunk at a time, and the C library keeps the free memory until it is trimmed. Java has the option from 17.0.9 on; older
versions ignore it, because Spark has Java ignore unknown options."""

JAVA = f"{ARROW_CHECKS} {TRIM}"
"""The options for Java, on the driver and on executors."""


def session(name: str = "millrace", *, master: str | None = None, **settings: object) -> SparkSession:
    """Return a session whose workers run this interpreter and whose state store is RocksDB, limited in memory.

    Parameters
    ----------
    name
        The application's name.
    master
        Where to run, such as ``"local[2]"``; by default the master given to ``spark-submit``, or else all cores of this
        machine.
    **settings
        Further settings, with ``__`` for each dot: ``spark__sql__shuffle__partitions=8``.
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
    """Return how many tasks may run at once in an executor, or in the cluster if cores per executor are not set."""
    settings = spark.sparkContext.getConf()
    cpus = int(settings.get("spark.task.cpus", "1") or 1)
    cores = settings.get("spark.executor.cores")
    if cores is not None and not str(settings.get("spark.master", "")).startswith("local"):
        return max(1, int(cores) // cpus)
    return max(1, spark.sparkContext.defaultParallelism // cpus)
