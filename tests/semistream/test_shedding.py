"""Tuples are dropped when that is asked for, as many as was said, and every one is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import millrace as mr
from millrace.core.clock import VirtualClock
from millrace.core.errors import ConfigError
from millrace.datasets import zipf_stream
from millrace.testing import conformance
from millrace.testing.cases import JoinCase
from millrace.testing.conformance import Subject
from millrace.testing.oracle import assert_same_rows, oracle_join
from millrace.testing.strategies import join_cases

pytestmark = pytest.mark.sampled(4)

KEYS = 2_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    table = pa.table({"key": range(KEYS), "value": range(KEYS)})
    return mr.MasterStore.build(table, tmp_path_factory.mktemp("s") / "s", "key")


def stream(tuples: int = 20_000) -> pa.Table:
    keys = np.random.default_rng(1).integers(0, KEYS + 500, tuples)
    return pa.table({"key": keys, "seq": np.arange(tuples)})


def joined(join: mr.SemiStreamJoin, table: pa.Table, rows: int = 1_000) -> pa.Table:
    got: list[pa.RecordBatch] = []
    for batch in table.to_batches(rows):
        got += join.push(batch)
        join.check_invariants()
    got += join.finish()
    join.check_invariants()
    return pa.Table.from_batches(got)


@pytest.mark.parametrize("algorithm", ["ssbj", "meshjoin", "sscj", "lookup"])
@pytest.mark.parametrize("shed", ["random", "key"])
@settings(max_examples=2, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(case=join_cases())
def test_keeping_everything_is_exact(algorithm: str, shed: str, case: JoinCase) -> None:
    case = replace(case, stream_rows=min(case.stream_rows, 100), master_rows=min(case.master_rows, 50))
    conformance.check_run(Subject(algorithm, {"shed": shed, "keep": 1}), case)


@pytest.mark.parametrize("algorithm", ["ssbj", "hybridjoin", "lookup", "ordered"])
@pytest.mark.parametrize("keep", [0.05, 0.25, 0.9])
def test_random_tuples_are_kept_at_the_rate_that_was_asked_for(
    store: mr.MasterStore, algorithm: str, keep: float
) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory="200kB", shed="random", keep=keep)
    got, m = joined(join, stream()), join.metrics
    expected = stream().num_rows
    spread = 4 * (expected * keep * (1 - keep)) ** 0.5
    assert abs(m.tuples_in - m.shed - keep * expected) < spread
    whole = oracle_join(stream(), pa.table({"key": range(KEYS), "value": range(KEYS)}), join.spec)
    assert abs(got.num_rows - keep * whole.num_rows) < spread
    assert m.tuples_in == expected
    assert m.sampling_rate == pytest.approx((m.matched + m.unmatched) / expected)
    kept = set(got.column("seq").to_pylist())
    assert_same_rows(got, whole.filter(pa.array([seq in kept for seq in whole.column("seq").to_pylist()])))


def test_the_same_tuples_are_kept_however_the_stream_is_cut(store: mr.MasterStore) -> None:
    def run(rows: int, seed: int) -> pa.Table:
        shed = mr.Shedding("random", keep=0.3, seed=seed)
        return joined(mr.SemiStreamJoin(store, "key", memory="200kB", shed=shed), stream(5_000), rows)

    assert_same_rows(run(7, 5), run(1_000, 5))
    assert run(1_000, 6).num_rows != run(1_000, 5).num_rows


@pytest.mark.parametrize("how", ["inner", "left", "anti"])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_join_of_the_kept_keys_is_exact(store: mr.MasterStore, how: str, ordered: bool) -> None:
    join = mr.SemiStreamJoin(store, "key", how, memory="200kB", shed="key", keep=0.25, ordered=ordered)
    got = joined(join, stream())
    kept = set(got.column("key").to_pylist())
    domain = {"inner": KEYS, "left": KEYS + 500, "anti": 500}[how]
    assert 0.15 * domain < len(kept) < 0.35 * domain
    assert join.shedding is not None
    codes = np.arange(KEYS + 500)
    wanted = codes[join.shedding.kept(codes, codes, np.zeros(len(codes), np.bool_))].tolist()
    of_kept = stream().filter(pa.array([key in set(wanted) for key in stream().column("key").to_pylist()]))
    assert_same_rows(got, oracle_join(of_kept, pa.table({"key": range(KEYS), "value": range(KEYS)}), join.spec))


def test_keys_kept_of_less_are_kept_of_more() -> None:
    shedding, keys = mr.Shedding("key", keep=0.2, seed=3), np.arange(10_000)
    some = shedding.kept(keys, keys, np.zeros(len(keys), np.bool_))
    shedding.keep = 0.6
    more = shedding.kept(keys, keys, np.zeros(len(keys), np.bool_))
    assert more[some].all()
    assert some.sum() < more.sum()


def test_the_share_can_be_changed_at_any_time(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", memory="200kB", shed="random", keep=0)
    assert join.shedding is not None
    batches = stream().to_batches(1_000)
    assert list(join.push(batches[0])) == []
    assert join.metrics.shed == 1_000
    join.shedding.keep = 1
    list(join.push(batches[1]))
    assert join.metrics.shed == 1_000
    assert join.metrics.sampling_rate == 0.5
    assert "sheds load: keeps 100.0% of the tuples; 1,000 tuples shed" in join.explain()


def test_whoever_the_cache_answers_is_spared(tmp_path_factory: pytest.TempPathFactory) -> None:
    keys = np.arange(20_000)
    table = pa.table({"key": keys, "value": keys})
    big = mr.MasterStore.build(table, tmp_path_factory.mktemp("big") / "s", "key")

    def run(spare_hits: bool) -> mr.SemiStreamJoin:
        shed = mr.Shedding("random", keep=0.5, spare_hits=spare_hits)
        join = mr.SemiStreamJoin(big, "key", algorithm="sscj", memory="100kB", shed=shed)
        for batch in zipf_stream(20_000, 1.0, batch_rows=1_000, batches=20, seed=7):
            list(join.push(batch))
            join.check_invariants()
        list(join.finish())
        return join

    spared, plain = run(True).metrics, run(False).metrics
    assert spared.cache_hits > plain.cache_hits
    assert 0 < spared.shed < plain.shed
    assert spared.tuples_in == plain.tuples_in == 20_000
    assert abs(spared.shed - (spared.tuples_in - spared.cache_hits) / 2) < 400, "half of those who would have waited"


def test_the_share_follows_the_load(store: mr.MasterStore) -> None:
    clock = VirtualClock()
    device = mr.Device("hdd-2007", clock=clock)
    shed = mr.Shedding("random", clock=clock)
    join = mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory="60kB", device=device, shed=shed)
    assert shed.observe(1e9) == 1.0, "nothing is known yet"
    batches = iter(stream().to_batches(2_000))
    list(join.push(next(batches)))
    list(join.push(next(batches)))
    shed.observe(0)
    rate = shed.service_rate
    assert rate == pytest.approx((join.metrics.matched + join.metrics.unmatched) / clock.now())
    assert shed.observe(rate / 2) == 1.0
    assert shed.observe(rate * 4) == pytest.approx(0.25)
    assert shed.observe(rate, backlog=int(10 * rate)) == pytest.approx(0.5, rel=0.01)
    before = join.metrics.shed
    list(join.push(next(batches)))
    assert 800 < join.metrics.shed - before < 1_200
    clock.advance(1_000)  # the reader's time is not the join's
    list(join.push(next(batches)))
    assert shed.observe(rate * 4) == pytest.approx(0.25, rel=0.5)
    shed.keep = 0.9
    assert shed.observe(rate * 4) == 0.9, "a fixed share stays"
    assert "following the load" not in join.explain()


def test_counts_survive(store: mr.MasterStore) -> None:
    def make() -> mr.SemiStreamJoin:
        return mr.SemiStreamJoin(store, "key", "left", algorithm="meshjoin", memory="60kB", shed="random", keep=0.4)

    batches = stream(6_000).to_batches(1_000)
    straight, first, second = make(), make(), make()
    expected = [row for batch in batches for row in straight.push(batch)] + list(straight.finish())
    got = [row for batch in batches[:3] for row in first.push(batch)]
    second.restore(first.snapshot())
    assert second.metrics.shed == first.metrics.shed > 0
    got += [row for batch in batches[3:] for row in second.push(batch)] + list(second.finish())
    assert_same_rows(got, expected)
    assert second.metrics.shed == straight.metrics.shed
    second.check_invariants()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shed": "oldest"}, "shed: expected one of 'random', 'key'; got 'oldest'"),
        ({"shed": "random", "keep": 1.2}, "keep: expected a share from 0 to 1, or 'auto'; got 1.2"),
        ({"shed": "random", "keep": True}, "keep: expected a share"),
        ({"shed": "key", "keep": "most"}, "keep: expected a share"),
        ({"keep": 0.5}, "keep: needs shed"),
        ({"shed": mr.Shedding("key"), "keep": 0.5}, "keep: needs shed"),
        ({"shed": mr.Shedding("key", spare_hits=True), "ordered": True}, "spare_hits.*in ordered output a hit may"),
        ({"shed": mr.Shedding("key", spare_hits=True), "algorithm": "lookup"}, "spare_hits.*lookup answers every"),
    ],
)
def test_what_cannot_work(store: mr.MasterStore, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mr.SemiStreamJoin(store, "key", **arguments)


def test_observations_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="arrived_per_second: expected a number of at least 0; got -1"):
        mr.Shedding("random").observe(-1)
    with pytest.raises(ConfigError, match="backlog"):
        mr.Shedding("random").observe(1, backlog=-5)
    with pytest.raises(ConfigError, match="seed"):
        mr.Shedding("random", seed=-1)
