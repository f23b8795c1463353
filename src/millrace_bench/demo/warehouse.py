"""A small active warehouse: TPC-H orders stream in, are joined with their customers, and land in Parquet files.

::

    tpchgen ─► customers ─► build_master ─► customers.store ─┐
       └─────► orders/*.parquet ──────── stream ─────────► enrich ─► warehouse/*.parquet
                                                             └─────► progress.jsonl

The next run continues after any interruption: incomplete data is made again, the query continues from its checkpoint,
and every finished step is recorded in ``result.json``.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from millrace.core.errors import ConfigError, MillraceError
from millrace.core.sizes import parse_size
from millrace.datasets import skewed_orders, tpch
from millrace.master.manifest import is_store
from millrace.master.store import MasterStore
from millrace.spark.build_master import build_master
from millrace.spark.enrich import enrich
from millrace.spark.quiet_session import quiet_spark
from millrace.spark.watch import observed
from millrace_bench.demo.fingerprint import difference, fingerprint

ON = {"o_custkey": "c_custkey"}
COLUMNS = ("c_name", "c_nationkey", "c_acctbal", "c_mktsegment")
"""Customer columns that the warehouse stores with each order."""

LEFT_OUT = "o_comment"
"""The only column of orders that is left out of the warehouse."""

FILES_PER_BATCH = 4
TURNS = 4
WARM, COUNTED = 3, 4
"""Numbers of micro-batches that warm up a join in the comparison, and that are measured afterwards."""

_FOLDERS = ("tpch", "orders", "orders.making", "store", "warehouse", "checkpoint", "comparison", "spark")
_FILES = ("setting.json", "progress.jsonl", "result.json", "report.html", "spark.log")
_NAMES = (*_FOLDERS, *_FILES, *(f".{file}" for file in _FILES))  # an unfinished file has a dot before its name
_ORDERS_AT_SCALE_1 = 1_500_000
_LOOK_SECONDS = 0.2


class WarehouseRowsError(MillraceError):
    """The warehouse's rows differ from those of a batch join."""


@dataclass(frozen=True)
class WarehouseSetting:
    """The sizes and options of a demo. A run that continues a demo must have the demo's setting."""

    scale: float = 6.0
    orders: int = 1_500_000
    skew: float = 1.0
    memory: str = "10%"
    batches: int = 12

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"scale: expected a number above 0; got {self.scale:g}")
        if self.batches < 4:
            raise ConfigError(f"batches: expected at least 4; got {self.batches}")
        if self.orders < self.batches * FILES_PER_BATCH:
            least = self.batches * FILES_PER_BATCH
            raise ConfigError(f"orders: {self.batches} batches need at least {least} orders; got {self.orders}")
        if not self.skew >= 0:
            raise ConfigError(f"skew: expected 0 or more; got {self.skew:g}")
        parse_size(self.memory, of=2**40)


@dataclass(frozen=True)
class WarehouseFolder:
    """The directory of a demo."""

    root: Path

    def __truediv__(self, name: str) -> Path:
        return self.root / name

    @property
    def ours(self) -> list[Path]:
        """Files and folders in the directory that were made by a demo."""
        return [path for path in self.root.iterdir() if path.name in _NAMES] if self.root.exists() else []

    @property
    def foreign(self) -> list[Path]:
        """Files and folders in the directory that were not made by a demo."""
        return [path for path in self.root.iterdir() if path.name not in _NAMES] if self.root.exists() else []

    def clear(self) -> None:
        """Remove the files and folders that a demo has made, and nothing else."""
        for path in self.ours:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@dataclass(frozen=True)
