"""Run one measurement in a process of its own and print JSON.

Run as ``python -m millrace_bench.benchmarks.join_worker '{"engine": "ssbj", …}'``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.datasets import zipf_stream
from millrace.semistream.join import SemiStreamJoin
from millrace_bench.engines.batch_engine import made_once
from millrace_bench.shared import data
from millrace_bench.shared.memory import PeakMemory
from millrace_bench.shared.row_checksum import RowChecksum


@dataclass
class JoinSetting:
    """One measurement in a process of its own: the engine, the master, the stream and the memory."""

    engine: str
    directory: str
    master_rows: int
    tuples: int
    batch_rows: int
    skew: float = 1.0
    memory: str | int = "1%"
    unique: bool = True
    check: bool = False
    """Whether to compute the checksum of the output. This takes time, so the rates of such a run are not used."""
    options: dict[str, Any] | None = None


@dataclass
class Measurement:
    """The result of measuring a setting. Rates are in stream tuples per second, memory and budgets in bytes."""

    setting: JoinSetting
    seconds: float = 0.0
    rate: float = 0.0
    steady_rate: float = 0.0
    """Rate over the second half of the stream."""
    rows_out: int = 0
    checksum: str = ""
    memory_growth: int = 0
    budget: int = 0
    peak_ledger: int = 0
    hit_rate: float = 0.0
    cycles: float = 0.0
    metrics: dict[str, Any] | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def measure(setting: JoinSetting) -> Measurement:
    """Measure one setting in this process."""
    engine = _duckdb if setting.engine == "duckdb" else _millrace
    return engine(setting)


def _millrace(setting: JoinSetting) -> Measurement:
    directory = Path(setting.directory)
    store = data.master(directory, setting.master_rows, unique=setting.unique)
    options = {"algorithm": setting.engine, **(setting.options or {})}
    warm = SemiStreamJoin(store, on="key", memory=max(400_000, store.nbytes // 2000), **options)
    for batch in zipf_stream(setting.master_rows, setting.skew, batch_rows=20_000, batches=3, seed=3):
        for _ in warm.push(batch):
            continue
    for _ in range(2 * warm.k):
        for _ in warm.step():
            continue
    del warm
    join = SemiStreamJoin(store, on="key", memory=setting.memory, **options)
    result = _run(setting, lambda batch: join.push(batch), join.finish)
    m = join.metrics
    result.budget, result.peak_ledger = m.budget_bytes, m.peak_bytes
    result.hit_rate, result.cycles = m.hit_rate, m.cycles
    result.metrics = m.as_dict()
    return result


def _duckdb(setting: JoinSetting) -> Measurement:
    import duckdb

    directory = Path(setting.directory)

    def write(path: Path) -> None:
        rows = data.master(directory, setting.master_rows, unique=setting.unique).to_table()
        with duckdb.connect(str(path)) as database:
            database.register("rows", rows)
            database.sql("CREATE TABLE master AS SELECT * FROM rows")

    path = made_once(directory / f"duck-{setting.master_rows}{'' if setting.unique else '-repeats'}.db", write)
    connection = duckdb.connect(str(path), read_only=True)
    for statement in ("SET threads = 2", "SET memory_limit = '256MB'", "SET preserve_insertion_order = false"):
        connection.execute(statement).fetchall()
    query = "SELECT batch.*, master.* EXCLUDE (key) FROM batch JOIN master USING (key)"

    def join(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        connection.register("batch", pa.Table.from_batches([batch]))
        yield from connection.sql(query).to_arrow_table().to_batches()

    for batch in zipf_stream(setting.master_rows, setting.skew, batch_rows=setting.batch_rows, batches=2, seed=3):
        for _ in join(batch):
            continue
    return _run(setting, join, lambda: iter(()))


def _run(
    setting: JoinSetting,
    push: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]],
    finish: Callable[[], Iterator[pa.RecordBatch]],
) -> Measurement:
    path = data.stream(Path(setting.directory), setting.master_rows, setting.skew, setting.tuples, setting.batch_rows)
    stream = data.open_stream(path)
    result = Measurement(setting)
    checksum = RowChecksum()
    rows, half = 0, 0.0
    with PeakMemory() as memory:
        start = time.perf_counter()
        for i in range(stream.num_record_batches):
            if i == stream.num_record_batches // 2:
                half = time.perf_counter()
            for out in push(stream.get_batch(i)):
                rows += len(out)
                if setting.check:
                    checksum.add(out)
        end = time.perf_counter()
        for out in finish():
            rows += len(out)
            if setting.check:
                checksum.add(out)
        result.seconds = time.perf_counter() - start
    result.rows_out, result.checksum = rows, str(checksum)
    result.rate = setting.tuples / result.seconds
    later = stream.num_record_batches - stream.num_record_batches // 2
    result.steady_rate = later * setting.batch_rows / (end - half)
    result.memory_growth = memory.growth
    return result


if __name__ == "__main__":
    print(measure(JoinSetting(**json.loads(sys.argv[1]))).to_json())
