"""Sorted runs of rows in the state: pieces of two runs are merged into one run, in order and without loss."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.spark.state.keyed_runs import RunRows
from millrace.spark.state.sorted_runs import _merged
from millrace.testing.strategies import examples


def _restored(rows: pa.RecordBatch, side: int, *, sort: bool = True) -> RunRows:
    assert side == 1
    rows = rows.sort_by("code") if sort else rows
    return RunRows(rows, rows["code"].to_numpy(), None)


def _pieces(codes: list[int], sizes: list[int], label: str) -> Iterator[RunRows]:
    """Yield a sorted run piece by piece; ``sizes`` are the numbers of rows, used in turn."""
    batch = pa.record_batch({"code": pa.array(sorted(codes), pa.int64()), "run": [label] * len(codes)})
    at = 0
    while at < len(batch):
        size = sizes[at % len(sizes)]
        yield _restored(batch.slice(at, size), 1, sort=False)
        at += size


_CODES = st.lists(st.integers(-5, 30), max_size=40)
_SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@examples(200)
@given(_CODES, _SIZES, _CODES, _SIZES)
def test_two_runs_become_one_in_order(one: list[int], sizes: list[int], other: list[int], others: list[int]) -> None:
    found = list(_merged(_restored, 1, _pieces(one, sizes, "one"), _pieces(other, others, "other")))
    codes = np.concatenate([piece.codes for piece in found]) if found else np.empty(0, np.int64)
    assert codes.tolist() == sorted(one + other)
    rows = [(row["run"], row["code"]) for piece in found for row in piece.rows.to_pylist()]
    assert sorted(rows) == sorted([("one", code) for code in one] + [("other", code) for code in other])
