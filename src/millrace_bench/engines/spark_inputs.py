"""Masters and streams for the engines on Spark: folders of Parquet files, and stores."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.datasets import synthetic_master, zipf_stream
from millrace.master.store import MasterStore
from millrace_bench.shared import data

_FILE_ROWS = 2_500_000


def master_path(directory: Path, rows: int) -> Path:
    """Return the folder of the master's Parquet files."""
    return directory / f"spark-master-{rows}.parquet"


def store_path(directory: Path, rows: int, shards: int) -> Path:
    """Return the path of the master's store. The store with one shard is shared with other benchmarks."""
    return directory / (f"master-{rows}" if shards == 1 else f"spark-master-{rows}-{shards}.store")


def stream_path(directory: Path, rows: int, batch: int, skew: float, hot: float) -> Path:
    """Return the folder of the stream's Parquet files."""
    return directory / f"spark-stream-{rows}-{batch}-{skew:g}-{hot:g}"


def prepare_master(directory: Path, rows: int, shards: tuple[int, ...] = (1, 2)) -> None:
    """Write the master as a folder of Parquet files, and build a store for each number of shards, where missing."""
    folder = master_path(directory, rows)
    if not folder.exists():
        with data.new_folder(folder) as unfinished:
            _write_master(unfinished, rows)
    for count in shards:
        if count == 1:
            data.master(directory, rows)
        elif not store_path(directory, rows, count).exists():
            MasterStore.build(str(folder), store_path(directory, rows, count), key="key", shards=count)


def _write_master(folder: Path, rows: int) -> None:
    reader = synthetic_master(rows)
    number = written = 0
    writer = pq.ParquetWriter(folder / "0000.parquet", reader.schema)
    try:
        for batch in reader:
            if written >= _FILE_ROWS:
                writer.close()
                number, written = number + 1, 0
                writer = pq.ParquetWriter(folder / f"{number:04d}.parquet", reader.schema)
            writer.write_batch(batch)
            written += len(batch)
    finally:
        writer.close()


def prepare_stream(directory: Path, rows: int, batch: int, count: int, skew: float, hot: float) -> None:
    """Write a stream as two Parquet files per micro-batch, if missing; a share ``hot`` of tuples has the same key."""
    folder = stream_path(directory, rows, batch, skew, hot)
    if folder.exists() and len(list(folder.glob("*.parquet"))) >= 2 * count:
        return
    with data.new_folder(folder) as unfinished:
        for number, part in enumerate(zipf_stream(rows, skew, batch_rows=batch // 2, batches=2 * count, seed=11)):
            table = pa.Table.from_batches([part])
            if hot:
                keys = table["key"].to_numpy().copy()
                keys[: int(hot * len(keys))] = 12_345
                table = table.set_column(table.column_names.index("key"), "key", pa.array(keys))
            pq.write_table(table, unfinished / f"{number:04d}.parquet")
