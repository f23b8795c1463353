"""A cache kept in a file and taken up by another join."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.spec import JoinSpec
from millrace.datasets import synthetic_master, zipf_stream
from millrace.master.store import MasterStore
from millrace.rows import keyed_rows_file
from millrace.semistream.join import SemiStreamJoin
from millrace.testing.oracle import assert_same_rows, oracle_join

_MEMORY = "300kB"


@pytest.fixture(scope="module", params=["unique", "repeated"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MasterStore:
    path = tmp_path_factory.mktemp("keeping") / "store"
    return MasterStore.build(synthetic_master(20_000, unique=request.param == "unique"), path, key="key", shards=2)


def _stream(part: int) -> list[pa.RecordBatch]:
    """The first part of a stream, or the second or third."""
    batches = zipf_stream(20_000, 1.0, batch_rows=5_000, seed=9)
    return list(islice(batches, 4 * part - 4, 4 * part))


def _join(store: MasterStore, how: str = "inner") -> SemiStreamJoin:
    join = SemiStreamJoin(store, on="key", how=how, memory=_MEMORY, w=2**31)
    join.bind(_stream(1)[0].schema)
    return join


def _warm(store: MasterStore, path: Path) -> SemiStreamJoin:
    first = _join(store)
    list(first.run(_stream(1)))
    assert first.keep_cache(path)
    first.check_invariants()
    return first


def test_the_next_join_begins_with_what_the_last_has_learned(store: MasterStore, tmp_path: Path) -> None:
    first = _warm(store, tmp_path / "soft")
    assert first.metrics.cached_keys > 50
    second = _join(store)
    assert second.recall_cache(tmp_path / "soft")
    assert second.metrics.cached_keys == first.metrics.cached_keys
    second.check_invariants()
    out = pa.Table.from_batches(second.run(_stream(2)), second.output_schema)
    second.check_invariants()
    assert_same_rows(out, oracle_join(pa.Table.from_batches(_stream(2)), store.to_table(), JoinSpec.of("key")))
    cold = _join(store)
    list(cold.run(_stream(2)))
    assert second.metrics.hit_rate > cold.metrics.hit_rate


def test_an_inner_joins_cache_is_not_taken_for_other_columns(store: MasterStore, tmp_path: Path) -> None:
    _warm(store, tmp_path / "soft")
    other = SemiStreamJoin(store, on="key", memory=_MEMORY, columns=store.schema.names[1:3])
    other.bind(_stream(1)[0].schema)
    assert not other.recall_cache(tmp_path / "soft")
    assert not _join(store.shard(0)).recall_cache(tmp_path / "soft")


def test_a_cache_is_not_taken_by_a_join_that_reads_it_in_another_way(store: MasterStore, tmp_path: Path) -> None:
    """With the same columns of the same master, a cache may hold one row of a key, or no numbers of rows."""

    def joined(how: str, **other: Any) -> SemiStreamJoin:
        join = SemiStreamJoin(store, on="key", how=how, memory=_MEMORY, w=2**31, **other)
        join.bind(_stream(1)[0].schema)
        return join

    semi = joined("semi")
    list(semi.run(_stream(1)))
    assert semi.keep_cache(tmp_path / "semi")
    inner = joined("inner", columns=[])
    assert inner.recall_cache(tmp_path / "semi") == store.unique
    out = sum(map(len, inner.run(_stream(2))))
    assert out == oracle_join(pa.Table.from_batches(_stream(2)), store.to_table(), JoinSpec.of("key")).num_rows
    assert joined("anti").recall_cache(tmp_path / "semi")
    assert not joined("semi", ordered=True).recall_cache(tmp_path / "semi")
    assert not joined("semi", algorithm="sscj").recall_cache(tmp_path / "semi")
    frequent = joined("semi", algorithm="sscj")
    list(frequent.run(_stream(1)))
    assert frequent.keep_cache(tmp_path / "frequent")
    assert joined("semi", algorithm="sscj").recall_cache(tmp_path / "frequent")
    assert not joined("semi", algorithm="ordered", ordered=False).recall_cache(tmp_path / "frequent")


def test_a_changed_file_is_noticed_wherever_it_was_changed(store: MasterStore, tmp_path: Path) -> None:
    _warm(store, tmp_path / "soft")
    whole = (tmp_path / "soft").read_bytes()
    random = np.random.default_rng(5)
    places = [*range(0, 300, 7), len(whole) - 1, *random.integers(0, len(whole), 40).tolist()]
    for place in places:
        torn = bytearray(whole)
        torn[place] ^= 1 << int(random.integers(8))
        (tmp_path / "soft").write_bytes(torn)
        join = _join(store)
        assert not join.recall_cache(tmp_path / "soft"), place
        assert join.metrics.cached_keys == 0
        join.check_invariants()
    for length in (0, 5, 30, len(whole) // 2, len(whole) - 1):
        (tmp_path / "soft").write_bytes(whole[:length])
        assert not _join(store).recall_cache(tmp_path / "soft")
    assert not _join(store).recall_cache(tmp_path / "nothing")


def test_a_smaller_budget_does_not_take_what_it_cannot_hold(store: MasterStore, tmp_path: Path) -> None:
    _warm(store, tmp_path / "soft")
    small = SemiStreamJoin(store, on="key", memory="9kB")
    small.bind(_stream(1)[0].schema)
    assert not small.recall_cache(tmp_path / "soft")
    list(small.run([_stream(2)[0].slice(0, 500)]))
    small.check_invariants()


def test_a_failed_write_leaves_the_old_file(
    store: MasterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _warm(store, tmp_path / "soft")
    before = (tmp_path / "soft").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keyed_rows_file, "_write_all", full)
    with pytest.raises(OSError, match="No space"):
        _warm(store, tmp_path / "soft")
    assert (tmp_path / "soft").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["soft"]


def test_nested_columns_are_not_kept(tmp_path: Path) -> None:
    table = pa.table({"key": [1, 2, 3], "tags": [["a"], ["b", "c"], []]})
    store = MasterStore.build(table, tmp_path / "store", key="key")
    join = SemiStreamJoin(store, on="key", memory="1MB")
    join.bind(pa.schema([("key", pa.int64())]))
    assert not join.keep_cache(tmp_path / "soft")
    assert not (tmp_path / "soft").exists()


def test_one_shard_is_a_store_of_its_own(store: MasterStore) -> None:
    halves = [store.shard(i) for i in range(2)]
    assert sum(half.rows for half in halves) == store.rows
    assert sum(half.manifest.keys for half in halves) == store.manifest.keys
    stream = pa.Table.from_batches(_stream(3))
    codes = store.coder.shards([stream["key"].combine_chunks()], 2)
    for number, half in enumerate(halves):
        mine = stream.filter(pa.array(codes == number))
        join = SemiStreamJoin(half, on="key", memory=_MEMORY, how="left")
        out = pa.Table.from_batches(join.run(mine.to_batches()), join.bind(mine.schema))
        assert_same_rows(out, oracle_join(mine, store.to_table(), JoinSpec.of("key", "left")))
