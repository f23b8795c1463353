"""Rows in one piece: what is taken from records is what the Arrow file has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.core.errors import CorruptStoreError
from millrace.master.read import record_file as records
from millrace.master.read.record_file import FILE
from millrace.master.record_layout import RecordLayout
from millrace.master.store import MasterStore
from millrace.rows.columns import output_columns
from millrace.testing.oracle import assert_same_rows

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f64": (pa.float64(), st.floats(allow_nan=False)),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "u8": (pa.uint8(), st.integers(0, 255)),
    "i16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "money": (pa.decimal128(20, 2), st.decimals(-1000, 1000, places=2)),
    "three": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "yes": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=12)),
    "large": (pa.large_binary(), st.binary(max_size=9)),
    "long": (pa.string(), st.text("ä", min_size=33, max_size=40)),
    "list": (pa.list_(pa.int8()), st.lists(st.integers(0, 9), max_size=3)),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 60))
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True))
    columns = {"key": pa.array(range(rows), pa.int64())}
    for name in names:
        type_, values = VALUES[name]
        some = draw(st.booleans())
        drawn = draw(st.lists(st.none() | values if some else values, min_size=rows, max_size=rows))
        columns[name] = pa.array(drawn, type_)
    return pa.table(columns)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(tables(), st.integers(1, 3), st.sampled_from([1, 7, 1000]), st.data())
def test_records_are_the_rows(
    tmp_path_factory: pytest.TempPathFactory, master: pa.Table, shards: int, page_rows: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_WRITTEN", data.draw(st.sampled_from([1, 200, 1 << 23])))
        patch.setattr(records, "_BLOCK", data.draw(st.sampled_from([1, 7, 8192])))
        _check(path, master, shards, page_rows, data)


def _check(path: Path, master: pa.Table, shards: int, page_rows: int, data: st.DataObject) -> None:
    with_them = MasterStore.build(master, path / "a", "key", shards=shards, page_rows=page_rows)
    without = MasterStore.build(master, path / "b", "key", shards=shards, page_rows=page_rows, records=False)
    with_them.verify()
    assert with_them.info()["records"] == all(s.rows for s in with_them.manifest.shards)
    assert not without.info()["records"]
    chosen = data.draw(st.lists(st.sampled_from(range(len(master.schema))), min_size=1, unique=True))
    for shard in range(shards):
        count = with_them.manifest.shards[shard].rows
        if count:
            rows = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=50)), np.int64)
            ours = with_them.mapped(shard).take(chosen, rows)
            theirs = without.mapped(shard).take(chosen, rows)
            assert [a.to_pylist() for a in ours] == [b.to_pylist() for b in theirs]


def test_joins_are_the_same_with_and_without(tmp_path: Path) -> None:
    master = pa.table({"key": range(500), "name": [f"name {i}" for i in range(500)], "size": pa.array(range(500))})
    stream = pa.record_batch({"key": [i * i % 700 for i in range(5_000)]})
    found = []
    for together in (True, False):
        store = MasterStore.build(master, tmp_path / str(together), "key", records=together)
        join = mr.SemiStreamJoin(store, on="key", how="left", algorithm="lookup", memory="1MB")
        found.append(pa.Table.from_batches(list(join.run([stream]))))
    assert_same_rows(found[0].to_batches(), found[1])


def test_a_store_with_an_index_gets_records_later(tmp_path: Path) -> None:
    MasterStore.build(pa.table({"k": [1, 2], "v": ["a", "b"]}), tmp_path / "s", "k", records=False)
    store = MasterStore.add_index(tmp_path / "s")
    store.verify()
    assert store.info()["records"]


def test_damaged_records_are_named(tmp_path: Path) -> None:
    MasterStore.build(pa.table({"k": np.arange(1000)}), tmp_path / "s", "k").verify()
    file = tmp_path / "s" / "shard-0000" / FILE
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(CorruptStoreError, match=f"{FILE}: truncated"):
        MasterStore.open(tmp_path / "s")
    file.write_bytes(whole[:-1] + b"x")
    with pytest.raises(CorruptStoreError, match=f"{FILE}: its bytes were changed"):
        MasterStore.open(tmp_path / "s").verify()


def test_only_columns_that_fit_are_in_the_record() -> None:
    schema = pa.schema([("k", pa.int64()), ("flag", pa.bool_()), ("long", pa.string()), ("some", pa.int8())])
    layout = RecordLayout.of(schema, {"long": 65}, {"k": 0, "flag": 0, "long": 0, "some": 1})
    assert layout == RecordLayout(8, {"k": (0, 8)})
    assert RecordLayout.of(schema, {"long": 65}, {}) is None


@pytest.mark.parametrize("longest", [0, 1, 63, 64, 65])
@pytest.mark.parametrize("block", [1, 7, 8192])
def test_columns_of_all_widths_side_by_side(
    longest: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts at odd and even places, up to the longest that is kept, and one byte more, which is left to the pages."""
    monkeypatch.setattr(records, "_BLOCK", block)
    rows = 30
    numbers = np.arange(rows)
    master = pa.table(
        {
            "key": numbers,
            "three": pa.array([bytes([i, 255 - i, 7]) for i in range(rows)], pa.binary(3)),
            "one": pa.array(numbers, pa.int8()),
            "wide": pa.array(numbers * 2**40),
            "text": ["ab"[i % 2] * (i % (longest + 1)) for i in range(rows - 1)] + ["x" * longest],
            "two": pa.array(-numbers, pa.int16()),
            "other": ["é" * (i % 4) for i in range(rows)],
            "four": pa.array(numbers / 8, pa.float32()),
            "twice": pa.array(numbers * 0.5),
            "money": pa.array(numbers.tolist(), pa.decimal128(20, 2)),
        }
    )
    store = MasterStore.build(master, tmp_path / "s", "key", page_rows=8)
    store.verify()
    layout = store.manifest.shards[0].layout
    assert layout is not None
    assert set(layout.fields) == set(master.schema.names) - ({"text"} if longest > 64 else set())
    for name, (at, size) in layout.fields.items():
        assert at % (2 if name in ("text", "other") else size if size in (1, 2, 4, 8) else 1) == 0, name
    order = np.random.default_rng(1).permutation(rows)
    for columns in (range(len(master.schema)), [8, 0, 3], [4, 9, 1], [6]):
        names = [store.schema.names[i] for i in columns]
        outputs = output_columns(pa.schema([store.schema.field(name) for name in names]), 2 * rows)
        for some in (order, order[:5]):
            for task in store.mapped(0).gather(list(columns), some, outputs):
                task()
        for name, output in zip(names, outputs, strict=True):
            finished = output.finish()
            finished.validate(full=True)
            expected = master[name].take(pa.array(np.concatenate([order, order[:5]])))
            assert finished.to_pylist() == expected.to_pylist(), name
