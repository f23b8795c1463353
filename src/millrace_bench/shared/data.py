"""Inputs of the benchmarks, made once and reused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.core.errors import ConfigError, StoreExistsError
from millrace.core.files.atomic import replaced_file
from millrace.datasets import STREAM_SCHEMA, synthetic_master, zipf_stream
from millrace.datasets.synthetic import Order
from millrace.master.store import MasterStore


def master(
    directory: Path, rows: int, *, unique: bool = True, ordered: bool = False, index: bool = True
) -> MasterStore:
    """Return a store of the papers' synthetic master with shuffled or sorted keys; build it if it is missing."""
    facts = (("-repeats", not unique), ("-sorted", ordered), ("-unindexed", not index))
    path = directory / f"master-{rows}{''.join(word for word, holds in facts if holds)}"
    directory.mkdir(parents=True, exist_ok=True)
    order: Order = "sorted" if ordered else "shuffled"
    store = open_or_build(path, lambda: synthetic_master(rows, unique=unique, order=order), "key", index=index)
    if store.rows != rows:
        raise ConfigError(f"{path}: expected a store of {rows:,} rows; got {store.rows:,}; remove it to rebuild it")
    return store


def open_or_build(path: Path, source: Callable[[], Any], key: str, **options: Any) -> MasterStore:
    """Return the store at a path, built if it is missing; another process may build it at the same time."""
    if not path.exists():
        with suppress(StoreExistsError):
            MasterStore.build(source(), path, key, **options)
    return MasterStore.open(path)


def stream(directory: Path, domain: int, skew: float, tuples: int, batch_rows: int) -> Path:
    """Return the path of an Arrow file with a Zipf stream; write the file if it is missing.

    Mapping the file into memory takes no anonymous memory.
    """
    path = directory / f"stream-{domain}-{skew:g}-{tuples}-{batch_rows}.arrow"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as temporary, pa.ipc.new_file(str(temporary), STREAM_SCHEMA) as writer:
            for batch in zipf_stream(domain, skew, batch_rows=batch_rows, batches=tuples // batch_rows, seed=11):
                writer.write_batch(batch)
    return path


def open_stream(path: Path) -> pa.ipc.RecordBatchFileReader:
    """Return a reader of a stream's Arrow file, which is mapped into memory."""
    return pa.ipc.open_file(pa.memory_map(str(path)))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, then rename it to ``folder``; an exception, Ctrl-C included, removes it.

    If ``folder`` exists already, it is replaced.
    """
    unfinished = folder.with_name(f"{folder.name}.making")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