class Moment:
    """Figures of the join at the end of a micro-batch."""

    batch: int
    seconds: float
    arrived: int
    answered: int
    hits: int
    waiting: int
    scanned: int
    wheel: float
    cached_keys: int
    cache_bytes: int
    waiting_bytes: int
    memory_bytes: int

    @staticmethod
    def of(progress: Any) -> Moment | None:
        """Return the figures in a query's progress; None if the join had nothing to do."""
        metrics = next(iter(observed(progress).values()), {})
        if metrics.get("tuples_in") is None:
            return None
        held = ("waiting", "cached_keys", "cache_bytes", "waiting_bytes", "memory_bytes")
        return Moment(
            batch=progress.batchId,
            seconds=max(0.001, progress.batchDuration / 1000),
            arrived=metrics["tuples_in"],
            answered=metrics["rows_out"] + metrics["unmatched"],
            hits=metrics["cache_hits"],
            scanned=metrics["scanned_rows"],
            wheel=metrics["wheel"],
            **{name: metrics[name] for name in held},
        )

    @property
    def arrival_rate(self) -> float:
        """Orders taken in per second."""
        return self.arrived / self.seconds

    @property
    def service_rate(self) -> float:
        """Orders answered per second."""
        return self.answered / self.seconds

    @property
    def hit_rate(self) -> float:
        """Share of the arrived orders that the cache answered."""
        return self.hits / self.arrived if self.arrived else 0.0

    @property
    def rest_bytes(self) -> int:
        """Bytes of the join's peak memory that neither the cache nor waiting orders take."""
        return max(0, self.memory_bytes - self.cache_bytes - self.waiting_bytes)


@dataclass(frozen=True)
class SparkComparison:
    """Seconds per micro-batch with Millrace and with Spark's own join, for the same orders and a no-op sink."""

    rows: int
    millrace: list[float]
    spark: list[float]
    plan: str
    """The join that Spark chose, in words, such as "BroadcastHashJoin that holds the orders"."""

    @property
    def medians(self) -> tuple[float, float]:
        """Median seconds per micro-batch, of Millrace and of Spark's own join."""
        return median(self.millrace), median(self.spark)


@dataclass
class Result:
    """The demo's results so far; ``seconds`` holds the time that each step has taken, by the step's name."""

    customers: int = 0
    orders: int = 0
    master_bytes: int = 0
    budget: int = 0
    enriched: bool = False
    checked_rows: int | None = None
    fingerprint: str = ""
    comparison: SparkComparison | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Result:
        """Return the result that a file holds; an empty result if there is no file."""
        if not path.exists():
            return Result()
        found = json.loads(path.read_text())
        compared = found.pop("comparison")
        return Result(**found, comparison=None if compared is None else SparkComparison(**compared))


