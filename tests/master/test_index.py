"""The index of a store: every row is found under its key, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.core.errors import ConfigError, CorruptStoreError, StoreError
from millrace.kernels import code_index as kernels
from millrace.kernels.code_index import ENTRY
from millrace.master.read import shard_index as index_module
from millrace.master.read.shard_index import ENTRIES, STARTS, ShardIndex, build_index
from millrace.master.store import MasterStore
from millrace.testing.cases import KEY_KINDS, JoinCase, KeyKind, key_arrays

KEYS = st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), max_size=300)


def indexed(codes: np.ndarray, directory: Path) -> ShardIndex:
    directory.mkdir(parents=True, exist_ok=True)
    found = build_index(codes, directory)
    uniques, counts = np.unique(codes, return_counts=True)
    assert (found.keys, found.largest_group) == (len(uniques), counts.max(initial=0))
    assert tuple((directory / name).stat().st_size for name in (STARTS, ENTRIES)) == ShardIndex.nbytes_of(len(codes))
    return ShardIndex(directory, len(codes))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(KEYS, KEYS, st.sampled_from([8, 50, 1 << 24]))
def test_rows_are_found_under_their_codes(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], asked: list[int], at_a_time: int
) -> None:
    codes, asks = np.array(keys, np.int64), np.array(asked + keys[:5], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "_SORT_ROWS", at_a_time)
        index = indexed(codes, tmp_path_factory.mktemp("index"))
    assert index.check(codes)
    first = [int(np.flatnonzero(codes == code)[0]) if (codes == code).any() else -1 for code in asks]
    assert index.rows_of(asks).tolist() == first
    expected = [(place, int(row)) for place, code in enumerate(asks) for row in np.flatnonzero(codes == code)]
    pairs = [pair for places, rows in index.pairs(asks, 5) for pair in zip(places, rows, strict=True)]
    assert pairs == expected


def test_a_key_with_very_many_rows_hides_no_other(tmp_path: Path) -> None:
    codes = np.concatenate([np.arange(1000), np.full(50_000, 77)]).astype(np.int64)
    index = indexed(codes, tmp_path)
    assert index.rows_of(np.arange(1000)).tolist() == list(range(1000))
    pieces = list(index.pairs(np.array([77]), 20_000))
    assert [len(rows) for _, rows in pieces] == [20_000, 20_000, 10_001]
    assert np.concatenate([rows for _, rows in pieces]).tolist() == [77, *range(1000, 51_000)]
    assert not np.concatenate([places for places, _ in pieces]).any(), "all of the one code"
    assert_finds(index, codes, np.array([76, 77, 5_000, 78]), most=20_000)


# codes chosen by where they fall: mixing is a bijection


def code_of(bits: int) -> int:
    """Return the code whose mixed bits are these."""
    bits = bits * pow(0xD6E8FEB86659FD93, -1, 1 << 64) % (1 << 64)
    bits ^= bits >> 32
    bits = bits * pow(0x9E3779B97F4A7C15, -1, 1 << 64) % (1 << 64)
    return bits - (1 << 64) if bits >> 63 else bits


def codes_of(bits: list[int]) -> np.ndarray:
    codes = np.array([code_of(each) for each in bits], np.int64)
    mixed = np.empty(len(codes), np.uint64)
    kernels.mixed(codes, mixed)
    assert mixed.tolist() == bits
    return codes


def assert_finds(index: ShardIndex, codes: np.ndarray, asked: np.ndarray, most: int = 3) -> None:
    """Every row under its code, the rows of a code ascending, and none under a code that is not there."""
    assert index.check(codes)
    rows = [np.flatnonzero(codes == code).tolist() for code in asked]
    assert index.rows_of(asked).tolist() == [some[0] if some else -1 for some in rows]
    assert index.ranges_of(asked)[1].tolist() == [len(some) for some in rows]
    found = []
    for places, numbers in index.pairs(asked, most):
        assert 0 < len(places) == len(numbers) <= most
        found += list(zip(places.tolist(), numbers.tolist(), strict=True))
    assert found == [(place, row) for place, some in enumerate(rows) for row in some]


@pytest.mark.parametrize("at_a_time", [4, 8, 16, 1 << 24], ids=lambda rows: f"{rows} at a time")
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 200])
def test_codes_at_the_edges_of_buckets_and_parts(
    rows: int, at_a_time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and the last code of every bucket is there, one next to it is not, and the other way round."""
    monkeypatch.setattr(index_module, "_SORT_ROWS", at_a_time)
    buckets = 1 << index_module.bucket_bits(rows)
    width = (1 << 64) // buckets
    edges = [bits for bucket in range(buckets) for bits in (bucket * width, (bucket + 1) * width - 1)]
    beside = [bits for bucket in range(buckets) for bits in (bucket * width + 1, (bucket + 1) * width - 2)]
    order = np.random.default_rng(rows).permutation(rows)
    asked = codes_of(edges + beside)
    for name, chosen in (("edges", edges), ("beside", beside)):
        codes = codes_of([chosen[i % len(chosen)] for i in range(rows)])[order]
        assert_finds(indexed(codes, tmp_path / name), codes, asked)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 18, 33, 64, 65, 130])
