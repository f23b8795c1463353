"""The master store: built from anything, opened or refused with reasons, never seen half-written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import (
    ConfigError,
    CorruptStoreError,
    SchemaError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
    StoreVersionError,
)
from millrace.master.manifest import Manifest
from millrace.master.read import record_file as records
from millrace.master.store import MasterStore
from millrace.master.store_files import FileEntry, crc32_of_file
from millrace.rows.key_codes import KeyCoder
from millrace.testing.cases import KEY_KINDS, PAYLOADS, JoinCase, KeyKind
from millrace.testing.conformance import built
from millrace.testing.faults import (
    flip_byte,
    truncate,
)
from millrace.testing.oracle import assert_same_rows, plain

TABLE = pa.table(
    {
        "v": pa.array(range(100), pa.int32()),
        "k": [i % 40 for i in range(100)],
        "s": [f"text {i}" for i in range(100)],
    }
)
SOURCES = [
    "table",
    "chunked table",
    "batch",
    "reader",
    "dataset",
    "parquet file",
    "parquet folder",
    "arrow file",
    "list",
    "generator",
]


def sources(folder: Path) -> dict[str, Callable[[], Any]]:
    pq.write_table(TABLE, folder / "one.parquet", row_group_size=30)
    (folder / "many").mkdir()
    pq.write_table(TABLE.slice(0, 45), folder / "many" / "a.parquet")
    pq.write_table(TABLE.slice(45), folder / "many" / "b.parquet")
    with pa.ipc.new_file(folder / "table.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=17)
    return {
        "table": lambda: TABLE,
        "chunked table": lambda: pa.Table.from_batches(TABLE.to_batches(max_chunksize=7)),
        "batch": lambda: TABLE.to_batches()[0],
        "reader": lambda: pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=9)),
        "dataset": lambda: ds.dataset(folder / "many", format="parquet"),
        "parquet file": lambda: folder / "one.parquet",
        "parquet folder": lambda: str(folder / "many"),
        "arrow file": lambda: folder / "table.arrow",
        "list": lambda: TABLE.to_batches(max_chunksize=11),
        "generator": lambda: (batch for batch in TABLE.to_batches(max_chunksize=1)),
    }


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "stores" / "store"


def built_at(target: Path, **other: Any) -> MasterStore:
    return MasterStore.build(TABLE, target, "k", **{"page_rows": 16, **other})


# building


@pytest.mark.parametrize("kind", SOURCES)
def test_a_store_is_built_from_anything(kind: str, tmp_path: Path) -> None:
    seen: list[int] = []
    source = sources(tmp_path)[kind]()
    store = MasterStore.build(source, tmp_path / "store", "k", page_rows=16, shards=2, progress=seen.append)
    assert store.schema.names == ["k", "v", "s"], "the key comes first"
    assert_same_rows(store.to_table(), TABLE.select(["k", "v", "s"]))
    store.verify()
    assert seen[-1] == 100
    assert seen == sorted(seen)
    assert (store.rows, store.manifest.keys, store.manifest.largest_group, store.unique) == (100, 40, 3, False)


def test_facts_about_a_store(target: Path) -> None:
    store = built_at(target, columns=["s"], shards=3)
    info = store.info()
    assert info["rows"] == 100
    assert info["columns"] == {"k": "int64", "s": "string"}
    assert sum(info["shards"]) == 100
    assert json.loads(json.dumps(info)) == info
    assert str(target) in repr(store)
    assert "shards=3" in repr(store)
    assert store.row_bytes == pytest.approx(store.nbytes / 100)


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_rows_are_in_the_shard_spark_would_choose(kind: KeyKind) -> None:
    case = JoinCase(key=kind, master_rows=150, domain=60, shards=3, master_payload=PAYLOADS, nulls=False)
    with built(case) as store:
        store.verify()
        coder = KeyCoder([store.schema.field(name).type for name in store.key], store.key)
        rows = 0
        for shard in range(3):
            mapped = store.mapped(shard)
            for page in range(-(-mapped.rows // mapped.page_rows)):
                keys = [mapped.page(page).column(name) for name in store.key]
                assert (coder.shards(keys, 3) == shard).all()
                rows += mapped.page(page).num_rows
        assert rows == store.rows
        expected = case.master()
        assert_same_rows(store.to_table(), plain(expected.select(store.schema.names)))


def test_rows_without_a_key_are_left_out_and_counted(target: Path) -> None:
    table = pa.table({"a": [1, None, 3, 4], "b": ["x", "y", None, "z"], "c": [1, 2, 3, 4]})
    store = MasterStore.build(table, target, ["a", "b"])
    assert store.manifest.null_keys == 2
    assert store.to_table().column("c").to_pylist() == [1, 4]
    store.verify()


def test_an_empty_master(target: Path) -> None:
    store = MasterStore.build(TABLE.slice(0, 0), target, "k", shards=2)
    store.verify()
    assert (store.rows, store.nbytes, store.row_bytes, store.to_table().num_rows) == (0, 0, 0.0, 0)


def test_dictionaries_that_change_from_batch_to_batch(target: Path) -> None:
    batches = [pa.record_batch({"k": [i], "d": pa.array([text]).dictionary_encode()}) for i, text in enumerate("abca")]
    store = MasterStore.build(batches, target, "k", page_rows=1)
    assert store.to_table().column("d").to_pylist() == ["a", "b", "c", "a"]
    store.verify()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 25), st.integers(0, 120), st.lists(st.integers(0, 119), max_size=40))
def test_any_rows_can_be_taken_from_any_pages(pages: int, chunk: int, rows: int, wanted: list[int]) -> None:
    case = JoinCase(master_rows=rows, domain=50, page_rows=pages, master_payload=PAYLOADS, unique=True, seed=chunk)
    with built(case) as store:
        whole = store.to_table().combine_chunks()
        numbers = np.array([n for n in wanted if n < rows], np.int64)
        taken = store.mapped(0).take(range(len(store.schema)), numbers)
        expected = whole.take(pa.array(numbers))
        for name, column in zip(store.schema.names, taken, strict=True):
            assert repr(column.to_pylist()) == repr(expected.column(name).to_pylist()), name


# refusing


def test_bad_arguments_are_refused_by_name(target: Path, tmp_path: Path) -> None:
    build: Callable[..., MasterStore] = MasterStore.build
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ConfigError, "shards: expected .* at least 1; got 0", lambda: build(TABLE, target, "k", shards=0)),
        (ConfigError, "page_rows: expected .* at least 1; got True", lambda: build(TABLE, target, "k", page_rows=True)),
        (ConfigError, "page_rows: expected .* got 1.5", lambda: build(TABLE, target, "k", page_rows=1.5)),
        (SchemaError, "source: has no column 'nope'; it has v, k, s", lambda: build(TABLE, target, "nope")),
        (SchemaError, "has no column 'nope'", lambda: build(TABLE, target, "k", columns=["nope"])),
        (SchemaError, "key: expected the name of one column", lambda: build(TABLE, target, ["k", "k"])),
        (SchemaError, "key: expected the name of one column", lambda: build(TABLE, target, [])),
        (SchemaError, "got int", lambda: build(3, target, "k")),
        (SchemaError, "expected record batches; got dict", lambda: build([{"k": 1}], target, "k")),
        (SchemaError, "expected record batches; got none", lambda: build([], target, "k")),
        (SchemaError, "'x'.*double", lambda: build(pa.table({"x": [1.5]}), target, "x")),
        (StoreError, "nowhere.parquet: no such file", lambda: build(tmp_path / "nowhere.parquet", target, "k")),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()
        assert not target.exists()
    garbage = tmp_path / "garbage.parquet"
    garbage.write_bytes(b"not parquet at all")
    with pytest.raises(StoreError, match=r"garbage.parquet: not readable as parquet"):
        build(garbage, target, "k")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([1])], ["k", "k"])
    with pytest.raises(SchemaError, match="more than once: k"):
        build(twice, target, "k")


def test_a_later_batch_of_another_shape_is_refused_by_name(target: Path) -> None:
    first = pa.record_batch({"k": [1], "v": [1]})
    for other, came in ((pa.record_batch({"k": [1], "v": ["x"]}), "string"), (pa.record_batch({"k": [1]}), "no such")):
        with pytest.raises(SchemaError, match=f"source: column 'v': expected int64; a later batch has {came}"):
            MasterStore.build([first, other], target, "k")
    assert not target.exists()
    assert not list(target.parent.iterdir())


def test_what_is_there_is_not_replaced_unless_told_so(target: Path) -> None:
    built_at(target)
    with pytest.raises(StoreExistsError, match="already exists; pass overwrite=True"):
        built_at(target)
    replaced = MasterStore.build(TABLE.slice(0, 5), target, "k", overwrite=True)
    assert replaced.rows == 5
    assert [path.name for path in target.parent.iterdir()] == ["store"]
    foreign = target.parent / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("do not delete")
    with pytest.raises(StoreExistsError, match="not a master store"):
        built_at(foreign, overwrite=True)
    assert (foreign / "precious").exists()


# damage


def damage(kind: str, path: Path) -> None:
    manifest = path / "manifest.json"
    codes, rows = path / "shard-0001" / "codes.i64", path / "shard-0001" / "rows.arrow"
    body = json.loads(manifest.read_text())
    acts: dict[str, Callable[[], Any]] = {
        "codes truncated": lambda: truncate(codes, 8),
        "rows truncated": lambda: truncate(rows),
        "rows emptied": lambda: rows.write_bytes(b""),
        "rows too long": lambda: rows.write_bytes(rows.read_bytes() + b"x"),
        "codes missing": codes.unlink,
        "rows missing": rows.unlink,
        "manifest torn": lambda: truncate(manifest, 40),
        "manifest empty": lambda: manifest.write_bytes(b""),
        "manifest binary": lambda: manifest.write_bytes(b"\xff\xfe\x00garbage"),
        "manifest foreign": lambda: manifest.write_text('{"name": "package"}'),
        "manifest a list": lambda: manifest.write_text("[1, 2]"),
        "manifest without key": lambda: manifest.write_text(json.dumps({**body, "key": None})),
        "manifest without shards": lambda: manifest.write_text(json.dumps({**body, "shards": [{}]})),
        "manifest with a bad schema": lambda: manifest.write_text(json.dumps({**body, "schema": "AAAA"})),
        "manifest missing": manifest.unlink,
        "another version": lambda: manifest.write_text(json.dumps({**body, "format": 99})),
    }
    acts[kind]()


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("codes truncated", CorruptStoreError, ["codes.i64", "truncated", "expected"]),
        ("rows truncated", CorruptStoreError, ["rows.arrow", "truncated"]),
        ("rows emptied", CorruptStoreError, ["rows.arrow", "truncated", "0 bytes"]),
        ("rows too long", CorruptStoreError, ["rows.arrow", "too long"]),
        ("codes missing", CorruptStoreError, ["codes.i64", "missing"]),
        ("rows missing", CorruptStoreError, ["rows.arrow", "missing"]),
        ("manifest torn", CorruptStoreError, ["manifest.json", "the file is damaged"]),
        ("manifest empty", CorruptStoreError, ["manifest.json", "the file is damaged"]),
        ("manifest binary", CorruptStoreError, ["manifest.json"]),
        ("manifest foreign", CorruptStoreError, ["manifest.json", "not the manifest"]),
        ("manifest a list", CorruptStoreError, ["manifest.json", "not the manifest"]),
        ("manifest without key", CorruptStoreError, ["manifest.json", "damaged"]),
        ("manifest without shards", CorruptStoreError, ["manifest.json", "damaged"]),
        ("manifest with a bad schema", CorruptStoreError, ["manifest.json", "damaged"]),
        ("manifest missing", CorruptStoreError, ["not a master store", "manifest.json"]),
        ("another version", StoreVersionError, ["manifest.json", "99", "reads format"]),
    ],
)
def test_damage_is_named_when_the_store_is_opened(
    kind: str, error: type[StoreError], words: list[str], target: Path
) -> None:
    built_at(target, shards=2)
    damage(kind, target)
    with pytest.raises(error) as raised:
        MasterStore.open(target)
    for word in words:
        assert word in str(raised.value)
    assert isinstance(raised.value, OSError)


def test_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="void: there is no master store here"):
        MasterStore.open(tmp_path / "void")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="file"):
        MasterStore.open(tmp_path / "file")


@pytest.mark.parametrize("file", ["codes.i64", "rows.arrow"])
@pytest.mark.parametrize("at", [0, 100, -9])
def test_a_changed_byte_is_found_by_verify(file: str, at: int, target: Path) -> None:
    built_at(target, shards=2)
    flip_byte(target / "shard-0000" / file, at)
    with pytest.raises(CorruptStoreError, match=f"{file}: (its bytes were changed|not a readable Arrow file)"):
        MasterStore.open(target).verify()


def test_a_store_opened_before_it_was_replaced_does_not_mix_the_two(target: Path) -> None:
    """Files are mapped at first use: an old handle must not read the new store's rows under the old manifest."""
    old = built_at(target)
    codes = old.codes(0).copy()
    changed = TABLE.set_column(0, "v", pa.array(range(1000, 1100), pa.int32()))
    MasterStore.build(changed, target, "k", page_rows=16, overwrite=True)
    assert (old.codes(0) == codes).all()
    assert old.to_table().column("v").to_pylist() == list(range(100)), "an old handle read new rows"


