"""With ``ordered=True`` rows come out in the order their tuples came, whatever the algorithm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.core.errors import ConfigError, StateError
from millrace.core.spec import How
from millrace.datasets import zipf_stream
from millrace.semistream.waiting.order_buffer import OrderBuffer, Sequences
from millrace.testing import conformance
from millrace.testing.cases import HOWS, KEY_KINDS, PAYLOADS, JoinCase, KeyKind
from millrace.testing.conformance import Subject
from millrace.testing.oracle import assert_same_rows
from millrace.testing.strategies import examples, join_cases

pytestmark = pytest.mark.sampled(4)

SUBJECTS = [Subject(name, {"ordered": True}) for name in mr.ALGORITHMS]
SUBJECTS += [
    Subject("meshjoin", {"ordered": True, "leave_early": False}),
    Subject("ssbj", {"ordered": True, "leave_early": False, "migration": "three-cycle"}),
]
every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=str)


def smaller(case: JoinCase) -> JoinCase:
    """Few enough rows that a turn of the wheel for every tuple, where memory is that short, is still quick."""
    return replace(case, stream_rows=min(case.stream_rows, 90), master_rows=min(case.master_rows, 50))


cases = join_cases().map(smaller)


@every_subject
@examples(4)
@given(case=cases)
def test_rows_come_in_the_order_of_the_stream(subject: Subject, case: JoinCase) -> None:
    conformance.check_run(subject, case)


@every_subject
@examples(2)
@given(case=join_cases(unique=False, spread="skewed", nulls=False, master_payload=(), extra=400).map(smaller))
def test_many_matches_in_little_memory(subject: Subject, case: JoinCase) -> None:
    case = replace(case, stream_rows=50, domain=5, how="left" if case.seed % 2 else "inner")
    conformance.check_run(subject, case)


@every_subject
@examples(3)
@given(case=cases, stop=st.integers(0, 60))
def test_what_is_held_survives(subject: Subject, case: JoinCase, stop: int) -> None:
    conformance.check_snapshot(subject, case, stop)


@every_subject
@examples(2)
@given(case=cases)
def test_in_the_end_everything_is_given_back(subject: Subject, case: JoinCase) -> None:
    conformance.check_drained(subject, case)
    conformance.check_deterministic(subject, case)


@every_subject
def test_bad_input_is_refused_by_name(subject: Subject, tmp_path: Path) -> None:
    conformance.check_refusals(subject, tmp_path)
    (tmp_path / "wide").mkdir()
    conformance.check_too_wide(subject, tmp_path / "wide")


@every_subject
@pytest.mark.parametrize("how", HOWS)
def test_every_kind_of_join(subject: Subject, how: How) -> None:
    case = JoinCase(how=how, stream_rows=60, master_rows=40, domain=12, extra=5_000, b=15, shards=2)
    case = replace(case, stream_payload=("string",), master_payload=("string",))
    conformance.check_run(subject, case)
    conformance.check_run(subject, replace(case, key="string", unique=True))


@pytest.mark.parametrize("key", KEY_KINDS)
def test_every_type(key: KeyKind) -> None:
    case = JoinCase(key=key, how="left", stream_rows=100, master_rows=60, domain=30, extra=20_000, b=25, shards=2)
    case = replace(case, stream_payload=PAYLOADS, master_payload=PAYLOADS)
    for algorithm in ("ssbj", "sscj", "lookup"):
        conformance.check_run(Subject(algorithm, {"ordered": True}), case)


# more than the rules


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    keys = np.random.default_rng(3).permutation(5_000)
    return mr.MasterStore.build(pa.table({"key": keys, "value": keys * 2}), tmp_path_factory.mktemp("s") / "s", "key")


def test_hits_behind_a_miss_are_held_back_and_a_hit_behind_nobody_is_not(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(
        store, "key", algorithm="cachejoin", memory="100kB", b=100, loads=1, ordered=True, threshold=1
    )
    hot = int(store.codes(0)[0])
    list(join.push(pa.record_batch({"key": [hot]})))
    assert sum(map(len, join.step())) == 1
    assert sum(map(len, join.push(pa.record_batch({"key": [hot, hot]})))) == 2, "nobody waits: hits pass"
    cold = int(store.codes(0)[4_000])
    assert list(join.push(pa.record_batch({"key": [cold, hot, hot]}))) == []
    m = join.metrics
    assert (m.waiting, m.held_back, m.cache_hits) == (3, 2, 4)
    assert m.parts["order"] > 0
    out = pa.Table.from_batches(join.step())
    assert out.column("key").to_pylist() == [cold, hot, hot]
    join.check_invariants()


def test_the_first_in_line_needs_no_memory_for_its_rows(tmp_path: Path) -> None:
    """One key with more rows than the budget could keep as numbers, for several tuples."""
    master = pa.table({"key": [1] * 20_000 + [2], "value": range(20_001)})
    store = mr.MasterStore.build(master, tmp_path / "s", "key")
    for algorithm in ("meshjoin", "hybridjoin", "lookup"):
        join = mr.SemiStreamJoin(store, "key", "left", algorithm=algorithm, memory="60kB", ordered=True)
        got = pa.Table.from_batches(join.run([pa.record_batch({"key": [1, 2, 3, 1], "n": [0, 1, 2, 3]})]))
        assert got.num_rows == 40_002
        assert got.column("n").to_pylist() == [0] * 20_000 + [1, 2] + [3] * 20_000
        assert sorted(got.column("value").to_pylist()[:20_000]) == list(range(20_000))
        join.check_invariants()


@pytest.mark.parametrize("algorithm", ["ssbj", "sscj", "cmeshjoin", "hybridjoin-pq"])
def test_a_longer_stream(store: mr.MasterStore, algorithm: str) -> None:
    stream = list(zipf_stream(6_000, 1.0, batch_rows=1_000, batches=4, seed=7))
    plain, ordered = (
        pa.Table.from_batches(
            mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory="60kB", ordered=o).run(stream)
        )
        for o in (False, True)
    )
    assert_same_rows(ordered, plain)
    keys = np.concatenate([batch.column("key").to_numpy() for batch in stream])
    assert ordered.column("key").to_pylist() == keys[np.isin(keys, store.codes(0))].tolist()


def test_a_snapshot_says_whether_it_is_ordered(store: mr.MasterStore) -> None:
    joins = [mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory="60kB", ordered=o) for o in (False, True)]
    for join in joins:
        list(join.push(pa.record_batch({"key": [1]})))
    plain, ordered = (join.snapshot() for join in joins)
    fresh: dict[str, Any] = {"algorithm": "meshjoin", "memory": "60kB"}
    with pytest.raises(StateError, match="ordered output"):
        mr.SemiStreamJoin(store, "key", **fresh).restore(ordered)
    with pytest.raises(StateError, match="without ordered output"):
        mr.SemiStreamJoin(store, "key", ordered=True, **fresh).restore(plain)
    with pytest.raises(ConfigError, match="ordered"):
        mr.SemiStreamJoin(store, "key", ordered=1, **fresh)  # type: ignore[arg-type]
    assert "order of the stream" in joins[1].explain()


def test_keys_wait_until_a_batch_of_them_is_looked_up_together(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", "left", algorithm="ordered", memory="100kB", batch=3)
    assert list(join.push(pa.record_batch({"key": [5, 5, -1]}))) == []
    out = pa.Table.from_batches(join.push(pa.record_batch({"key": [7, 8]})))
    assert out.column("key").to_pylist() == [5, 5, -1, 7], "three keys were looked up when the fourth came"
    assert out.column("value").to_pylist() == [10, 10, None, 14]
    join.check_invariants()
    assert list(join.push(pa.record_batch({"key": [5, -1]}))) == [], "they are known, and wait behind 8"
    assert join.metrics.held_back == 2
    assert pa.Table.from_batches(join.step()).column("key").to_pylist() == [8, 5, -1]
    assert sum(map(len, join.push(pa.record_batch({"key": [-1, 7]})))) == 2, "a key without rows is cached too"
    assert join.metrics.steps == 2


def test_the_least_recently_used_keys_go(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="ordered", memory="30kB", batch=10)
    hits = []
    for batch in zipf_stream(5_000, 1.0, batch_rows=500, batches=20, seed=7):
        for _ in join.push(batch):
            continue
        join.check_invariants()
        hits.append(join.metrics.cache_hits)
    m = join.metrics
    assert m.evicted_keys > 0
    assert m.admitted_keys - m.evicted_keys == m.cached_keys
    assert m.parts["cache"] < 0.5 * m.budget_bytes
    assert hits[-1] - hits[9] > 0.2 * 5_000


def test_order_can_be_given_up(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="ordered", ordered=False, memory="100kB", batch=3)
    list(join.push(pa.record_batch({"key": [5]})))
    assert sum(map(len, join.step())) == 1
    assert pa.Table.from_batches(join.push(pa.record_batch({"key": [9, 5]}))).column("key").to_pylist() == [5]


@pytest.mark.parametrize("algorithm", ["meshjoin", "r-meshjoin", "hybridjoin", "ordered"])
def test_who_finds_more_than_can_be_kept_finds_it_again(
    tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most keys have one row, so nobody expects what key 999 finds."""
    overrun: list[int] = []
    begin_again = OrderBuffer.begin_again

    def noticed(self: OrderBuffer, sequences: Sequences) -> None:
        overrun.extend(sequences.tolist())
        begin_again(self, sequences)

    monkeypatch.setattr(OrderBuffer, "begin_again", noticed)
    keys = [*range(500), *[999] * 300]
    store = mr.MasterStore.build(pa.table({"key": keys, "value": range(800)}), tmp_path / "s", "key")
    join = mr.SemiStreamJoin(store, "key", "left", algorithm=algorithm, memory="30kB", b=100, ordered=True)
    stream = pa.record_batch({"key": [999, 5, 777] * 10, "seq": range(30)})
    got = [*join.push(stream), *join.finish()]
    join.check_invariants()
    assert overrun
    seqs = pa.Table.from_batches(got).column("seq").to_pylist()
    assert seqs == [seq for seq in range(30) for _ in range(300 if seq % 3 == 0 else 1)]
    values = pa.Table.from_batches(got).column("value").to_pylist()
    assert sorted(values[:300]) == list(range(500, 800))


