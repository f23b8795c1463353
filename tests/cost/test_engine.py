"""The engine's model against the engine: its sizes exactly, its rates on a modelled disk nearly."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import millrace as mr
from millrace.core.errors import BudgetTooSmallError, ConfigError
from millrace.cost import engine_paged, engine_room, plan
from millrace.cost.engine import PREDICTED, predict
from millrace.cost.engine_room import filter_bytes, least_memory
from millrace.cost.frequencies import Frequencies
from millrace.cost.measured import MeasuredCosts
from millrace.cost.symbols import Disk, UnitCosts
from millrace.cost.workload import Workload
from millrace.datasets import STREAM_SCHEMA, synthetic_master
from millrace.kernels import code_index as index
from millrace.kernels.bitfilter import filter_words
from millrace.master.device import Device
from millrace.rows.code_filter import LEAST_MATCHES
from millrace.semistream.access import oldest as indexed
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.choose.join_workload import workload_of
from millrace.semistream.waiting import waiting_room as waiting
from millrace_bench.benchmarks.cost import CostSetting, join_workload, measure

pytestmark = pytest.mark.sampled(4)

ROWS = 50_000
DISK = Disk(0.006, 120e6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mr.MasterStore:
    return mr.MasterStore.build(synthetic_master(ROWS), tmp_path_factory.mktemp("cost") / "s", "key")


def faced(rows: int = 1_000_000, skew: float = 1.0, **changes: Any) -> Workload:
    frequencies = Frequencies.zipf(skew, rows)
    return Workload(rows, 120.0, 52.0, DISK, frequencies, 155.0, **changes)


def bound(store: mr.MasterStore, algorithm: str, memory: int, **options: Any) -> mr.SemiStreamJoin:
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory=memory, device=Device("hdd-2013"), **options)
    join.bind(STREAM_SCHEMA)
    return join


def uniform(join: mr.SemiStreamJoin) -> Workload:
    return workload_of(join.arguments, join.loop.parts.binding, Frequencies.uniform(ROWS))


def test_what_is_written_twice_is_the_same() -> None:
    assert engine_room.CHUNK_BYTES == waiting.CHUNK_BYTES
    assert index.ENTRY.itemsize == engine_paged._ENTRY_BYTES
    assert engine_paged._PART_OF_ROOM == indexed._PART_OF_ROOM
    assert plan.LEAST_MATCHES == LEAST_MATCHES
    for tuples in (0, 1, 100, 819, 820, 99_387, 1_000_000):
        assert filter_bytes(tuples) == 8 * filter_words(tuples + tuples // 4)
    assert set(PREDICTED) <= set(ALGORITHMS)


@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj", "hybridjoin", "sscj"])
@pytest.mark.parametrize("memory", [100_000, 1_000_000])
def test_a_join_begins_with_the_sizes_that_are_predicted(store: mr.MasterStore, algorithm: str, memory: int) -> None:
    join = bound(store, algorithm, memory)
    predicted = predict(uniform(join), algorithm, memory)
    assert predicted.b == join.b
    assert predicted.parts["load"] == join.metrics.parts["load"]
    assert sum(predicted.parts.values()) <= memory * 1.001


@pytest.mark.parametrize("b", [1, 500])
def test_the_least_memory_is_the_joins(store: mr.MasterStore, b: int) -> None:
    least = least_memory(uniform(bound(store, "meshjoin", 1_000_000)), b)
    with pytest.raises(BudgetTooSmallError) as error:
        bound(store, "meshjoin", least - 1, b=b)
    assert error.value.minimum == least
    bound(store, "meshjoin", least, b=b)


@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj", "hybridjoin", "sscj"])
def test_rates_and_steps_are_as_predicted(store: mr.MasterStore, algorithm: str, skew: float) -> None:
    setting = CostSetting("hdd-2013", algorithm, skew)
    periods = (10, 8) if algorithm == "sscj" and skew else (5, 6)  # with so few pages the threshold takes its time
    found = measure(store, setting, "6%" if algorithm == "sscj" else "15%", seed=5, periods=periods)
    expected = predict(join_workload(store, setting), algorithm, int(found["memory"]))
    assert expected.rate == pytest.approx(found["rate"], rel=0.15)
    assert expected.c_loop == pytest.approx(found["c_loop"], rel=0.15)
    assert expected.hit_share == pytest.approx(found["hit_share"], abs=0.07)


def test_tuples_that_stay_for_a_turn_are_as_predicted(store: mr.MasterStore) -> None:
    setting = CostSetting("hdd-2007", "meshjoin", 1.0, leave_early=False)
    found = measure(store, setting, "15%", seed=5, periods=(3, 3))
    expected = predict(join_workload(store, setting), "meshjoin", int(found["memory"]))
    assert expected.rate == pytest.approx(found["rate"], rel=0.03)
    assert expected.c_loop == pytest.approx(found["c_loop"], rel=0.01)


def test_waits_are_as_predicted(store: mr.MasterStore) -> None:
    join = bound(store, "meshjoin", 1_000_000)
    predicted = predict(uniform(join), "meshjoin", 1_000_000)
    assert predicted.worst_wait / predicted.c_loop == pytest.approx(join.k)
    assert predicted.mean_wait == predicted.worst_wait / 2
    paged = predict(faced(), "hybridjoin", 1_000_000)
    assert paged.mean_wait < paged.worst_wait < 3 * paged.mean_wait


def test_unit_costs_slow_every_algorithm_down() -> None:
    slow = UnitCosts(*[1e-6] * len(fields(UnitCosts)))
    for algorithm in PREDICTED:
        free, charged = (predict(faced(costs=costs), algorithm, 2_000_000) for costs in (UnitCosts(), slow))
        assert charged.rate < free.rate
        assert charged.c_loop > free.c_loop


def test_more_memory_is_faster_and_skew_helps_caches() -> None:
    for algorithm in PREDICTED:
        rates = [predict(faced(), algorithm, memory).rate for memory in (300_000, 1_000_000, 4_000_000, 16_000_000)]
        assert rates == sorted(rates)
    for algorithm in ("ssbj", "sscj", "cachejoin"):
        even, skewed = (predict(faced(skew=skew), algorithm, 4_000_000) for skew in (0.0, 1.0))
        assert skewed.hit_share > 0.4 > 0.1 > even.hit_share
        assert skewed.rate > even.rate


def test_a_look_up_reads_each_page_once() -> None:
    """All pages in one go if the batch is large; a page and a seek for each of a few tuples."""
    few, many = (predict(faced(batch=batch), "lookup", 1_000_000) for batch in (2, 10_000_000))
    disk, rows = faced().disk, faced().rows
    assert few.c_loop == pytest.approx(2 * disk.c_IO(8192), rel=0.1)
    assert many.c_loop == pytest.approx(disk.c_IO(rows * faced().read_bytes), rel=0.1)
    assert (few.worst_wait, few.b, few.parts) == (0.0, 0, {})


def test_pages_are_predicted_for_one_row_to_a_key() -> None:
    for algorithm in ("hybridjoin", "cachejoin", "sscj"):
        with pytest.raises(ConfigError, match=f"{algorithm}: the model expects one master row per key; got 2.5"):
            predict(faced(rows_per_key=2.5), algorithm, 2_000_000)
    assert predict(faced(rows_per_key=2.5), "ssbj", 2_000_000).rate > 0


def test_measured_costs_lie_between_those_of_the_nearest_budgets() -> None:
    near, far = UnitCosts(c_H=1e-9, c_O=2e-7), UnitCosts(c_H=3e-9, c_O=4e-7)
    costs = MeasuredCosts((1_000_000, 4_000_000), (near, far))
    assert (costs.at(1), costs.at(1_000_000), costs.at(10**12)) == (near, near, far)
    assert costs.at(2_000_000).c_O == pytest.approx(3e-7)
    assert MeasuredCosts.from_plain(costs.to_plain()) == costs
    slow, fast = (predict(faced(costs=c), "meshjoin", 4_000_000).rate for c in (costs, near))
    assert slow < fast
    with pytest.raises(ConfigError, match="ascending"):
        MeasuredCosts((2, 1), (near, far))


def test_loads_of_a_step_are_r_meshjoins_own_affair() -> None:
    """With as many waiting tuples it is as fast; what differs is how many tuples come in a step."""
    one, four = (predict(faced(), "r-meshjoin", 4_000_000, b=1_000, l=l) for l in (1, 4))  # noqa: E741
    assert four.rate == pytest.approx(one.rate, rel=0.15)
    assert four.c_loop == pytest.approx(4 * one.c_loop, rel=0.01)
    assert one.rate == predict(faced(), "meshjoin", 4_000_000, b=1_000).rate


def test_a_master_that_fits_is_joined_in_memory() -> None:
    predicted = predict(faced(rows=10_000), "ssbj", 4_000_000)
    assert predicted.hit_share == 1
    assert predicted.rate == float("inf")
    assert predict(faced(rows=10_000, costs=UnitCosts(c_H=1e-6)), "ssbj", 4_000_000).rate == pytest.approx(1e6)


def test_rows_of_repeated_keys_are_counted_once() -> None:
    unique = predict(faced(rows=10_000), "ssbj", 4_000_000)
    repeated = Workload(10_000, 120.0, 52.0, DISK, Frequencies.zipf(1.0, 2_000), 5 * 155.0, rows_per_key=5.0)
    assert predict(repeated, "ssbj", 4_000_000).parts == unique.parts


def test_nonsense_is_refused(store: mr.MasterStore) -> None:
    with pytest.raises(ConfigError, match="algorithm: expected one of 'meshjoin'"):
        predict(faced(), "ssij", 1_000_000)
    with pytest.raises(BudgetTooSmallError, match=r"1\.0 kB is too little for sscj with b=1; the least is"):
        predict(faced(), "sscj", 1_000)
    with pytest.raises(ConfigError, match="cached_bytes: ssbj caches rows"):
        predict(Workload(1_000, 100, 50, DISK, Frequencies.uniform(1_000)), "ssbj", 1_000_000)
    with pytest.raises(ConfigError, match="rows: expected a number above 0; got 0"):
        Workload(0, 100, 50, DISK, Frequencies.uniform(1_000))
    join = mr.SemiStreamJoin(store, "key", memory=1_000_000)
    join.bind(STREAM_SCHEMA)
    with pytest.raises(ConfigError, match="the join's device does not model a disk"):
        uniform(join)
