"""Look-ups at once through the index, piece by piece (``lookup``) and tuple by tuple (``inl``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.datasets import zipf_stream
from millrace.semistream.access.direct import PerTuple

ROWS = 20_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    keys = np.random.default_rng(3).permutation(ROWS)
    return mr.MasterStore.build(pa.table({"key": keys, "value": keys * 2}), tmp_path_factory.mktemp("s") / "s", "key")


def test_nested_loops_read_a_page_for_each_tuple_that_the_pool_has_not(store: mr.MasterStore) -> None:
    small, large = (
        mr.SemiStreamJoin(store, on="key", algorithm="inl", memory=memory, device=mr.Device("hdd-2007"))
        for memory in ("50kB", "1MB")
    )
    for join in (small, large):
        for batch in zipf_stream(ROWS, 0.5, batch_rows=1_000, batches=20, seed=7):
            for _ in join.push(batch):
                continue
        join.check_invariants()
    for join in (small, large):
        assert isinstance(join.access, PerTuple)
        assert len(join.access._pool.frame) == -(-ROWS // int(join.device.page_bytes / store.row_bytes))
    assert 0.5 < small.metrics.pages_read / 20_000 <= 1
    assert large.metrics.pages_read <= 40, "the pool holds all of the master"


@pytest.mark.parametrize("algorithm", ["lookup", "inl"])
def test_all_tuples_of_a_batch_leave_in_the_call_that_brought_them(tmp_path: Path, algorithm: str) -> None:
    """Across pieces and shards: null, absent and repeated keys are answered, and nothing is scanned."""
    master = pa.table({"key": pa.array([1, 2, 2, 3, 3, 3, None]), "value": list("abcdefg")})
    store = mr.MasterStore.build(master, tmp_path / "s", "key", shards=3)
    join = mr.SemiStreamJoin(store, "key", "left", algorithm=algorithm, memory="200kB")
    keys = [1, None, 2, 9, 3, 2] * 15_000
    counts: dict[tuple[int | None, str | None], int] = {}
    for out in join.push(pa.record_batch({"key": pa.array(keys, pa.int64())})):
        for row in zip(out["key"].to_pylist(), out["value"].to_pylist(), strict=True):
            counts[row] = counts.get(row, 0) + 1
    matches = {1: "a", 2: "bc", 3: "def"}
    expected = {(key, value): keys.count(key) for key, values in matches.items() for value in values}
    assert counts == expected | {(None, None): 15_000, (9, None): 15_000}
    assert join.metrics.waiting == join.metrics.probes == join.metrics.cache_hits == 0
    assert list(join.finish()) == []


def test_a_look_up_reads_each_page_of_a_piece_once(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="lookup", memory="200kB", device=mr.Device("hdd-2007"))
    pages = -(-ROWS // int(join.device.page_bytes / store.row_bytes))
    for times in (1, 2):
        list(join.push(pa.record_batch({"key": np.arange(ROWS).repeat(2)})))
        assert join.metrics.pages_read == times * pages


@pytest.mark.parametrize("how", ["inner", "left", "anti"])
def test_a_part_without_a_match_is_not_the_last_one(tmp_path: Path, how: str) -> None:
    """Pairs are tested in parts; the condition holds for none of the first part, and for all of the last."""
    keys = np.arange(1_000).repeat(100)
    store = mr.MasterStore.build(pa.table({"key": keys, "value": keys}), tmp_path / "s", "key")
    batch = pa.record_batch({"key": np.arange(1_000), "limit": np.where(np.arange(1_000) < 800, -1, 2_000)})
    condition = mr.compare("limit", ">", "value")
    for ordered in (False, True):
        join = mr.SemiStreamJoin(store, "key", how, where=condition, algorithm="lookup", memory="4MB", ordered=ordered)
        keys_out = np.concatenate([out["key"].to_numpy() for out in join.run([batch])])
        matched, unmatched = np.arange(800, 1_000).repeat(100), np.arange(800)
        expected = {"inner": matched, "left": np.concatenate([unmatched, matched]), "anti": unmatched}[how]
        assert (keys_out if ordered else np.sort(keys_out)).tolist() == expected.tolist()
