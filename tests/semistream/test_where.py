"""Joins with a condition beside the key, and without a key, keep every rule, whatever the algorithm."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.core.errors import ConfigError, SchemaError, StateError
from millrace.core.spec import How, JoinSpec
from millrace.master.read.wheel import Load
from millrace.semistream.waiting.condition_room import ConditionRoom
from millrace.testing import conformance
from millrace.testing.cases import HOWS, JoinCase, KeyKind
from millrace.testing.conformance import Subject, refused, subjects
from millrace.testing.oracle import assert_same_rows, oracle_join
from millrace.testing.strategies import COMPARED, conditional_cases, examples, third_of_pairs

pytestmark = pytest.mark.sampled(4)

KEYLESS = [name for name, algorithm in mr.ALGORITHMS.items() if algorithm.keyless]


def on_one_thread(algorithms: list[str] | None = None) -> list[Subject]:
    return [replace(each, options={**each.options, "threads": 1}) for each in subjects(algorithms)]


every_subject = pytest.mark.parametrize("subject", on_one_thread(), ids=str)
every_keyless = pytest.mark.parametrize("subject", on_one_thread(KEYLESS), ids=str)
every_how = pytest.mark.parametrize("how", HOWS)

NEAR = mr.band("s_int", "m_int", below=300, above=200)
INSIDE = mr.between("s_float", "m_int", "m_float", inclusive="left")
MORE_THAN = mr.compare("s_int", ">", "m_int")
THIRD = mr.predicate(third_of_pairs, stream=["seq"], master=["row"])
KEYS: tuple[KeyKind, ...] = ("int64", "string")
CONDITIONS = {
    "band": NEAR,
    "between": INSIDE,
    "compare": MORE_THAN,
    "unequal": mr.compare("s_string", "!=", "m_string"),
    "text": mr.compare("s_string", "<=", "m_string"),
    "predicate": THIRD,
    "all": MORE_THAN & mr.compare("s_float", "<", "m_float") & NEAR & THIRD,
}


def case_of(where: mr.Condition, **other: Any) -> JoinCase:
    usual = JoinCase(stream_rows=70, master_rows=40, stream_payload=COMPARED, master_payload=COMPARED, w=9, where=where)
    return replace(usual, **other)


# beside a key


@every_subject
@examples(4)
@given(case=conditional_cases())
def test_a_condition_beside_the_key_is_kept_by_every_algorithm(subject: Subject, case: JoinCase) -> None:
    conformance.check_run(subject, case)


@every_subject
@every_how
def test_every_kind_of_join_of_unique_and_repeated_keys(subject: Subject, how: How) -> None:
    for unique, key in itertools.product((True, False), KEYS):
        case = case_of(NEAR & THIRD, how=how, unique=unique, key=key, domain=40 if unique else 12, extra=6_000)
        conformance.check_exact(subject, case)


@every_subject
@examples(2)
@given(case=conditional_cases(), stop=st.integers(0, 60))
def test_a_restored_join_knows_who_has_matched(subject: Subject, case: JoinCase, stop: int) -> None:
    conformance.check_snapshot(subject, case, stop)


@pytest.mark.parametrize("algorithm", [name for name, each in mr.ALGORITHMS.items() if each.many])
@every_how
def test_a_hot_key_is_judged_in_the_cache_by_columns_that_do_not_come_out(
    algorithm: str, how: How, tmp_path: Path
) -> None:
    """One key has three rows, and whether a tuple matches differs from tuple to tuple."""
    master = pa.table({"k": [1, 1, 1, *range(2, 300)], "limit": [30, 10, 20, *([0] * 298)], "name": ["x"] * 301})
    store = mr.MasterStore.build(master, tmp_path / "store", key="k")
    stream = pa.table({"k": pa.array([1, 2] * 900), "amount": pa.array(np.arange(1800) % 40)})
    where = mr.compare("amount", ">=", "limit")
    join = mr.SemiStreamJoin(
        store, on="k", how=how, where=where, algorithm=algorithm, memory=14_000, columns=["name"], suffix="_m"
    )
    got = list(join.run(stream.to_batches(max_chunksize=50)))
    assert_same_rows(got, oracle_join(stream, master, JoinSpec.of("k", how, ["name"], "_m"), where), algorithm)
    if algorithm in ("ssbj", "cachejoin", "sscj"):
        assert join.metrics.cache_hits > 100, "the cache was not put to the test"


def test_a_tuple_whose_only_row_fails_leaves_with_it(tmp_path: Path) -> None:
    master = pa.table({"k": range(100), "limit": [50] * 100})
    store = mr.MasterStore.build(master, tmp_path / "store", key="k")
    where = mr.compare("amount", ">=", "limit")
    for algorithm in ("meshjoin", "hybridjoin"):
        join = mr.SemiStreamJoin(store, "k", "left", where=where, algorithm=algorithm, memory="64kB", b=50, w=1000)
        list(join.push(pa.record_batch({"k": [*range(50)], "amount": [0, 99] * 25})))
        (out,) = join.step()
        assert join.metrics.waiting == 0
        assert (join.metrics.matched, join.metrics.unmatched) == (25, 25)
        assert out.column("limit").null_count == 25


def test_a_kept_cache_is_for_the_same_columns_only(tmp_path: Path) -> None:
    master = pa.table({"k": range(50), "limit": range(50), "other": range(50), "name": ["x"] * 50})
    store = mr.MasterStore.build(master, tmp_path / "store", key="k")
    stream = pa.record_batch({"k": [1, 2, 3] * 50, "amount": [2] * 150})

    def bound(where: mr.Condition) -> mr.SemiStreamJoin:
        join = mr.SemiStreamJoin(store, "k", where=where, algorithm="sscj", memory="64kB", columns=["name"])
        join.bind(stream.schema)
        return join

    first = bound(mr.compare("amount", ">=", "limit"))
    list(first.run([stream]))
    assert first.metrics.cached_keys
    assert first.keep_cache(tmp_path / "kept")
    assert not bound(mr.compare("amount", ">=", "other")).recall_cache(tmp_path / "kept")
    again = bound(mr.compare("amount", "<", "limit"))
    assert again.recall_cache(tmp_path / "kept")
    assert_same_rows(
        list(again.run([stream])),
        oracle_join(pa.table(stream), master, JoinSpec.of("k", columns=["name"]), again.where),
    )


# without a key


@every_keyless
@examples(15)
@given(case=conditional_cases(keyless=True))
def test_a_join_without_a_key_keeps_every_rule(subject: Subject, case: JoinCase) -> None:
    conformance.check_run(subject, case)


@pytest.mark.parametrize("algorithm", KEYLESS)
@every_how
@pytest.mark.parametrize("name", CONDITIONS)
def test_every_condition_without_a_key(algorithm: str, how: How, name: str) -> None:
    subject = Subject(algorithm, {"threads": 1})
    case = case_of(CONDITIONS[name], how=how, keyless=True, stream_rows=40, extra=4_000)
    conformance.check_run(subject, case)
    conformance.check_exact(subject, replace(case, b=None, w=None, extra=500_000, shards=2))


@every_keyless
@examples(6)
@given(case=conditional_cases(keyless=True), stop=st.integers(0, 60))
def test_a_restored_join_without_a_key_goes_on(subject: Subject, case: JoinCase, stop: int) -> None:
    conformance.check_snapshot(subject, case, stop)


@every_keyless
@examples(3)
@given(case=conditional_cases(keyless=True), seed=st.integers(0, 99))
def test_parameters_and_order_make_no_difference(subject: Subject, case: JoinCase, seed: int) -> None:
    conformance.check_metamorphic(subject, case, seed)


@every_keyless
@examples(3)
@given(case=conditional_cases(keyless=True))
def test_nobody_waits_longer_than_a_turn_and_all_is_given_back(subject: Subject, case: JoinCase) -> None:
    conformance.check_waits(subject, case)
    conformance.check_drained(subject, case)
    conformance.check_deterministic(subject, case)


@every_keyless
def test_key_columns_come_out_as_ordinary_ones(subject: Subject, tmp_path: Path) -> None:
    master = pa.table({"id": [7, 8], "low": [0, 10], "high": [10, 20]})
    store = mr.MasterStore.build(master, tmp_path / "store", key="id")
    join = mr.SemiStreamJoin(
        store, where=mr.between("x", "low", "high"), algorithm=subject.algorithm, memory="64kB", **subject.options
    )
    rows = pa.Table.from_batches(join.run([pa.record_batch({"x": [10, 15, 30]})])).sort_by(
        [("x", "ascending"), ("id", "ascending")]
    )
    assert rows.to_pydict() == {"x": [10, 10, 15], "id": [7, 8, 8], "low": [0, 10, 10], "high": [10, 20, 20]}


def test_meshjoin_is_what_joins_without_a_key_unless_told_otherwise(tmp_path: Path) -> None:
    store = mr.MasterStore.build(pa.table({"k": [1]}), tmp_path / "store", key="k")
    where = mr.compare("x", "<", "k")
    assert mr.SemiStreamJoin(store, where=where).algorithm.name == "meshjoin"
    assert mr.SemiStreamJoin(store, on="k", where=mr.compare("x", "<", "k")).algorithm.name == "ssbj"


def test_an_empty_stream_and_an_empty_master(tmp_path: Path) -> None:
    where = mr.compare("x", "<", "k")
    store = mr.MasterStore.build(pa.table({"k": [1]}), tmp_path / "store", key="k")
    assert list(mr.SemiStreamJoin(store, where=where).run([])) == []
    assert list(mr.SemiStreamJoin(store, where=where).run([pa.record_batch({"x": pa.array([], pa.int64())})])) == []
    empty = mr.MasterStore.build(pa.table({"k": pa.array([], pa.int64())}), tmp_path / "empty", key="k")
    (out,) = mr.SemiStreamJoin(empty, how="left", where=where).run([pa.record_batch({"x": [1, 2]})])
    assert out.to_pydict() == {"x": [1, 2], "k": [None, None]}


def test_not_a_number_and_null_match_nothing(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    values = [nan, None, -inf, -1.0, -0.0, 0.0, 1.0, inf]
    master = pa.table({"row": range(len(values)), "m": pa.array(values, pa.float64())})
    stream = pa.table({"seq": range(len(values)), "x": pa.array(values, pa.float64())})
    store = mr.MasterStore.build(master, tmp_path / "store", key="row")
    signs = ["<", "<=", ">", ">=", "!=", "=="]
    for where in [
        *(mr.compare("x", sign, "m") for sign in signs),
        mr.band("x", "m", below=1),
        mr.between("x", "m", "m"),
    ]:
        for how in HOWS:
            join = mr.SemiStreamJoin(store, how=how, where=where, memory="64kB", b=3)
            assert_same_rows(
                list(join.run(stream)), oracle_join(stream, master, JoinSpec.without_key(how), where), f"{where}"
            )


def test_times_of_different_units_are_compared_in_the_finer(tmp_path: Path) -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    offsets = [timedelta(milliseconds=i * 250) for i in range(-12, 12)]
    master = pa.table(
        {
            "id": range(24),
            "valid_from": pa.array([noon + o for o in offsets], pa.timestamp("ms", "UTC")),
            "valid_to": pa.array([noon + 2 * o for o in offsets], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    stream = pa.table(
        {"seq": range(7), "ts": pa.array([noon + timedelta(seconds=i - 3) for i in range(7)], pa.timestamp("s", "UTC"))}
    )
    store = mr.MasterStore.build(master, tmp_path / "store", key="id")
    second = timedelta(seconds=1, microseconds=300_000)
    for where in (mr.between("ts", "valid_from", "valid_to"), mr.band("ts", "valid_from", above=second)):
        join = mr.SemiStreamJoin(store, where=where, memory="64kB", b=5)
        expected = oracle_join(stream, master, JoinSpec.without_key(), where)
        assert 5 < expected.num_rows < 100
        assert_same_rows(list(join.run(stream)), expected, f"{where}")


# how candidates are found


def _pairs_judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the candidates of every load from now on, and checks that no piece is too big."""
    judged: list[int] = []
    pairs = ConditionRoom.pairs

    def counted(self: ConditionRoom, load: Load, met: Any) -> Iterator[Any]:
        for slots, positions in pairs(self, load, met):
            assert len(slots) <= len(self._slots)
            judged.append(len(slots))
            yield slots, positions

    monkeypatch.setattr(ConditionRoom, "pairs", counted)
    return judged