def hot_behind_cold(tmp_path: Path, rows_per_key: int, memory: int | str, **options: Any) -> mr.SemiStreamJoin:
    """Return a join that has key 1 in its cache with all of its rows."""
    keys = [*[1] * rows_per_key, *range(2, 2_000)]
    store = mr.MasterStore.build(pa.table({"key": keys, "value": range(len(keys))}), tmp_path / "s", "key")
    join = mr.SemiStreamJoin(store, "key", "left", memory=memory, ordered=True, **options)
    for _ in range(3):
        list(join.push(pa.record_batch({"key": [1], "seq": [-1]})))
        list(join.step())
    assert sum(map(len, join.push(pa.record_batch({"key": [1], "seq": [-1]})))) == rows_per_key, "it is cached"
    return join


@pytest.mark.parametrize("rows_per_key", [5, 15])
def test_hits_with_more_rows_than_can_be_held_lose_none(tmp_path: Path, rows_per_key: int) -> None:
    options: dict[str, Any] = {"algorithm": "sscj", "threshold": 1, "b": 100, "cache_share": 0.3}
    join = hot_behind_cold(tmp_path, rows_per_key, "60kB", **options)
    keys = ([1_900] + [1] * 60) * 3
    got = [*join.push(pa.record_batch({"key": keys, "seq": range(len(keys))})), *join.finish()]
    seqs = pa.Table.from_batches(got).column("seq").to_pylist()
    assert seqs == [seq for seq, key in enumerate(keys) for _ in range(rows_per_key if key == 1 else 1)]
    join.check_invariants()