def test_an_open_store_needs_its_files_no_longer(target: Path) -> None:
    """All of them are mapped when it is opened, so a store that is replaced or removed can be read to the end."""
    built_at(target, shards=2)
    store = MasterStore.open(target)
    shutil.rmtree(target)
    assert_same_rows(store.to_table(), TABLE.select(["k", "v", "s"]))
    for shard in range(2):
        codes = store.codes(shard)
        assert len(codes)
        assert (codes[store.index(shard).rows_of(codes)] == codes).all()


@pytest.mark.parametrize("rows", [100, 7], ids=["as long", "shorter"])
def test_a_store_replaced_while_it_is_opened_is_opened_again(
    rows: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest was read before, the files are those of the new store: as long as the old ones or not."""
    built_at(target)
    changed = TABLE.set_column(0, "v", pa.array(range(1000, 1100), pa.int32())).slice(0, rows)
    opened = MasterStore._mapped
    seen: list[str] = []

    def meanwhile(path: Path, manifest: Manifest) -> MasterStore:
        seen.append(manifest.snapshot)
        if len(seen) == 1:
            MasterStore.build(changed, target, "k", page_rows=16, overwrite=True)
        return opened(path, manifest)

    monkeypatch.setattr(MasterStore, "_mapped", staticmethod(meanwhile))
    store = MasterStore.open(target)
    assert store.manifest.snapshot == Manifest.read(target).snapshot != seen[0]
    assert store.to_table().column("v").to_pylist() == list(range(1000, 1000 + rows))
    store.verify()


# faults that the checksums agree with, as one in the writer would be


def sealed(target: Path) -> None:
    """Write the manifest anew, with the lengths and checksums the files have now."""
    manifest = Manifest.read(target)

    def of_now(entry: FileEntry) -> FileEntry:
        return FileEntry(entry.path, (target / entry.path).stat().st_size, crc32_of_file(target / entry.path))

    shards = [
        replace(
            shard,
            codes=of_now(shard.codes),
            data=of_now(shard.data),
            index=tuple(map(of_now, shard.index)),
            records=shard.records and of_now(shard.records),
        )
        for shard in manifest.shards
    ]
    replace(manifest, shards=shards).write(target)


def test_half_an_index_is_not_opened(target: Path) -> None:
    built_at(target)
    manifest = Manifest.read(target)
    shards = [replace(shard, index=shard.index[:1]) for shard in manifest.shards]
    replace(manifest, shards=shards).write(target)
    with pytest.raises(CorruptStoreError, match="expected 2 files of an index, or none; the manifest lists 1"):
        MasterStore.open(target)


@pytest.mark.parametrize(
    ("file", "cut", "words"),
    [
        ("codes.i64", 8, "codes.i64: expected 800 bytes of key codes; got 792"),
        ("starts.index", 4, "starts.index: the index has the wrong size for 100 rows"),
        ("entries.index", 12, "entries.index: the index has the wrong size for 100 rows"),
        ("rows.records", 8, "rows.records: the file has the wrong size for 100 rows: "),
    ],
)
def test_files_of_other_lengths_than_the_rows_need_are_not_opened(
    file: str, cut: int, words: str, target: Path
) -> None:
    built_at(target)
    truncate(target / "shard-0000" / file, cut)
    sealed(target)
    with pytest.raises(CorruptStoreError, match=words):
        MasterStore.open(target)


@pytest.mark.parametrize(
    ("columns", "page_rows", "words"),
    [(["k", "s", "v"], 16, "its columns are not those"), (["k", "v", "s"], 17, "expected 7 pages; it has 6")],
)
def test_rows_in_other_columns_or_pages_are_not_opened(
    columns: list[str], page_rows: int, words: str, target: Path
) -> None:
    built_at(target, index=False)
    with pa.ipc.new_file(target / "shard-0000" / "rows.arrow", TABLE.select(columns).schema) as writer:
        writer.write_table(TABLE.select(columns), max_chunksize=page_rows)
    sealed(target)
    with pytest.raises(CorruptStoreError, match=words):
        MasterStore.open(target)


def exchange(path: Path, one: slice, other: slice) -> None:
    """Let two parts of a file, equally long, change places."""
    content = bytearray(path.read_bytes())
    content[one], content[other] = content[other], content[one]
    path.write_bytes(content)


def test_verify_finds_rows_under_another_key_in_the_index(target: Path) -> None:
    built_at(target)
    exchange(target / "shard-0000" / "entries.index", slice(8, 12), slice(20 * 12 + 8, 20 * 12 + 12))
    sealed(target)
    with pytest.raises(CorruptStoreError, match=r"entries.index: the index does not match the key codes of the shard"):
        MasterStore.open(target).verify()


def test_verify_finds_codes_of_other_keys(target: Path) -> None:
    built_at(target, index=False)
    exchange(target / "shard-0000" / "codes.i64", slice(20 * 8, 21 * 8), slice(21 * 8, 22 * 8))
    sealed(target)
    with pytest.raises(CorruptStoreError, match=r"codes.i64: key codes of page 1 are wrong"):
        MasterStore.open(target).verify()


@pytest.mark.parametrize("rows_at_once", [1, 1000])
def test_verify_finds_records_of_other_rows(rows_at_once: int, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    width = built_at(target).manifest.shards[0].layout
    assert width is not None
    monkeypatch.setattr(records, "_WRITTEN", rows_at_once * width.width)
    one, other = (slice(row * width.width, (row + 1) * width.width) for row in (30, 31))
    exchange(target / "shard-0000" / "rows.records", one, other)
    sealed(target)
    with pytest.raises(CorruptStoreError, match=r"rows.records: records of page 1 are wrong"):
        MasterStore.open(target).verify()


def test_verify_finds_rows_in_another_shard(target: Path) -> None:
    built_at(target, shards=2)
    manifest = Manifest.read(target)
    replace(manifest, shards=manifest.shards[::-1]).write(target)
    with pytest.raises(CorruptStoreError, match=r"rows.arrow: page 0 has rows of another shard"):
        MasterStore.open(target).verify()


def test_verify_finds_a_row_without_a_key(target: Path) -> None:
    MasterStore.build(pa.table({"k": [0, 1]}), target, "k", index=False)
    with pa.ipc.new_file(target / "shard-0000" / "rows.arrow", pa.schema({"k": pa.int64()})) as writer:
        writer.write(pa.record_batch({"k": pa.array([0, 1], mask=np.array([True, False]))}))
    sealed(target)
    with pytest.raises(CorruptStoreError, match=r"codes.i64: key codes of page 0 are wrong"):
        MasterStore.open(target).verify()


def test_verify_finds_text_that_is_none(target: Path) -> None:
    built_at(target, index=False)
    rows = target / "shard-0000" / "rows.arrow"
    rows.write_bytes(rows.read_bytes().replace(b"text 77", b"t\xffxt 77"))
    sealed(target)
    with pytest.raises(CorruptStoreError, match=r"page 4 is damaged.*UTF8"):
        MasterStore.open(target).verify()


def test_verify_counts_the_rows_it_has_seen(target: Path) -> None:
    seen: list[int] = []
    built_at(target, shards=2).verify(seen.append)
    assert seen == sorted(set(seen))
    assert seen[-1] == 100
    assert max(np.diff([0, *seen])) <= 16, "after every page"


def test_checksums_of_files_longer_than_what_is_read_at_a_time(target: Path) -> None:
    """A changed byte is found in the first megabyte of a file as in its last."""
    store = MasterStore.build(pa.table({"k": np.arange(300_000)}), target, "k", index=False)
    store.verify()
    for at in (10, -10):
        flip_byte(target / "shard-0000" / "codes.i64", at)
        with pytest.raises(CorruptStoreError, match=r"codes.i64: its bytes were changed"):
            store.verify()
        flip_byte(target / "shard-0000" / "codes.i64", at)


# facts that planning relies on


def test_facts_are_counted_over_all_pages_and_shards(target: Path) -> None:
    """The longest text, the nulls, the largest group and the bytes, each with its extreme not in the last place."""
    texts = ["x" * 40 if i == 3 else None if i in (5, 50, 51) else f"t{i}" for i in range(100)]
    table = pa.table({"k": [7 if i < 4 else i for i in range(100)], "s": texts, "n": pa.array(range(100), pa.int32())})
    for shards in (1, 2, 3):
        store = MasterStore.build(table, target, "k", page_rows=8, shards=shards, overwrite=True)
        manifest = store.manifest
        assert manifest.longest == {"s": 40}
        assert manifest.nulls == {"k": 0, "s": 3, "n": 0}
        assert (manifest.largest_group, manifest.keys, store.unique) == (5, 96, False)
        assert store.nbytes >= 100 * (8 + 4 + 4) + sum(len(text or "") for text in texts)
        assert [store.complete(name) for name in ("k", "s", "n")] == [True, False, True]
        assert not store.complete("a column of which nothing was counted")


@pytest.mark.parametrize("table", [TABLE.slice(0, 0), TABLE.slice(0, 30)], ids=["no rows", "one row a key"])
def test_keys_without_a_second_row_are_unique(table: pa.Table, target: Path) -> None:
    assert MasterStore.build(table, target, "k", shards=2).unique


def test_a_store_is_indexed_if_every_shard_is(target: Path) -> None:
    built_at(target, shards=2)
    manifest = Manifest.read(target)
    assert manifest.indexed
    assert not replace(manifest, shards=[manifest.shards[0], replace(manifest.shards[1], index=())]).indexed
