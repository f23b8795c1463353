"""One engine on Spark in a process of its own: ``python -m millrace.bench.spark_worker '{…}'`` prints JSON.

Given a list of settings of one engine, it measures one after the other in the same Spark and prints a list.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.bench.memory import PeakMemory, tree_anonymous_bytes
from millrace.bench.rivals.on_pandas import Pandas
from millrace.bench.rivals.rival import Place
from millrace.spark.session import JAVA

WARM = 3
"""Micro-batches that are never counted."""

_LOOK_SECONDS = 0.25
_JAVA = f"-XX:+UseParallelGC {JAVA}"


@dataclass
class SparkSetting:
    """What one process measures."""

    engine: str
    directory: str
    master_rows: int
    batch_rows: int
    batches: int
    memory: str = "256MB"
    skew: float = 1.0
    hot: float = 0.0
    warm_seconds: float = 30.0
    """Time until a micro-batch counts: what Java compiles while a query is young is not what a query costs."""
    warm_batches: int = WARM
    most_seconds: float = math.inf
    """After this time, what micro-batches there are have to do, warm or not."""
    check: bool = True


def main() -> None:
    asked = json.loads(sys.argv[1])
    if isinstance(asked, list):
        print(json.dumps(several([SparkSetting(**one) for one in asked])))
    else:
        print(json.dumps(several([SparkSetting(**asked)])[0]))


def several(settings: Sequence[SparkSetting]) -> list[dict[str, Any]]:
    """Measure settings of one engine and one master, in one Spark."""
    from millrace.spark import session

    engine = settings[0].engine
    options: dict[str, object] = {
        "spark__sql__shuffle__partitions": 2,
        "spark__driver__memory": "6g",
        "spark__driver__extraJavaOptions": _JAVA,
        "spark__sql__streaming__numRecentProgressUpdates": 10_000,
        "spark__sql__execution__arrow__pyspark__enabled": True,
    }
    if engine == "spark-sort-merge":
        options["spark__sql__autoBroadcastJoinThreshold"] = -1
    with PeakMemory(every=0.1, of=tree_anonymous_bytes) as memory:
        spark = session("bench", master="local[2]", **options)
        spark.sparkContext.setLogLevel("OFF")
        frames = _frames(settings[0]) if engine.startswith("pandas") else None
        found = [measured(setting, spark, frames) for setting in settings]
        spark.stop()
    return [{**one, "memory_growth": memory.growth} for one in found]


def measured(setting: SparkSetting, spark: Any, frames: Pandas | None) -> dict[str, Any]:
    from pyspark.sql import functions as F

    from millrace.bench import spark as inputs
    from millrace.spark.watch import observed

    directory = Path(setting.directory)
    folder = inputs.stream_path(directory, setting.master_rows, setting.batch_rows, setting.skew, setting.hot)
    schema = spark.read.parquet(str(folder)).schema
    with tempfile.TemporaryDirectory() as place:
        endless = _endless(folder, Path(place, "in"))
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(endless))
        if frames is not None:
            progress = _steady(stream.writeStream.foreachBatch(_merging(frames)), setting, Path(place, "a"))
            found: dict[str, Any] = {"durations": _durations(progress), "checksum": ""}
            if setting.check:
                first = spark.read.parquet(*(str(folder / f"000{i}.parquet") for i in (0, 1))).toPandas()
                rows = pa.Table.from_pandas(frames.frame(first), preserve_index=False)
                hashed = spark.createDataFrame(rows).select(F.xxhash64(*sorted(rows.column_names)).alias("hash"))
                total = hashed.agg(F.sum(F.col("hash").cast("decimal(38,0)"))).first()[0]
                found["checksum"] = f"{len(rows)} {total}"
            return found
        out = _engine(setting, spark, stream)
        count, total = F.count(F.lit(1)).alias("rows"), F.sum(F.xxhash64(*sorted(out.columns)).cast("decimal(38,0)"))
        progress = _steady(out.observe("check", count).writeStream.format("noop"), setting, Path(place, "a"))
        found = {
            "durations": _durations(progress),
            "rows": sum(p["observedMetrics"]["check"]["rows"] for p in progress),
            "checksum": "",
        }
        mine = [m for p in progress for m in observed(p).values() if m["tuples_in"]]
        if mine:
            found["join_ms"] = sum(m["join_ms"] for m in mine) / len(mine) / 2
            found["last"] = mine[-1]
        if setting.check and setting.engine in ("spark", "spark-sort-merge", "drain", "carry", "lookup"):
            first = spark.readStream.schema(schema).parquet(str(folder / "000[01].parquet"))
            checked = _engine(setting, spark, first).observe("check", count, total.alias("sum"))
            progress = _complete(checked, Path(place, "b"))
            sums = [p["observedMetrics"]["check"] for p in progress if p["observedMetrics"]]
            found["checksum"] = f"{sum(s['rows'] for s in sums)} {sum(s['sum'] or 0 for s in sums)}"
    return found


def _frames(setting: SparkSetting) -> Pandas:
    """The master as a pandas frame in the driver."""
    frames = Pandas(Place(Path(setting.directory), setting.master_rows), merge=setting.engine == "pandas-merge")
    frames.open()
    return frames


def _merging(frames: Pandas) -> Callable[[Any, int], None]:
    def run(batch: Any, _: int) -> None:
        frames.frame(batch.toPandas())

    return run


def _durations(progress: Sequence[Any]) -> list[float]:
    return [p["batchDuration"] / 1000 for p in progress]


def _engine(setting: SparkSetting, spark: Any, stream: Any) -> Any:
    from pyspark.sql import functions as F

    from millrace.bench import spark as inputs
    from millrace.spark import enrich

    directory, rows, name = Path(setting.directory), setting.master_rows, setting.engine
    whole, sharded = (inputs.store_path(directory, rows, shards) for shards in (1, 2))
    if name.startswith("spark"):
        return stream.join(spark.read.parquet(str(inputs.master_path(directory, rows))), "key")
    if name == "source":
        return stream
    if name == "narrow":
        return stream.mapInArrow(_same, stream.schema)
    if name == "shuffle":
        return stream.repartitionById(2, F.expr("cast(pmod(key, 2) as int)")).mapInArrow(_same, stream.schema)
    if name == "identity":
        target = enrich(stream, whole, "key").schema
        return stream.mapInArrow(_widened(str(whole)), target)
    if name == "drain":
        return enrich(stream, whole, "key", memory=setting.memory, algorithm="ssbj")
    if name == "lookup":
        return enrich(stream, whole, "key", memory=setting.memory, algorithm="lookup")
    if name == "carry":
        return enrich(stream, sharded, "key", memory=setting.memory, algorithm="ssbj", pending="carry")
    raise ValueError(name)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _widened(store: str) -> Any:
    """The stream's rows with as many bytes of master columns beside them, of any rows."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from millrace.master.store import MasterStore

        page = MasterStore.open(store).mapped(0).page(0)
        columns = page.columns[1:]
        for batch in batches:
            arrays = [*batch.columns, *(column.slice(0, len(batch)) for column in columns)]
            yield pa.RecordBatch.from_arrays(arrays, [*batch.schema.names, *page.schema.names[1:]])

    return run


