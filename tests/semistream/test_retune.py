"""b and w change while the join runs, and nobody can tell from its output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.core.errors import BudgetExceededError, BudgetTooSmallError, ConfigError, StateError
from millrace.testing import conformance
from millrace.testing.cases import JoinCase
from millrace.testing.conformance import Subject
from millrace.testing.oracle import assert_same_rows
from millrace.testing.strategies import join_cases

pytestmark = pytest.mark.sampled(4)

TURNING = [
    Subject("meshjoin", {"leave_early": True}),
    Subject("meshjoin", {"leave_early": False}),
    Subject("ssbj", {"migration": "rolling", "evict_every": 1}),
    Subject("ssbj", {"migration": "three-cycle", "leave_early": False, "evict_every": 2}),
    Subject("cmeshjoin", {"leave_early": False}),
    Subject("r-meshjoin", {"l": 3}),
    Subject("r-meshjoin", {"l": 2, "leave_early": False}),
    Subject("meshjoin", {"ordered": True}),
    Subject("ssbj", {"ordered": True}),
]
calls = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 25)),
        st.tuples(st.just("step"), st.integers(1, 4)),
        st.tuples(st.just("b"), st.integers(1, 60)),
        st.tuples(st.just("b"), st.none() | st.integers(5, 15)),
        st.tuples(st.just("w"), st.none() | st.integers(1, 30)),
    ),
    min_size=20,
    max_size=40,
)


@pytest.mark.parametrize("subject", TURNING, ids=str)
@settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(case=join_cases(stream_rows=150, missing=False, unique=False, extra=6_000), calls=calls)
def test_any_sequence_of_calls_is_exact(subject: Subject, case: JoinCase, calls: list[tuple[str, Any]]) -> None:
    case = subject.fit(replace(case, master_rows=20 + case.master_rows % 60, b=7))
    with conformance.built(case) as store:
        join = subject.make(store, case)
        join.bind(case.stream().schema)
        whole = pa.Table.from_batches(case.stream().combine_chunks().to_batches(), case.stream().schema)
        at, got = 0, []
        for call, number in calls:
            if call == "push":
                batches = whole.slice(at, number).to_batches()
                got += [row for batch in batches for row in join.push(batch)]
                at += number
            elif call == "step":
                got += [row for _ in range(number) for row in join.step()]
            else:
                try:
                    join.retune(**{call: number})
                except (BudgetExceededError, BudgetTooSmallError):
                    assert number is None or number > 7
            join.check_invariants()
            conformance.check_budget(subject, join)
        for batch in whole.slice(at).to_batches():
            got += list(join.push(batch))
        got += list(join.finish())
        join.check_invariants()
    assert_same_rows(got, case.expected(), f"{subject}")
    if join.ordered:
        conformance.check_order(subject, got)


# more than exactness


@pytest.fixture
def store(tmp_path: Path) -> mr.MasterStore:
    keys = np.random.default_rng(3).permutation(1_000)
    return mr.MasterStore.build(pa.table({"key": keys, "value": keys}), tmp_path / "s", "key")


def fed(store: mr.MasterStore, algorithm: str = "meshjoin", **other: Any) -> mr.SemiStreamJoin:
    arguments: dict[str, Any] = {"memory": "40kB", "leave_early": False, **other}
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, **arguments)
    feed(join, 3_000)
    return join


def feed(join: mr.SemiStreamJoin, tuples: int) -> None:
    keys = np.random.default_rng(5).integers(0, 1_000, tuples)
    for at in range(0, tuples, 100):
        for _ in join.push(pa.record_batch({"key": keys[at : at + 100]})):
            continue


def retune_as_soon_as_possible(join: mr.SemiStreamJoin, b: int) -> None:
    for _ in range(join.k + 1):
        try:
            join.retune(b=b)
            return
        except BudgetExceededError:
            list(join.step())
    raise AssertionError("nobody waits and still it does not fit")


@pytest.mark.parametrize(("before", "after"), [(10, 100), (100, 10), (50, 40), (40, 50)])
@pytest.mark.parametrize("algorithm", ["meshjoin", "r-meshjoin"])
def test_another_b_takes_effect_within_a_turn(store: mr.MasterStore, algorithm: str, before: int, after: int) -> None:
    join = fed(store, algorithm, b=before)
    load = join.metrics.parts["load"]
    retune_as_soon_as_possible(join, after)
    assert join.metrics.parts["load"] - load == 8 * (after - before)
    feed(join, 4_000)  # more than the room holds twice
    m = join.metrics
    probes, steps = m.probes, m.steps
    feed(join, 4_000)
    loads = 4 if algorithm == "r-meshjoin" else 1
    m = join.metrics
    assert (m.probes - probes) / (m.steps - steps) == pytest.approx(after * loads, rel=0.35)
    join.check_invariants()


def test_w_can_be_fixed_and_given_back(store: mr.MasterStore) -> None:
    join = fed(store, b=100)

    def admitted_per_step(join: mr.SemiStreamJoin) -> float:
        m = join.metrics
        gone, steps = m.matched + m.unmatched, m.steps
        feed(join, 2_000)
        m = join.metrics
        return (m.matched + m.unmatched - gone) / (m.steps - steps)

    automatic = admitted_per_step(join)
    join.retune(w=5)
    feed(join, 500)
    assert admitted_per_step(join) == pytest.approx(5, rel=0.1)
    join.retune(w=None)
    feed(join, 500)
    assert admitted_per_step(join) == pytest.approx(automatic, rel=0.3)


def test_a_load_that_does_not_fit_changes_nothing(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory="9kB", b=20)
    feed(join, 400)
    parts, k = join.metrics.parts, join.k
    with pytest.raises(
        BudgetExceededError, match=r"b: loads of 500 rows need 3.* more, but only .* of 9.0 kB are left"
    ):
        join.retune(b=500, w=3)
    assert (join.b, join.k) == (20, k)
    assert join.metrics.parts["load"] == parts["load"]
    with pytest.raises(BudgetTooSmallError, match="b=1000"):
        join.retune(b=10_000)
    join.retune(w=3)
    list(join.finish())
    join.check_invariants()


def test_what_was_retuned_survives_in_a_join_with_another_b(store: mr.MasterStore) -> None:
    join = fed(store, b=10)
    join.retune(b=37)
    feed(join, 300)
    again = mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory="40kB", leave_early=False, b=100)
    again.restore(join.snapshot())
    waiting = again.metrics.waiting
    rows = sum(map(len, again.finish()))
    assert 0 < rows <= waiting
    again.check_invariants()


def test_before_the_first_tuple(store: mr.MasterStore) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory="40kB", b=10)
    join.retune(b=20, w=7)
    feed(join, 100)
    assert join.b == 20
    with pytest.raises(BudgetTooSmallError, match="memory"):
        mr.SemiStreamJoin(store, "key", algorithm="meshjoin", memory="9kB").retune(b=100_000)


def test_what_cannot_be_tuned(store: mr.MasterStore) -> None:
    join = fed(store, "hybridjoin", b=50)
    with pytest.raises(ConfigError, match="b: hybridjoin has pages of b rows, which cannot change; only w can"):
        join.retune(b=20)
    join.retune(w=9)
    feed(join, 500)
    with pytest.raises(ConfigError, match="retune: lookup answers tuples as they come"):
        fed(store, "lookup").retune(w=3)
    for bad in (0, 2.5, "many"):
        with pytest.raises(ConfigError, match="b: expected a whole number of at least 1, or None"):
            fed(store).retune(b=bad)  # type: ignore[arg-type]
    join = mr.SemiStreamJoin(store, "key", algorithm="lookup", memory="40kB")
    unread = join.push(pa.record_batch({"key": [1]}))
    next(unread)
    with pytest.raises(StateError, match="retune: the batches of the last call have not been read to their end"):
        join.retune(w=1)


# what can be set at all


@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj", "hybridjoin"])
def test_no_load_has_more_rows_than_the_master(store: mr.MasterStore, algorithm: str) -> None:
    join = mr.SemiStreamJoin(store, "key", algorithm=algorithm, memory="60kB", b=10**12)
    assert join.options["b"] == store.rows
    feed(join, 100)
    assert join.b == store.rows
    if algorithm == "meshjoin":
        join.retune(b=10**12)
        assert join.b == store.rows
    fresh = mr.SemiStreamJoin(store, "key", memory="60kB")
    fresh.retune(b=10**12)
    assert fresh.options["b"] == store.rows


@pytest.mark.parametrize("algorithm", ["lookup", "inl"])
def test_where_nobody_waits_there_is_neither_b_nor_w(store: mr.MasterStore, algorithm: str) -> None:
    for options, named in (({"b": 5}, "b"), ({"w": 5}, "w"), ({"b": 5, "w": 5, "turbo": 1}, "b, w, turbo")):
        with pytest.raises(ConfigError, match=f"{algorithm}: unknown option {named}; "):
            mr.SemiStreamJoin(store, "key", algorithm=algorithm, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sscj: unknown option turbo; known: b, w, "):
        mr.SemiStreamJoin(store, "key", algorithm="sscj", turbo=1)