@pytest.mark.parametrize(
    ("where", "searched"),
    [
        (mr.band("x", "m", below=4, above=4), True),
        (mr.compare("x", ">=", "m") & mr.compare("x", "<=", "m_top"), True),
        (mr.compare("x", ">=", "m") & mr.band("y", "m", below=4, above=4), True),
        (mr.compare("x", "!=", "m"), False),
    ],
    ids=str,
)
def test_only_a_range_of_the_waiting_tuples_is_judged(
    where: mr.Condition, searched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 10_000, 500)
    store = mr.MasterStore.build(pa.table({"m": values, "m_top": values + 10}), tmp_path / "store", key="m")
    x = rng.integers(0, 10_000, 200)
    judged = _pairs_judged(monkeypatch)
    join = mr.SemiStreamJoin(store, where=where, memory="200kB")
    stream = pa.record_batch({"x": x, "y": x})
    out = list(join.run([stream]))
    assert_same_rows(out, oracle_join(pa.Table.from_batches([stream]), store.to_table(), join.spec, where))
    rows = sum(map(len, out))
    if searched:
        assert 0 < rows <= sum(judged) <= 2 * rows, "pairs were tried in vain"
    else:
        assert sum(judged) == 500 * 200
    assert len(judged) > 1


def test_the_budget_covers_the_order(tmp_path: Path) -> None:
    """A tuple of a searched join costs more by its place in the order, and the room holds fewer."""
    store = mr.MasterStore.build(pa.table({"k": range(1000), "m": range(1000)}), tmp_path / "store", key="k")
    schema = pa.schema({"x": pa.int64()})
    rooms = []
    for where in (mr.compare("x", "!=", "m"), mr.compare("x", "<", "m"), mr.band("x", "m", below=1)):
        join = mr.SemiStreamJoin(store, where=where, memory="100kB")
        join.bind(schema)
        rooms.append(join.tuple_bytes)
    assert rooms == [rooms[0], rooms[0] + 24, rooms[0] + 32]


