"""The index of a store: every row is found under its key, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.core.errors import ConfigError, CorruptStoreError, StoreError
from millrace.master.read import shard_index as index_module
from millrace.master.read.shard_index import ENTRIES, STARTS, ShardIndex, build_index
from millrace.master.store import MasterStore

KEYS = st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), max_size=300)


def indexed(codes: np.ndarray, directory: Path) -> ShardIndex:
    directory.mkdir(parents=True, exist_ok=True)
    found = build_index(codes, directory)
    uniques, counts = np.unique(codes, return_counts=True)
    assert (found.keys, found.largest_group) == (len(uniques), counts.max(initial=0))
    assert tuple((directory / name).stat().st_size for name in (STARTS, ENTRIES)) == ShardIndex.nbytes_of(len(codes))
    return ShardIndex(directory, len(codes))


@settings(deadline=None, max_examples=60)
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
    assert [len(rows) for _, rows in index.pairs(np.array([77]), 20_000)] == [20_000, 20_000, 10_001]


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
    before = (tmp_path / "s" / "shard-0000" / ENTRIES).stat().st_ino
    MasterStore.add_index(tmp_path / "s")
    assert (tmp_path / "s" / "shard-0000" / ENTRIES).stat().st_ino == before, (
        "what others may have mapped is left alone"
    )
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
