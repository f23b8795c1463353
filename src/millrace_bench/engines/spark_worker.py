"""Run one engine on Spark in a process of its own: read settings as JSON lines, and write a line of figures for each.

All settings of an engine share a Spark session. A second setting for the same stream continues its query.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.spark.pipeline.pipeline import readable
from millrace.spark.session import JAVA
from millrace_bench.engines.batch_engine import MasterFiles
from millrace_bench.engines.pandas_engine import Pandas
from millrace_bench.engines.spark_inputs import master_path, store_path, stream_path
from millrace_bench.shared.memory import PeakMemory, tree_anonymous_bytes

WARM = 3
"""Number of micro-batches that are never measured, at the start of a query."""

_LOOK_SECONDS = 0.25
_BROADCAST = 256 << 20
_JAVA = f"-XX:+UseParallelGC {JAVA}"


@dataclass
class SparkSetting:
    """One measurement: the engine, its master and stream, and how many micro-batches to measure."""

    engine: str
    directory: str
    master_rows: int
    batch_rows: int
    batches: int
    memory: str = "256MB"
    skew: float = 1.0
    hot: float = 0.0
    warm_seconds: float = 30.0
    """Least number of seconds before the first measured micro-batch; Java is still compiling in this time."""
    warm_batches: int = WARM
    most_seconds: float = math.inf
    """Seconds after which the measurement ends; if the engine is not warm then, only the last micro-batch is used."""
    check: bool = True
    heap: str = "6g"
    partitions: int = 2
    """Number of partitions of a shuffle."""


def main() -> None:
    """Read settings from standard input, measure each, and write its figures to standard output."""
    engine: SparkEngine | None = None
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Spark and Java print to standard output too
    with PeakMemory(every=0.1, of=tree_anonymous_bytes) as memory, tempfile.TemporaryDirectory() as place:
        for line in sys.stdin:
            setting = SparkSetting(**json.loads(line))
            try:
                engine = engine or SparkEngine(setting, Path(place))
                found = engine.measured(setting) | {"memory_growth": memory.growth}
            except Exception as error:
                traceback.print_exc()
                sys.exit(readable(error))  # the last line of the error output is the message
            print(json.dumps(found), file=replies, flush=True)
        if engine is not None:
            engine.spark.stop()


class SparkEngine:
    """A Spark session with one engine; ``place`` is the folder for the checkpoints of its queries."""

    def __init__(self, setting: SparkSetting, place: Path) -> None:
        from millrace.spark import session

        options: dict[str, object] = {
            "spark__sql__shuffle__partitions": setting.partitions,
            "spark__driver__memory": setting.heap,
            "spark__driver__extraJavaOptions": _JAVA,
            "spark__sql__streaming__numRecentProgressUpdates": 10_000,
            "spark__sql__execution__arrow__pyspark__enabled": True,
        }
        if setting.engine.startswith("spark"):  # Spark's default of 10 MB is too little for some micro-batches
            broadcast = -1 if setting.engine == "spark-sort-merge" else _BROADCAST
            options["spark__sql__autoBroadcastJoinThreshold"] = broadcast
        self.spark = session("bench", master="local[2]", **options)
        self.spark.sparkContext.setLogLevel("OFF")
        self._frames = _frames(setting) if setting.engine.startswith("pandas") else None
        if setting.engine == "spark-cached":  # cache all of it before the measurement
            _master(setting, self.spark).count()
        self._place = place

    def measured(self, setting: SparkSetting) -> dict[str, Any]:
        """Run the query of a setting; return the measured micro-batches' seconds, a checksum, and other figures."""
        from pyspark.sql import functions as F

        from millrace.spark.watch import observed

        folder = stream_path(
            Path(setting.directory), setting.master_rows, setting.batch_rows, setting.skew, setting.hot
        )
        schema = self.spark.read.parquet(str(folder)).schema
        mine = self._place / folder.name
        jvm = self.spark.sparkContext._jvm
        assert jvm is not None
        jvm.System.gc()  # removes the previous query's shuffle files
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 2)
        stream = reader.parquet(str(_endless_folder(folder, mine / "in")))
        if self._frames is not None:
            progress = _settled_batches(
                stream.writeStream.foreachBatch(_merge_with(self._frames)), setting, mine / "state"
            )
            return {
                "durations": _durations(progress),
                "checksum": self._pandas_checksum(folder) if setting.check else "",
            }
        count = F.count(F.lit(1)).alias("rows")
        out = _engine(setting, self.spark, stream)
        progress = _settled_batches(out.observe("check", count).writeStream.format("noop"), setting, mine / "state")
        found = {
            "durations": _durations(progress),
            "rows": sum(p["observedMetrics"]["check"]["rows"] for p in progress),
            "checksum": "",
        }
        joined = [m for p in progress for m in observed(p).values() if m["tuples_in"]]
        if joined:
            found["join_ms"] = sum(m["join_ms"] for m in joined) / len(joined) / 2
            found["last"] = joined[-1]
        if setting.check and setting.engine in (
            "spark",
            "spark-cached",
            "spark-sort-merge",
            "drain",
            "carry",
            "lookup",
        ):
            first = self.spark.readStream.schema(schema).parquet(str(folder / "000[01].parquet"))
            once = _engine(setting, self.spark, first)
            total = F.sum(F.xxhash64(*sorted(once.columns)).cast("decimal(38,0)")).alias("sum")
            with tempfile.TemporaryDirectory(dir=self._place) as state:
                sums = [
                    p["observedMetrics"].get("check") for p in _all_batches(once.observe("check", count, total), state)
                ]
            sums = [one for one in sums if one]
            found["checksum"] = f"{sum(one['rows'] for one in sums)} {sum(one['sum'] or 0 for one in sums)}"
        return found

    def _pandas_checksum(self, folder: Path) -> str:
        """Return, as text, how many rows pandas returns for the first micro-batch, and the sum of their hashes."""
        from pyspark.sql import functions as F

        assert self._frames is not None
        first = self.spark.read.parquet(*(str(folder / f"000{i}.parquet") for i in (0, 1))).toPandas()
        rows = pa.Table.from_pandas(self._frames.frame(first), preserve_index=False)
        hashed = self.spark.createDataFrame(rows).select(F.xxhash64(*sorted(rows.column_names)).alias("hash"))
        total = hashed.agg(F.sum(F.col("hash").cast("decimal(38,0)"))).first()
        assert total is not None
        return f"{len(rows)} {total[0]}"


