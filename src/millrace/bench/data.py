"""Inputs of the benchmarks, made once and kept in a directory."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from millrace.datasets import STREAM_SCHEMA, synthetic_master, zipf_stream
from millrace.master.store import MasterStore


def master(
    directory: Path, rows: int, *, unique: bool = True, ordered: bool = False, index: bool = True
) -> MasterStore:
    """A store of the papers' synthetic master, its keys shuffled or in order."""
    facts = (("-repeats", not unique), ("-sorted", ordered), ("-unindexed", not index))
    path = directory / f"master-{rows}{''.join(word for word, holds in facts if holds)}"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        table = synthetic_master(rows, unique=unique, order="sorted" if ordered else "shuffled")
        MasterStore.build(table, path, "key", index=index)
    return MasterStore.open(path)


def stream(directory: Path, domain: int, skew: float, tuples: int, batch_rows: int) -> Path:
    """An Arrow file with a Zipf stream; reading it through a memory map takes no anonymous memory."""
    path = directory / f"stream-{domain}-{skew:g}-{tuples}-{batch_rows}.arrow"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        with pa.ipc.new_file(str(temporary), STREAM_SCHEMA) as writer:
            for batch in zipf_stream(domain, skew, batch_rows=batch_rows, batches=tuples // batch_rows, seed=11):
                writer.write_batch(batch)
        temporary.rename(path)
    return path


def open_stream(path: Path) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(path)))
