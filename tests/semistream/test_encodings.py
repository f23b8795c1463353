"""The stream may encode its columns in other ways than the master, and than its own earlier batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.rows.columns import plain_type
from millrace.testing.conformance import Subject, subjects

every_subject = pytest.mark.parametrize("subject", subjects(["meshjoin", "ssbj", "sscj", "lookup"]), ids=str)


def run(subject: Subject, store: mr.MasterStore, on: Any, batches: list[pa.RecordBatch], **other: Any) -> pa.Table:
    arguments = {"algorithm": subject.algorithm, "memory": 12_000, **subject.sizes(b=8), **subject.options, **other}
    join = mr.SemiStreamJoin(store, on, **arguments)
    got = []
    for batch in batches:
        got += [*join.push(batch), *join.step()]
        join.check_invariants()
    got += list(join.finish())
    return pa.Table.from_batches(got, got[0].schema)


def counts(column: pa.ChunkedArray) -> dict[Any, int]:
    values = column.to_pylist()
    return {value: values.count(value) for value in set(values)}


@every_subject
@pytest.mark.parametrize(
    "type_",
    [
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    ids=str,
)
def test_text_keys_in_any_encoding(subject: Subject, type_: pa.DataType, tmp_path: Path) -> None:
    master = pa.table({"k": [f"key {i % 20}" for i in range(40)], "m": range(40)})
    store = mr.MasterStore.build(master, tmp_path / "store", "k", page_rows=7)
    keys = pa.array(["key 3"] * 12 + ["key 4", None, "nobody"] * 3).cast(type_)
    out = run(subject, store, "k", [pa.record_batch({"k": keys})] * 10)
    assert out.schema.field("k").type == plain_type(type_)
    assert counts(out.column("k")) == {"key 3": 240, "key 4": 60}


@every_subject
@pytest.mark.parametrize("type_", [pa.int8(), pa.int32(), pa.dictionary(pa.int8(), pa.int32())], ids=str)
def test_narrower_integer_keys(subject: Subject, type_: pa.DataType, tmp_path: Path) -> None:
    master = pa.table({"k": [i % 20 for i in range(40)], "m": range(40)})
    store = mr.MasterStore.build(master, tmp_path / "store", "k", page_rows=7)
    plain = pa.array([3] * 12 + [4, None, 99] * 3, pa.int32())
    values, codes = pa.array([3, 4, 99], pa.int32()), pa.array([0] * 12 + [1, None, 2] * 3, pa.int8())
    keys = pa.DictionaryArray.from_arrays(codes, values) if pa.types.is_dictionary(type_) else plain.cast(type_)
    out = run(subject, store, "k", [pa.record_batch({"k": keys})] * 10)
    assert out.schema.field("k").type == plain_type(type_)
    assert counts(out.column("k")) == {3: 240, 4: 60}


@every_subject
def test_narrower_integers_in_a_composite_key(subject: Subject, tmp_path: Path) -> None:
    master = pa.table({"a": [i % 20 for i in range(40)], "b": ["x"] * 40, "m": range(40)})
    store = mr.MasterStore.build(master, tmp_path / "store", ["a", "b"], page_rows=7)
    batch = pa.record_batch({"a": pa.array([3] * 12 + [4, None, 99] * 3, pa.int16()), "b": ["x"] * 21})
    out = run(subject, store, ["a", "b"], [batch] * 10)
    assert counts(out.column("a")) == {3: 240, 4: 60}


@every_subject
def test_payload_with_views_and_changing_dictionaries(subject: Subject, tmp_path: Path) -> None:
    master = pa.table(
        {
            "k": range(30),
            "view": pa.array([f"view {i} " + "x" * (i % 20) for i in range(30)], pa.string_view()),
            "dictionary": pa.array([f"d{i % 4}" for i in range(30)]).dictionary_encode(),
        }
    )
    store = mr.MasterStore.build(master, tmp_path / "store", "k", page_rows=7)
    batches = [
        pa.record_batch(
            {
                "k": [turn, 5, 5, 5, 77],
                "mine": pa.array([f"turn {turn}", "same", None, "same", "other"]).dictionary_encode(),
                "bytes": pa.array([b"x" * turn] * 5, pa.binary_view()),
            }
        )
        for turn in range(20)
    ]
    out = run(subject, store, "k", batches, how="left", memory=40_000)
    assert out.schema.field("mine").type == pa.string()
    rows = out.to_pylist()
    assert len(rows) == 100
    assert sorted(row["mine"] for row in rows if row["mine"] and row["mine"].startswith("turn")) == sorted(
        f"turn {turn}" for turn in range(20)
    )
    for row in rows:
        if row["k"] == 77:
            assert row["view"] is row["dictionary"] is None
        else:
            assert row["view"] == f"view {row['k']} " + "x" * (row["k"] % 20)
            assert row["dictionary"] == f"d{row['k'] % 4}"


@every_subject
def test_the_columns_of_other_batches_are_not_held_on_to(subject: Subject, tmp_path: Path) -> None:
    """Sliced batches: only the rows that wait are kept, not the buffers they came in."""
    store = mr.MasterStore.build(pa.table({"k": np.arange(50)}), tmp_path / "store", "k")
    whole = pa.record_batch({"k": np.arange(1000), "l": [[i, i] for i in range(1000)]})
    out = run(subject, store, "k", [whole.slice(at, 10) for at in range(0, 1000, 10)], memory=20_000)
    assert out.num_rows == 50
    assert out.column("l").to_pylist() == [[k, k] for k in out.column("k").to_pylist()]