def test_a_hit_is_counted_once_and_a_null_key_is_none(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="sscj", memory="40kB", ordered=True, threshold=1)
    for batch in zipf_stream(5_000, 1.2, batch_rows=500, batches=6, seed=7):
        list(join.push(batch))
    list(join.finish())
    m = join.metrics
    assert m.matched == m.tuples_in
    assert m.cache_hits > 500
    assert m.cache_hits + m.waits.total == m.tuples_in, "a tuple is a hit or has waited, and not both"
    nulls = mr.SemiStreamJoin(store, "key", "left", algorithm="sscj", memory="40kB", ordered=True)
    list(nulls.push(pa.record_batch({"key": pa.array([5, None, None], pa.int64())})))
    assert sum(map(len, nulls.finish())) == 3
    assert nulls.metrics.cache_hits == 0


def test_more_found_rows_than_are_written_at_a_time_survive(tmp_path: Path) -> None:
    keys = [1] * 30_000 + [0]
    store = mr.MasterStore.build(pa.table({"key": keys, "value": range(30_001)}), tmp_path / "s", "key")

    def fresh() -> mr.SemiStreamJoin:
        return mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory="12MB", b=30_000, ordered=True)

    first, second = fresh(), fresh()
    got = list(first.push(pa.record_batch({"key": [0, 1, 1, 1], "seq": range(4)})))
    got += list(first.step())
    assert first.metrics.parts["found rows"] > 90_000 * 8, "three tuples have found all of their rows"
    second.restore(first.snapshot())
    second.check_invariants()
    got += list(second.finish())
    out = pa.Table.from_batches(got)
    assert out.column("seq").to_pylist() == [0] + [seq for seq in (1, 2, 3) for _ in range(30_000)]
    for seq in (1, 2, 3):
        values = out.column("value").to_numpy()[1 + (seq - 1) * 30_000 : 1 + seq * 30_000]
        assert np.array_equal(np.sort(values), np.arange(30_000))