def _endless(folder: Path, place: Path) -> Path:
    """A folder with the same files over and over, more than anybody will read."""
    place.mkdir()
    files = sorted(folder.resolve().glob("*.parquet"))
    for number in range(1_000):
        (place / f"{number:04d}.parquet").symlink_to(files[number % len(files)])
    return place


def _steady(writer: Any, setting: SparkSetting, checkpoint: Path) -> list[Any]:
    """Run a query until it is warm and as many micro-batches have passed as were asked for; these."""
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    began, warm = time.perf_counter(), 0
    try:
        while True:
            if query.awaitTermination(_LOOK_SECONDS):
                raise query.exception() or RuntimeError("the query has ended")
            last, spent = query.lastProgress, time.perf_counter() - began
            done = 0 if last is None else last["batchId"] + 1
            late = spent >= setting.most_seconds and done > 0
            if not warm and done >= setting.warm_batches and spent >= setting.warm_seconds:
                warm = done
            if late or (warm and done >= warm + setting.batches):
                counted = warm if warm < done else done - 1
                return [p for p in query.recentProgress if p["numInputRows"] and p["batchId"] >= counted]
    finally:
        query.stop()


def _complete(out: Any, checkpoint: Path) -> list[Any]:
    """Run a query over one micro-batch with input, and until nobody waits."""
    query = out.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        while True:
            if query.awaitTermination(_LOOK_SECONDS):
                raise query.exception() or RuntimeError("the query has ended")
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