# what is refused


def test_conditions_that_cannot_work_are_refused_by_name(tmp_path: Path) -> None:
    master = pa.table({"k": [1, 2], "m": [1, 2], "name": ["a", "b"], "list": [[1], [2]]})
    store = mr.MasterStore.build(master, tmp_path / "store", key="k")
    stream = pa.record_batch({"k": [1], "x": [1], "s": ["a"], "l": [[1]], "at": [datetime(2026, 1, 1)]})

    def pushed(where: Any, **other: Any) -> None:
        list(mr.SemiStreamJoin(store, where=where, suffix="_m", **other).push(stream))

    compare, band = mr.compare, mr.band
    refused(SchemaError, ["compare(nope < m)", "stream", "'nope'", "x, s"], lambda: pushed(compare("nope", "<", "m")))
    refused(SchemaError, ["master", "'nope'", "name"], lambda: pushed(compare("x", "<", "nope"), on="k"))
    refused(SchemaError, ["'s'", "string", "'m'", "int64"], lambda: pushed(compare("s", "<", "m")))
    refused(SchemaError, ["'l'", "list"], lambda: pushed(compare("l", "<", "list")))
    refused(SchemaError, ["'at'", "timestamp", "int64"], lambda: pushed(compare("at", "<", "m")))
    refused(SchemaError, ["band", "columns of numbers", "string"], lambda: pushed(band("s", "name", below=1)))
    refused(SchemaError, ["band", "a number", "timedelta"], lambda: pushed(band("x", "m", below=timedelta(1))))
    refused(ConfigError, ["where", "condition", "'x < m'"], lambda: pushed("x < m"))
    refused(SchemaError, ["on", "None"], lambda: mr.SemiStreamJoin(store))
    for algorithm in mr.ALGORITHMS.values():
        if not algorithm.keyless:
            refused(
                ConfigError,
                [algorithm.name, "on=", *KEYLESS],
                lambda name=algorithm.name: pushed(compare("x", "<", "m"), algorithm=name),  # type: ignore[misc]
            )
    assert KEYLESS == ["meshjoin", "r-meshjoin"]