def test_a_bucket_of_many_codes(size: int, tmp_path: Path) -> None:
    """Every second number of a bucket is a code: those between, before and after are not, wherever a search ends."""
    base = 3 << 60
    codes = codes_of([base + 2 * i + 1 for i in range(size)])
    asked = codes_of([base + i for i in range(2 * size + 2)])
    assert_finds(indexed(codes, tmp_path / "once"), codes, asked)
    repeated = np.concatenate([codes, codes[::-2], codes[size // 2 :]])
    assert_finds(indexed(repeated, tmp_path / "repeated"), repeated, asked)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6, 100])
def test_pieces_end_anywhere_within_and_between_codes(most: int, tmp_path: Path) -> None:
    codes = np.array([5, 5, -9, 5, 7, -9, 5, 0, 5, 2**63 - 1, -(2**63), 2**63 - 1], np.int64)
    asked = np.array([-1, 5, 5, 8, -9, 7, -(2**63), 6, 2**63 - 1, 0, 1, 5], np.int64)
    assert_finds(indexed(codes, tmp_path), codes, asked, most)
    assert list(indexed(codes, tmp_path).pairs(np.array([8, 9]), most)) == []


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("kind", KEY_KINDS)
def test_keys_of_every_type_are_found_in_every_shard(kind: KeyKind, shards: int, tmp_path: Path) -> None:
    """Keys in order and not, some with several rows, and as many that are not there."""
    case = JoinCase(key=kind, master_rows=0, nulls=False)
    ids = np.random.default_rng(shards).permutation(np.repeat(np.arange(0, 120, 2), np.arange(60) % 4 + 1))
    names = case.master_key
    keys = key_arrays(kind, ids, np.zeros(len(ids), bool))
    master = pa.table(dict(zip(names, keys, strict=True)) | {"row": np.arange(len(ids))})
    store = MasterStore.build(master, tmp_path / "s", names, shards=shards, page_rows=7)
    store.verify()
    asked = np.arange(125)
    wanted = key_arrays(kind, asked, np.zeros(len(asked), bool))
    codes, valid = store.coder.codes(wanted)
    assert valid is None
    shard_of = store.coder.shards(wanted, shards)
    column = store.schema.names.index("row")
    for number, code, shard in zip(asked.tolist(), codes, shard_of.tolist(), strict=True):
        pairs = list(store.index(shard).pairs(np.array([code]), 2))
        rows = np.concatenate([found for _, found in pairs]) if pairs else np.empty(0, np.int64)
        found = store.mapped(shard).take([column], rows)[0].to_pylist()
        assert found == np.flatnonzero(ids == number).tolist(), (kind, number)


@pytest.mark.parametrize(
    ("what", "at"),
    [("first start", 0), ("a start", 9), ("last start", -1), ("row", "row"), ("code", "code"), ("order", "order")],
)
def test_check_finds_every_kind_of_damage(what: str, at: int | str, tmp_path: Path) -> None:
    codes = np.arange(50, dtype=np.int64)
    assert indexed(codes, tmp_path).check(codes)
    name = STARTS if isinstance(at, int) else ENTRIES
    held = np.fromfile(tmp_path / name, np.uint32 if isinstance(at, int) else ENTRY)
    if isinstance(at, int):
        held[at] = 60
    elif at == "order":
        held[[0, 49]] = held[[49, 0]]
    else:
        fields: Any = held
        fields[at][0] = fields[at][1]
    held.tofile(tmp_path / name)
    assert not ShardIndex(tmp_path, 50).check(codes), what


def test_check_finds_a_row_under_the_code_of_another_and_a_row_that_is_lost(tmp_path: Path) -> None:
    """Every row is in the index in the first case, every code in both."""
    codes = np.array([5, 5, 6, 7], np.int64)
    indexed(codes, tmp_path)
    whole: Any = np.fromfile(tmp_path / ENTRIES, ENTRY)
    five, six = np.flatnonzero(whole["code"] == 5), np.flatnonzero(whole["code"] == 6)[0]
    exchanged, lost = whole.copy(), whole.copy()
    exchanged["row"][[five[0], six]] = whole["row"][[six, five[0]]]
    lost["row"][five[1]] = whole["row"][five[0]]
    for damaged in (exchanged, lost):
        damaged.tofile(tmp_path / ENTRIES)
        assert not ShardIndex(tmp_path, 4).check(codes)


def test_more_rows_than_an_index_can_number_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_MOST_ROWS", 10)
    indexed(np.arange(10, dtype=np.int64), tmp_path)
    with pytest.raises(ConfigError, match="index: expected at most 10 rows in a shard; got 11"):
        build_index(np.arange(11, dtype=np.int64), tmp_path)
    assert build_index(np.arange(11, dtype=np.int64), None).keys == 11


@pytest.mark.parametrize("fault", [None, 0, 1, 2, 3])
def test_readers_see_a_store_without_its_index_or_with_all_of_it(
    fault: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every flush and rename on the way the store is sound; if one fails, it is as it was and nothing is left."""
    master = pa.table({"k": np.arange(100) % 30, "v": np.arange(100)})
    MasterStore.build(master, tmp_path / "s", "k", shards=2, index=False)
    flush, rename = os.fsync, os.replace
    seen: list[bool] = []
    renamed: list[str] = []

    def look() -> None:
        store = MasterStore.open(tmp_path / "s")
        store.verify()
        seen.append(store.indexed)

    def watched_flush(descriptor: int) -> None:
        look()
        flush(descriptor)

    def watched_rename(source: Path, target: Path) -> None:
        if len(renamed) == fault:
            raise OSError(28, "No space left on device")
        look()
        rename(source, target)
        renamed.append(Path(target).name)
        look()

    monkeypatch.setattr(os, "fsync", watched_flush)
    monkeypatch.setattr(os, "replace", watched_rename)
    if fault is None:
        MasterStore.add_index(tmp_path / "s")
        assert renamed == [STARTS, ENTRIES, STARTS, ENTRIES, "rows.records", "rows.records", "manifest.json"]
        assert seen == sorted(seen), "once it has its index, it keeps it"
        assert seen.count(True) == 2, "after the last rename, of the manifest, and the flush of its name"
    else:
        with pytest.raises(OSError, match="No space"):
            MasterStore.add_index(tmp_path / "s")
        assert not any(seen)
    monkeypatch.undo()
    there = {path.name for path in (tmp_path / "s").rglob("*")}
    known = {"manifest.json", "shard-0000", "shard-0001", "codes.i64", "rows.arrow", STARTS, ENTRIES, "rows.records"}
    assert there <= known, "nothing is left beside the files of the store"
    MasterStore.add_index(tmp_path / "s").verify()


def test_a_store_gets_its_index_later(tmp_path: Path) -> None:
    master = pa.table({"k": [1, 2, None, 2], "v": ["a", None, "c", "d"]})
    store = MasterStore.build(master, tmp_path / "s", "k", shards=2, index=False)
    assert not store.indexed
    with pytest.raises(StoreError, match="has no index"):
        store.index(0)
    with pytest.raises(ConfigError, match=r"lookup: needs an index.*meshjoin, ssbj"):
        mr.SemiStreamJoin(store, on="k", algorithm="lookup")
    store = MasterStore.add_index(tmp_path / "s")
    store.verify()
    assert store.indexed
    assert store.info()["indexed"]
    files = [path for path in (tmp_path / "s").glob("shard-*/*") if path.is_file()]
    before = {path: path.stat().st_ino for path in files}
    MasterStore.add_index(tmp_path / "s")
    assert {path: path.stat().st_ino for path in files} == before, "what others may have mapped is left alone"
    assert sorted(p.name for p in (tmp_path / "s" / "shard-0000").iterdir()) == sorted(
        ["codes.i64", "rows.arrow", "rows.records", STARTS, ENTRIES]
    )
    assert store.complete("k")
    assert not store.complete("v")


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    MasterStore.build(pa.table({"k": np.arange(1000)}), tmp_path / "s", "k").verify()
    file = tmp_path / "s" / "shard-0000" / ENTRIES
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(CorruptStoreError, match=f"{ENTRIES}: truncated"):
        MasterStore.open(tmp_path / "s")
    file.write_bytes(whole[:-12] + whole[:12])
    with pytest.raises(CorruptStoreError, match=f"{ENTRIES}: its bytes were changed"):
        MasterStore.open(tmp_path / "s").verify()