class Warehouse:
    """The demo's job in one directory: make data, build the master, enrich, check, compare."""

    def __init__(self, root: Path, setting: WarehouseSetting) -> None:
        self.place = WarehouseFolder(Path(root).absolute())
        self.setting = setting
        self.result = Result.read(self.place / "result.json")

    def claim(self, fresh: bool = False) -> None:
        """Reserve the directory for the demo; raise ConfigError if it holds other files or a demo with another setting.

        With ``fresh``, the files of an earlier demo are removed first, whatever its setting.
        """
        root, known = self.place.root, self.place / "setting.json"
        if known.exists() and fresh:
            self.place.clear()
            self.result = Result()
        elif known.exists():
            found = json.loads(known.read_text())
            for name, value in asdict(self.setting).items():
                if found.get(name) != value:
                    raise ConfigError(
                        f"{root}: holds a demo with --{name} {found.get(name)}; got --{name} {value}. "
                        "--fresh starts over, and --directory chooses another directory"
                    )
            return
        elif self.place.foreign:
            raise ConfigError(
                f"{root}: expected an empty directory or one of an earlier demo; it holds {self.place.foreign[0].name}"
            )
        root.mkdir(parents=True, exist_ok=True)
        _write(known, json.dumps(asdict(self.setting)))

    @property
    def finished(self) -> bool:
        """Whether every step of the demo has been run."""
        return self.result.comparison is not None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the block as a step; at its end, write the step's seconds and all results so far to ``result.json``."""
        began = time.perf_counter()
        yield
        seconds = self.result.seconds
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
        _write(self.place / "result.json", json.dumps(asdict(self.result), indent=2))

    def spark(self) -> AbstractContextManager[SparkSession]:
        """Return a context manager for a Spark session on this machine, with one core for every shard."""
        store = self.place / "store"
        cores = MasterStore.open(store).shards if is_store(store) else min(4, max(2, os.cpu_count() or 2))
        return quiet_spark("millrace-demo", cores, self.place / "spark", self.place / "spark.log")

    # data

    def make_data(self, done: Callable[[int], None] = lambda rows: None) -> None:
        """Write customers and orders as Parquet files, if they are missing."""
        customers = tpch("customer", self.setting.scale, self.place / "tpch")
        self.result.customers = pq.read_metadata(customers).num_rows
        folder, making = self.place / "orders", self.place / "orders.making"
        if not folder.exists():
            shutil.rmtree(making, ignore_errors=True)
            try:
                making.mkdir()
                table = tpch("orders", self.setting.orders / _ORDERS_AT_SCALE_1, self.place / "tpch")
                files = self.setting.batches * FILES_PER_BATCH
                rows = -(-pq.read_metadata(table).num_rows // files)
                written = 0
                for number, part in enumerate(
                    _in_pieces(skewed_orders(table, self.result.customers, self.setting.skew, seed=1), rows)
                ):
                    pq.write_table(part, making / f"{number:04d}.parquet", compression="lz4")
                    written += len(part)
                    done(written)
                table.unlink()
                making.rename(folder)
            finally:
                shutil.rmtree(making, ignore_errors=True)
        self.result.orders = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))

    def build(self, spark: SparkSession) -> MasterStore:
        """Build the customers' master store, one shard for every core, if it is missing."""
        path = self.place / "store"
        if not is_store(path):
            build_master(self._customers(spark), path, "c_custkey", shards=spark.sparkContext.defaultParallelism)
        store = MasterStore.open(path)
        self.result.master_bytes = store.nbytes
        self.result.budget = parse_size(self.setting.memory, of=store.nbytes)
        return store

    def _customers(self, spark: SparkSession) -> DataFrame:
        return spark.read.parquet(str(tpch("customer", self.setting.scale, self.place / "tpch")))

    def _orders(self, spark: SparkSession) -> DataFrame:
        return spark.read.parquet(str(self.place / "orders"))

    def _arriving(self, spark: SparkSession) -> DataFrame:
        """Return the orders as a stream of ``FILES_PER_BATCH`` files per micro-batch."""
        reader = spark.readStream.schema(self._orders(spark).schema).option("maxFilesPerTrigger", FILES_PER_BATCH)
        return reader.parquet(str(self.place / "orders"))

    def _enriched(self, spark: SparkSession, pending: str) -> DataFrame:
        return enrich(
            self._arriving(spark),
            self.place / "store",
            ON,
            algorithm="ssbj",  # to show its cache and its wheel; with the index no order would wait
            memory=self.result.budget,
            pending=pending,
            turns=TURNS,
            columns=COLUMNS,
            name="millrace customers",
        )

    def _joined(self, spark: SparkSession, orders: DataFrame) -> DataFrame:
        """Return orders joined with their customers by Spark's own join: the rows that ``_enriched`` should return."""
        customers = self._customers(spark).select("c_custkey", *COLUMNS)
        return orders.join(customers, F.col("o_custkey") == F.col("c_custkey")).drop("c_custkey")

    # the query

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query, or continue it from its checkpoint."""
        writer = self._enriched(spark, "carry").writeStream.format("parquet").queryName("warehouse")
        writer = writer.option("checkpointLocation", str(self.place / "checkpoint"))
        return writer.start(str(self.place / "warehouse"))

    def follow(self, query: StreamingQuery) -> Iterator[Moment | None]:
        """Yield the figures of each micro-batch until all orders are answered, and None while there is nothing new.

        The last micro-batch takes in no new orders, and no order waits after it.
        """
        with (self.place / "progress.jsonl").open("a") as log:
            for progress in _micro_batches(query):
                moment = None if progress is None else Moment.of(progress)
                if moment is not None:
                    log.write(json.dumps(asdict(moment)) + "\n")
                    log.flush()
                yield moment
                if progress is not None and not progress.numInputRows and not (moment and moment.waiting):
                    self.result.enriched = True
                    return

    def moments(self) -> list[Moment]:
        """Return the figures of all micro-batches so far, also of earlier runs."""
        found: dict[int, Moment] = {}
        path = self.place / "progress.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                moment = Moment(**json.loads(line))
            except ValueError:
                continue  # the last line is incomplete
            found[moment.batch] = moment
        return [found[batch] for batch in sorted(found)]

    # afterwards

    def check(self, spark: SparkSession) -> None:
        """Compare all rows of the warehouse with a batch join by Spark; raise WarehouseRowsError if they differ."""
        expected = self._joined(spark, self._orders(spark))
        found = spark.read.parquet(str(self.place / "warehouse")).select(*expected.columns)
        right, ours = fingerprint(expected), fingerprint(found)
        if ours != right:
            raise WarehouseRowsError(f"warehouse: {difference(found, expected)}")
        self.result.checked_rows, self.result.fingerprint = right[0], f"{right[1]:x}-{right[2]:x}"

    def compare(self, spark: SparkSession, check_interrupt: Callable[[], None] = lambda: None) -> None:
        """Time some micro-batches of Spark's own join, then of Millrace, and call ``check_interrupt`` in between.

        Spark's own join outputs each order in the micro-batch in which it arrives, so Millrace runs with
        ``pending="drain"`` here, which does the same.
        """
        own, plan = self._timed(self._joined(spark, self._arriving(spark)), check_interrupt)
        ours, _ = self._timed(self._enriched(spark, "drain"), check_interrupt)
        rows = -(-self.result.orders // self.setting.batches)
        self.result.comparison = SparkComparison(rows, ours, own, _kind_of_join(plan))

    def _timed(self, out: DataFrame, check_interrupt: Callable[[], None]) -> tuple[list[float], str]:
        """Run a query; return the seconds of each micro-batch after the warm-up, and Spark's plan as text."""
        warm = min(WARM, self.setting.batches // 2)
        wanted = min(warm + COUNTED, self.setting.batches)
        checkpoint = self.place / "comparison"
        shutil.rmtree(checkpoint, ignore_errors=True)
        query = out.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        seconds: list[float] = []
        try:
            for progress in _micro_batches(query):
                check_interrupt()
                if progress is not None and progress.numInputRows:
                    seconds.append(progress.batchDuration / 1000)
                if len(seconds) == wanted:
                    break
            with redirect_stdout(io.StringIO()) as plan:
                query.explain()
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)
        return seconds[warm:], plan.getvalue()