@pytest.mark.parametrize("on", ["k", None])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda s, m: np.ones(len(s) + 1, bool), ["boolean array of length 1", "length 2"]),
        (lambda s, m: pa.array([1] * len(s)), ["boolean", "int64"]),
        (lambda s, m: True, ["boolean", "bool"]),
    ],
)
def test_a_predicate_that_gives_no_mask_is_refused(
    on: str | None, answer: Any, words: list[str], tmp_path: Path
) -> None:
    store = mr.MasterStore.build(pa.table({"k": [1]}), tmp_path / "store", key="k")
    where = mr.predicate(answer, stream=["k"], master=["k"])
    refused(
        SchemaError,
        words,
        lambda: list(mr.SemiStreamJoin(store, on, "semi", where=where).run([pa.record_batch({"k": [1]})])),
    )


def test_a_snapshot_is_for_the_same_condition_only(tmp_path: Path) -> None:
    store = mr.MasterStore.build(pa.table({"k": range(9)}), tmp_path / "store", key="k")

    def made(above: int) -> mr.SemiStreamJoin:
        return mr.SemiStreamJoin(store, where=mr.band("x", "k", above=above), memory="64kB", b=2, w=1)

    join = made(1)
    list(join.push(pa.record_batch({"x": [1, 2]})))
    state = join.snapshot()
    refused(StateError, ["kind of join", "above=1", "above=2"], lambda: made(2).restore(state))
    made(1).restore(state)


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_nested_values_of_a_tuple_that_has_left_are_not_judged_again(tmp_path: Path, how: str) -> None:
    """All tuples match the first master row, so their values are freed before the next row of the block."""

    def always(tags: pa.Array, x: pa.Array) -> pa.Array:
        return pa.array([True] * len(tags))

    store = mr.MasterStore.build(pa.table({"x": range(200)}), tmp_path / "s", "x")
    where = mr.predicate(always, stream=["tags"], master=["x"])
    join = mr.SemiStreamJoin(store, None, how, where=where, algorithm="meshjoin", memory="20kB")
    out = [*join.push(pa.record_batch({"tags": [[number] for number in range(60)]})), *join.finish()]
    assert sum(map(len, out)) == (60 if how == "semi" else 0)