def _frames(setting: SparkSetting) -> Pandas:
    """Return a pandas engine that has opened the master, to join in Spark's driver."""
    frames = Pandas(MasterFiles(Path(setting.directory), setting.master_rows), merge=setting.engine == "pandas-merge")
    frames.open()
    return frames


def _merge_with(frames: Pandas) -> Callable[[Any, int], None]:
    def run(batch: Any, _: int) -> None:
        frames.frame(batch.toPandas())

    return run


def _durations(progress: Sequence[Any]) -> list[float]:
    return [p["batchDuration"] / 1000 for p in progress]


def _engine(setting: SparkSetting, spark: Any, stream: Any) -> Any:
    from pyspark.sql import functions as F

    from millrace.spark import enrich

    directory, rows, name = Path(setting.directory), setting.master_rows, setting.engine
    whole, sharded = (store_path(directory, rows, shards) for shards in (1, 2))
    if name.startswith("spark"):
        return stream.join(_master(setting, spark), "key")
    if name == "source":
        return stream
    if name == "narrow":
        return stream.mapInArrow(_unchanged, stream.schema)
    if name == "shuffle":
        return stream.repartitionById(2, F.expr("cast(pmod(key, 2) as int)")).mapInArrow(_unchanged, stream.schema)
    if name == "identity":
        target = enrich(stream, whole, "key").schema
        return stream.mapInArrow(_widened(str(whole)), target)
    if name == "drain":
        return enrich(stream, whole, "key", memory=setting.memory, algorithm="ssbj")
    if name == "lookup":
        return enrich(stream, whole, "key", memory=setting.memory, algorithm="lookup")
    if name == "carry":
        return enrich(stream, sharded, "key", memory=setting.memory, algorithm="ssbj", pending="carry")
    raise ValueError(f"engine: expected the name of an engine on Spark; got {name!r}")


def _master(setting: SparkSetting, spark: Any) -> Any:

    master = spark.read.parquet(str(master_path(Path(setting.directory), setting.master_rows)))
    return master.cache() if setting.engine == "spark-cached" else master


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _widened(store: str) -> Any:
    """Return a function that adds the master's columns to batches without joining.

    The values come from unrelated rows. They take about as many bytes as the values that a join would add.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from millrace.master.store import MasterStore

        page = MasterStore.open(store).mapped(0).page(0)
        columns = page.columns[1:]
        for batch in batches:
            arrays = [*batch.columns, *(column.slice(0, len(batch)) for column in columns)]
            yield pa.RecordBatch.from_arrays(arrays, [*batch.schema.names, *page.schema.names[1:]])

    return run


def _endless_folder(folder: Path, place: Path) -> Path:
    """Fill the folder ``place`` with links to the files of ``folder``, each linked many times; return ``place``.

    There are more links than any run reads.
    """
    if not place.exists():
        place.mkdir(parents=True)
        files = sorted(folder.resolve().glob("*.parquet"))
        for number in range(2_000):
            (place / f"{number:04d}.parquet").symlink_to(files[number % len(files)])
    return place


def _settled_batches(writer: Any, setting: SparkSetting, checkpoint: Path) -> list[Any]:
    """Run a query until it is warm, and measure micro-batches; return the progress of the measured ones."""
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    began, first = time.perf_counter(), -1
    warm: int | None = None  # number of micro-batches before the first measured one
    try:
        while True:
            if query.awaitTermination(_LOOK_SECONDS):
                raise query.exception() or RuntimeError(f"{setting.engine}: the query ended before it was measured")
            last, spent = query.lastProgress, time.perf_counter() - began
            if last is not None and first < 0:
                first = query.recentProgress[0]["batchId"]
            done = 0 if last is None else last["batchId"] + 1 - first
            late = spent >= setting.most_seconds and done > 0
            if warm is None and done >= setting.warm_batches and spent >= setting.warm_seconds:
                warm = done
            if late or (warm is not None and done >= warm + setting.batches):
                counted = first + (done - 1 if warm is None else min(warm, done - 1))
                return [p for p in query.recentProgress if p["numInputRows"] and p["batchId"] >= counted]
    finally:
        query.stop()


def _all_batches(out: Any, checkpoint: str) -> list[Any]:
    """Run a query until it has taken in its input and no tuple waits; return the progress of all micro-batches."""
    query = out.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        while True:
            if query.awaitTermination(_LOOK_SECONDS):
                raise query.exception() or RuntimeError("checksum: the query ended before all joined rows were out")
            progress = query.recentProgress
            if any(p["numInputRows"] for p in progress) and not _waiting(progress):
                return list(progress)
    finally:
        query.stop()


def _waiting(progress: list[Any]) -> bool:
    from millrace.spark.watch import observed

    last: Any = None
    for p in progress:
        for m in observed(p).values():
            last = last if m["waiting"] is None else m["waiting"]
    return bool(last)


if __name__ == "__main__":
    main()
