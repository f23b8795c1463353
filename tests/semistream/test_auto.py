"""``algorithm="auto"``: what is chosen, and that a change of mind loses and repeats nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.core.errors import BudgetTooSmallError, ConfigError, StateError
from millrace.datasets import synthetic_master, zipf_stream
from millrace.semistream.arguments import JoinArguments
from millrace.semistream.binding import Binding
from millrace.semistream.choose import auto
from millrace.semistream.choose.auto import Auto, Decision
from millrace.testing import conformance
from millrace.testing.cases import JoinCase
from millrace.testing.conformance import Subject
from millrace.testing.strategies import examples, join_cases

pytestmark = pytest.mark.sampled(4)

ROWS = 20_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    return mr.MasterStore.build(synthetic_master(ROWS), tmp_path_factory.mktemp("m") / "s", "key")


def driven(join: mr.SemiStreamJoin, tuples: int, skew: float = 1.0, seed: int = 1) -> int:
    rows = 0
    for batch in zipf_stream(ROWS, skew, batch_rows=5_000, batches=tuples // 5_000, seed=seed):
        rows += sum(len(out) for out in join.push(batch))
        join.check_invariants()
    return rows


@pytest.fixture
def bare(store: mr.MasterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mr.MasterStore:
    """The master without an index, on a machine where nothing was ever measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return mr.MasterStore.build(store.to_table(), tmp_path / "bare", "key", index=False)


def test_an_index_is_used_where_no_disk_is_modelled(store: mr.MasterStore, tmp_path: Path) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="auto", memory="300kB")
    assert driven(join, 60_000) == 60_000
    assert join.algorithm.name == "lookup"
    assert "auto, now lookup" in join.explain()
    assert "has an index" in join.explain()


def test_without_an_index_the_wheel_turns_and_a_cache_has_to_pay(bare: mr.MasterStore) -> None:
    for memory, skew, best in (("300kB", 0.0, "r-meshjoin"), ("300%", 0.0, "ssbj")):
        join = mr.SemiStreamJoin(bare, "key", algorithm="auto", memory=memory)
        driven(join, 60_000, skew)
        assert join.algorithm.name == best, f"{memory}, skew {skew}"
        assert "predicted" in join.explain()


@pytest.mark.parametrize("device", [None, "hdd-2013"])
@pytest.mark.parametrize("how", ["semi", "anti"])
def test_names_may_clash_where_no_master_column_comes_out(bare: mr.MasterStore, how: str, device: str | None) -> None:
    name = next(name for name in bare.schema.names if name != "key")
    stream = pa.record_batch({"key": [1, 2, ROWS + 5], name: [7, 8, 9]})
    on = mr.Device(device) if device else None
    join = mr.SemiStreamJoin(bare, "key", how, algorithm="auto", memory="300kB", device=on)
    assert sum(len(out) for out in join.run([stream])) == (2 if how == "semi" else 1)


def test_asking_for_sizes_reads_nothing_of_the_master(bare: mr.MasterStore) -> None:
    read = []
    for algorithm in ("ssbj", "auto"):
        join = mr.SemiStreamJoin(bare, "key", algorithm=algorithm, memory="400%")
        driven(join, 300_000)
        read.append(join.metrics.bytes_read)
    assert read[0] == read[1]


def test_the_least_memory_of_one_thread_is_enough(bare: mr.MasterStore) -> None:
    with pytest.raises(BudgetTooSmallError) as least:
        mr.SemiStreamJoin(bare, "key", algorithm="ssbj", memory=100, threads=1)
    schema = pa.schema([("key", pa.int64())])
    for more in range(0, 2_000, 100):
        fixed = mr.SemiStreamJoin(bare, "key", algorithm="ssbj", memory=least.value.minimum + more, threads=1)
        try:
            fixed.bind(schema)
        except BudgetTooSmallError:
            continue
        mr.SemiStreamJoin(bare, "key", algorithm="auto", memory=least.value.minimum + more, threads=1).bind(schema)


def test_a_kept_cache_is_recalled(bare: mr.MasterStore) -> None:
    kept = io.BytesIO()
    cached = mr.SemiStreamJoin(bare, "key", algorithm="ssbj", memory="300kB")
    driven(cached, 60_000)
    assert cached.keep_cache(kept)
    kept.seek(0)
    join = mr.SemiStreamJoin(bare, "key", algorithm="auto", memory="300kB")
    join.bind(next(iter(zipf_stream(ROWS, 1.0, batch_rows=1, batches=1))).schema)
    assert join.algorithm.name == "r-meshjoin"
    assert not join.recall_cache(io.BytesIO(b"no cache"))
    assert join.algorithm.name == "r-meshjoin"
    assert join.recall_cache(kept)
    assert join.algorithm.name == "ssbj"
    assert join.metrics.cached_keys
    assert driven(join, 20_000) > 0


def test_without_a_key_all_rows_pass(store: mr.MasterStore) -> None:
    near = mr.band("sid", "a1", below=1, above=1)
    join = mr.SemiStreamJoin(store, where=near, algorithm="auto", memory="300kB", columns=["label"])
    list(join.push(next(iter(zipf_stream(ROWS, 1.0, batch_rows=10, batches=1)))))
    assert join.algorithm.name == "meshjoin"