def test_a_time_that_is_too_far_for_the_steps_it_is_compared_in_is_refused(tmp_path: Path) -> None:
    """It would be taken for the last time that can be counted, and match what it is far from."""
    last = pa.array([2**63 - 1], pa.timestamp("ns"))
    store = mr.MasterStore.build(pa.table({"k": [1], "then": last}), tmp_path / "s", "k")
    far = pa.record_batch({"at": pa.array([10**11], pa.timestamp("s"))})
    join = mr.SemiStreamJoin(store, where=mr.band("at", "then", below=timedelta(days=1), above=timedelta(days=1)))
    with pytest.raises(SchemaError, match="is too large to be converted to steps of"):
        list(join.push(far))


def test_the_budget_covers_the_search_of_a_block_of_master_rows(tmp_path: Path) -> None:
    store = mr.MasterStore.build(pa.table({"k": range(1000), "m": range(1000)}), tmp_path / "s", "k")
    parts = []
    for memory in ("100kB", "1MB"):
        join = mr.SemiStreamJoin(store, where=mr.band("x", "m", below=1), memory=memory)
        join.bind(pa.schema({"x": pa.int64()}))
        parts.append(join.metrics.parts["ranges"])
    assert 0 < parts[0] < parts[1] <= 10_000, "edges and ranges of each row of a block"
