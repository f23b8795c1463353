"""Measure one engine that joins two streams, in a process of its own.

Run as ``python -m millrace_bench.benchmarks.spark_streams_worker '{…}'``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.spark.session import JAVA, ROCKSDB, STATE_STORE
from millrace_bench.shared.memory import anonymous_below, anonymous_bytes

IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
"""Class name of Spark's default state store, which holds state in Java's heap."""

_EVERY = 0.1
_WORKER = ".daemon pyspark."


@dataclass
class StreamsSetting:
    """One measurement in a process of its own: the engine, its inputs and its memory."""

    engine: str
    directory: str
    batches: int
    memory: str
    heap: str
    sample_every: int


def main() -> None:
    """Measure the setting that the first command-line argument gives, and print the figures as JSON."""
    print(json.dumps(measured(StreamsSetting(**json.loads(sys.argv[1])))))


def measured(setting: StreamsSetting) -> dict[str, Any]:
    """Run the query on one file of each side at a time; return figures after each pair of files, and a checksum."""
    from pyspark.sql import functions as F

    from millrace.spark import session

    pinned = f"-Xms{setting.heap} -XX:+AlwaysPreTouch {JAVA}"
    settings: dict[str, object] = {
        "spark__sql__shuffle__partitions": 2,
        "spark__driver__memory": setting.heap,
        "spark__driver__extraJavaOptions": pinned,
        "spark__sql__streaming__numRecentProgressUpdates": 10_000,
        STATE_STORE.replace(".", "__"): IN_MEMORY if setting.engine == "spark" else ROCKSDB,
    }
    spark = session("bench", master="local[2]", **settings)
    spark.sparkContext.setLogLevel("OFF")
    source = Path(setting.directory)
    with tempfile.TemporaryDirectory() as place:
        sides = []
        for side in ("left", "right"):
            Path(place, side).mkdir()
            schema = spark.read.parquet(str(source / side / "0000.parquet")).schema
            sides.append(spark.readStream.schema(schema).parquet(str(Path(place, side))))
        out = _joined(setting, *sides)
        total = F.sum(F.xxhash64(*sorted(out.columns)).cast("decimal(38,0)"))
        checked = out.observe("check", F.count(F.lit(1)).alias("rows"), total.alias("sum"))
        query = checked.writeStream.format("noop").option("checkpointLocation", str(Path(place, "check"))).start()
        points: list[dict[str, Any]] = []
        try:
            with Watch(spark) as watch:
                for number in range(setting.batches):
                    for side in ("left", "right"):
                        Path(place, side, f"{number:04d}.parquet").symlink_to(source / side / f"{number:04d}.parquet")
                    query.processAllAvailable()
                    point = _point(query, points)
                    peak = watch.python_peak()
                    if (number + 1) % setting.sample_every == 0:
                        point |= watch.in_use() | {"python": peak}
                    points.append(point)
        finally:
            query.stop()
    spark.stop()
    checksum = f"{sum(p['rows'] for p in points)} {sum(p.pop('sum') for p in points)}"
    return {"engine": setting.engine, "points": points, "checksum": checksum}


def _joined(setting: StreamsSetting, left: Any, right: Any) -> Any:
    from millrace.spark import join_streams

    if setting.engine == "millrace":
        return join_streams(left, right, "key", memory=setting.memory)
    return left.join(right, "key")


def _point(query: Any, before: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one measured point: times and rows, added up over the micro-batches since the last point in ``before``.

    In these micro-batches the query has read one file of each side.
    """
    done = before[-1]["batch"] if before else -1
    mine = [p for p in query.recentProgress if p["batchId"] > done and p["numInputRows"]]
    checks = [p["observedMetrics"]["check"] for p in mine]
    return {
        "batch": mine[-1]["batchId"],
        "seconds": sum(p["batchDuration"] for p in mine) / 1000,
        "rows_in": sum(p["numInputRows"] for p in mine),
        "rows": sum(check["rows"] for check in checks),
        "sum": sum(int(check["sum"] or 0) for check in checks),
    }


class Watch:
    """A context manager that measures a Spark session's memory: Java's heap, its other memory, Python workers."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm
        self._pid = int(self._jvm.java.lang.ProcessHandle.current().pid())
        self._over = threading.Event()
        self._peak = 0
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def python_peak(self) -> int:
        """Return the peak number of bytes of all Python workers together since the last call."""
        peak, self._peak = self._peak, 0
        return peak

    def in_use(self) -> dict[str, int]:
        """Return the bytes of Java's heap in use after a collection, and the bytes of other memory of the Java process.

        The whole heap is resident from the start, so all resident bytes beyond its size are other memory.
        """
        self._jvm.java.lang.System.gc()
        time.sleep(0.1)
        heap = self._jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
        besides = anonymous_bytes(self._pid) - int(heap.getCommitted())
        return {"heap": int(heap.getUsed()), "native": max(0, besides)}

    def _look(self) -> None:
        while not self._over.wait(_EVERY):
            self._peak = max(self._peak, anonymous_below(self._pid, _WORKER))


if __name__ == "__main__":
    main()
