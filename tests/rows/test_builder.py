"""Output batches stay near their size whatever the rows hold."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import millrace as mr
from millrace.rows.batch_builder import BATCH_BYTES, BATCH_ROWS, BatchBuilder

LONG = 200_000


def joined(texts: list[str], repeat: int, folder: Path, memory: str = "200MB") -> list[pa.RecordBatch]:
    """Batches of a join in which each of the master's texts comes out ``repeat`` times."""
    master = pa.table({"k": list(range(len(texts))), "text": texts})
    store = mr.MasterStore.build(master, folder / "store", "k", page_rows=64)
    join = mr.SemiStreamJoin(store, "k", memory=memory, algorithm="meshjoin")
    stream = pa.record_batch({"k": [k for k in range(len(texts)) for _ in range(repeat)]})
    return list(join.run([stream]))


def test_fixed_rows_fill_batches_to_the_row_limit(tmp_path: Path) -> None:
    batches = joined([""] * 10, 20_000, tmp_path)
    assert sum(len(batch) for batch in batches) == 200_000
    assert max(len(batch) for batch in batches) <= BATCH_ROWS
    assert len(batches) <= 8


def test_long_strings_from_the_start_do_not_blow_up_a_batch(tmp_path: Path) -> None:
    batches = joined(["x" * LONG] * 2, 200, tmp_path)
    assert sum(len(batch) for batch in batches) == 400
    assert max(batch.nbytes for batch in batches) <= 2 * BATCH_BYTES


def test_long_strings_after_short_ones_do_not_blow_up_a_batch(tmp_path: Path) -> None:
    batches = joined(["x"] * 500 + ["y" * 20_000] * 20, 100, tmp_path)
    assert sum(len(batch) for batch in batches) == 52_000
    assert max(batch.nbytes for batch in batches) <= 2 * BATCH_BYTES


@pytest.mark.parametrize("algorithm", list(mr.ALGORITHMS))
def test_a_single_string_of_20_megabytes(algorithm: str, tmp_path: Path) -> None:
    text = "z" * 20_000_000
    store = mr.MasterStore.build(pa.table({"k": [1, 2], "text": [text, "short"]}), tmp_path / "store", "k")
    join = mr.SemiStreamJoin(store, "k", memory="1MB", algorithm=algorithm)
    rows = [row for batch in join.run([pa.record_batch({"k": [2, 1, 2, 1]})]) for row in batch.to_pylist()]
    assert sorted(len(row["text"]) for row in rows) == [5, 5, 20_000_000, 20_000_000]


def test_the_row_limit_can_be_set() -> None:
    builder = BatchBuilder(pa.schema({"a": pa.int64()}), rows=3)
    assert builder.flush() is None
    assert builder.room == 3
    builder.columns[0].arrow(pa.array([1, 2]), None)
    builder.advance(2, 0)
    builder.settle()
    assert not builder.full
    assert builder.room == 1
    builder.columns[0].arrow(pa.array([3]), None)
    builder.advance(1, 0)
    builder.settle()
    assert builder.full
    batch = builder.flush()
    assert batch is not None
    assert batch.column(0).to_pylist() == [1, 2, 3]
    assert builder.flush() is None