def _micro_batches(query: StreamingQuery) -> Iterator[Any]:
    """Yield the progress of every micro-batch that is over, and None while there is nothing new."""
    last = -1
    while True:
        error = query.exception()
        if error is not None:
            raise error
        active = query.isActive
        for progress in query.recentProgress:
            if progress.batchId > last and "addBatch" in progress.durationMs:
                last = progress.batchId
                yield progress
        if not active:
            raise MillraceError("warehouse: the query stopped before all orders were answered; run the demo again")
        yield None
        time.sleep(_LOOK_SECONDS)


def _in_pieces(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Yield tables of ``rows`` rows, or fewer in the last one, without the column ``LEFT_OUT``."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        batch = batch.drop_columns([LEFT_OUT])
        while count + len(batch) >= rows:
            cut = rows - count
            yield pa.Table.from_batches([*held, batch.slice(0, cut)])
            batch, held, count = batch.slice(cut), [], 0
        if len(batch):
            held.append(batch)
            count += len(batch)
    if held:
        yield pa.Table.from_batches(held)


def _write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    unfinished = path.with_name(f".{path.name}")
    try:
        unfinished.write_text(text)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _kind_of_join(plan: str) -> str:
    """Return the name of the join in Spark's plan, with the input that it holds in memory.

    >>> _kind_of_join("+- BroadcastHashJoin [o_custkey#1L], [c_custkey#2L], Inner, BuildLeft, false")
    'BroadcastHashJoin that holds the orders'
    """
    found = re.search(r"(\w+Join)\b([^\n]*)", plan)
    if not found:
        return "join"
    built = {"BuildLeft": " that holds the orders", "BuildRight": " that holds the customers"}
    return found[1] + next((words for side, words in built.items() if side in found[2]), "")