@pytest.mark.thorough
@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
def test_a_stream_that_turns_out_to_be_skewed_gets_a_cache(
    tmp_path: Path, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "_ENOUGH", 8_000)
    rows = 200_000
    store = mr.MasterStore.build(synthetic_master(rows), tmp_path / "s", "key")
    device = mr.Device("hdd-2013")
    join = mr.SemiStreamJoin(store, "key", algorithm="auto", memory="0.5%", device=device, ordered=ordered)
    got, chosen = [], []
    for skew, batches in ((0.2, 4), (1.3, 12)):
        for batch in zipf_stream(rows, skew, batch_rows=5_000, batches=batches, seed=2):
            got += [row for out in join.push(batch) for row in out["sid"].to_pylist()]
        join.check_invariants()
        chosen.append(join.algorithm.name)
    assert chosen == ["r-meshjoin", "ssbj"]
    assert "tuples/s predicted" in join.explain()
    got += [row for out in join.finish() for row in out["sid"].to_pylist()]
    came = [*range(20_000), *range(60_000)]
    assert got == came if ordered else sorted(got) == sorted(came)
    m = join.metrics
    assert m.tuples_in == m.matched == 80_000
    assert m.admitted_keys - m.evicted_keys == m.cached_keys
    assert m.peak_bytes <= m.budget_bytes


def test_what_auto_does_not_take(store: mr.MasterStore) -> None:
    with pytest.raises(ConfigError, match="b: algorithm='auto' chooses options itself"):
        mr.SemiStreamJoin(store, "key", algorithm="auto", b=5)
    with pytest.raises(ConfigError, match="cache_share: algorithm='auto'"):
        mr.SemiStreamJoin(store, "key", algorithm="auto", cache_share=0.5)
    with pytest.raises(ConfigError, match="b: algorithm='auto' chooses b itself"):
        mr.SemiStreamJoin(store, "key", algorithm="auto").retune(b=5)


@pytest.mark.parametrize("keys", [[], [None, None], [1]], ids=["empty", "nulls", "one row"])
def test_masters_with_next_to_nothing_in_them(tmp_path: Path, keys: list[int | None]) -> None:
    table = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(["a"] * len(keys), pa.string())})
    store = mr.MasterStore.build(table, tmp_path / "s", "k")
    join = mr.SemiStreamJoin(store, "k", "left", algorithm="auto", memory="1MB", device=mr.Device("hdd-2013"))
    out = pa.Table.from_batches(join.run([pa.record_batch({"k": [1, 2]})])).sort_by("k")
    assert out["v"].to_pylist() == (["a", None] if 1 in keys else [None, None])


def test_what_was_cached_is_counted_once(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="auto", memory="300kB", device=mr.Device("hdd-2013"))
    driven(join, 20_000)
    list(join.finish())
    for name in ("ssbj", "hybridjoin", "lookup", "sscj", "meshjoin"):
        join._switch(Decision(name, {}, "because"))
        m = join.metrics
        assert m.cached_keys == m.cached_rows == 0
        assert m.admitted_keys == m.evicted_keys
    assert len(join.access.context.space._maps) < 60, "what the others had is gone"  # type: ignore[attr-defined]


def test_a_snapshot_of_another_join_changes_nothing(store: mr.MasterStore) -> None:
    one = mr.SemiStreamJoin(store, "key", "left", algorithm="meshjoin", memory="300kB")
    driven(one, 5_000)
    auto_join = mr.SemiStreamJoin(store, "key", "inner", algorithm="auto", memory="300kB")
    with pytest.raises(StateError, match="another kind of join"):
        auto_join.restore(one.snapshot())
    assert auto_join.algorithm.name == "lookup"
    again = mr.SemiStreamJoin(store, "key", "left", algorithm="auto", memory="300kB")
    again.restore(one.snapshot())
    assert again.algorithm.name == "meshjoin"
    assert "the snapshot was taken from a join with this algorithm" in again.explain()
    spares = mr.SemiStreamJoin(
        store, "key", "left", algorithm="auto", memory="300kB", shed=mr.Shedding("random", 0.5, spare_hits=True)
    )
    looked_up = mr.SemiStreamJoin(store, "key", "left", algorithm="lookup", memory="300kB")
    driven(looked_up, 5_000)
    with pytest.raises(StateError, match="spare_hits"):
        spares.restore(looked_up.snapshot())


def test_explain_does_not_know_before_the_first_batch(store: mr.MasterStore) -> None:
    assert "chosen with the first batch" in mr.SemiStreamJoin(store, "key", algorithm="auto").explain()


# a change of mind at any moment


class Fickle(Auto):
    """Wants another algorithm after every piece."""

    def __init__(self, memory: int) -> None:
        super().__init__(memory)
        self._turn = 0

    due = True

    def begin(self, arguments: JoinArguments, binding: Binding) -> Decision:
        return Decision("ssbj", {}, "it was asked first")

    def reconsider(self, arguments: JoinArguments, binding: Binding) -> Decision:
        able = [name for name, a in mr.ALGORITHMS.items() if a.many or arguments.store.unique]
        if not arguments.spec.stream_key:
            able = [name for name in able if mr.ALGORITHMS[name].keyless]
        self._turn += 1
        return Decision(able[self._turn * 5 % len(able)], {}, "why not")


def fickle(store: mr.MasterStore, **arguments: Any) -> mr.SemiStreamJoin:
    arguments.pop("b", None)
    join = mr.SemiStreamJoin(store, **{**arguments, "algorithm": "auto"})
    join.auto = Fickle(join.budget.total)
    return join


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
@examples(25)
@given(case=join_cases())
def test_a_join_that_changes_all_the_time_is_exact(ordered: bool, case: JoinCase) -> None:
    conformance.check_run(Subject("ssbj", {"ordered": ordered}, join=fickle), case)


@examples(10)
@given(case=join_cases(), stop=st.integers(0, 8))
def test_a_restored_join_goes_on_with_what_the_snapshot_was_taken_of(case: JoinCase, stop: int) -> None:
    conformance.check_snapshot(Subject("ssbj", join=fickle), case, stop)
