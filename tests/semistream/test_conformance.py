"""Every algorithm of the table keeps every rule of the design, on random joins."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.space import FileSpace
from millrace.core.spec import How
from millrace.testing import conformance
from millrace.testing.cases import HOWS, KEY_KINDS, PAYLOADS, JoinCase, KeyKind
from millrace.testing.conformance import Subject, subjects
from millrace.testing.strategies import examples, join_cases

pytestmark = pytest.mark.sampled(4)

every_subject = pytest.mark.parametrize("subject", subjects(), ids=str)


@every_subject
@examples(12)
@given(case=join_cases())
def test_every_call_keeps_the_rules(subject: Subject, case: JoinCase) -> None:
    conformance.check_run(subject, case)


@every_subject
@examples(6)
@given(case=join_cases(spread="skewed", missing=True))
def test_hot_keys_come_and_go_exactly(subject: Subject, case: JoinCase) -> None:
    options = {"evict_every": 1} if subject.algorithm == "ssbj" else {}
    conformance.check_run(replace(subject, options={**subject.options, **options}), case)


@every_subject
@examples(6)
@given(case=join_cases(), stop=st.integers(0, 60))
def test_a_restored_join_goes_on_as_if_nothing_had_happened(subject: Subject, case: JoinCase, stop: int) -> None:
    conformance.check_snapshot(subject, case, stop)


@every_subject
@examples(4)
@given(case=join_cases(stream_payload=(), master_payload=("string",)))
def test_nobody_waits_longer_than_a_turn(subject: Subject, case: JoinCase) -> None:
    conformance.check_waits(subject, case)


@every_subject
@examples(6)
@given(case=join_cases())
def test_the_same_input_gives_the_same_batches(subject: Subject, case: JoinCase) -> None:
    conformance.check_deterministic(subject, case)


@every_subject
@examples(2)
@given(case=join_cases(), seed=st.integers(0, 99))
def test_parameters_and_order_make_no_difference(subject: Subject, case: JoinCase, seed: int) -> None:
    conformance.check_metamorphic(subject, case, seed)


@every_subject
@examples(3)
@given(case=join_cases())
def test_after_the_end_everything_is_given_back(subject: Subject, case: JoinCase) -> None:
    conformance.check_drained(subject, case)


@every_subject
def test_bad_input_is_refused_by_name(subject: Subject, tmp_path: Path) -> None:
    conformance.check_refusals(subject, tmp_path)


@every_subject
def test_a_tuple_that_cannot_fit_is_refused_by_name(subject: Subject, tmp_path: Path) -> None:
    conformance.check_too_wide(subject, tmp_path)


@every_subject
@pytest.mark.parametrize("key", KEY_KINDS)
def test_every_key_type_with_every_payload(subject: Subject, key: KeyKind) -> None:
    case = JoinCase(key=key, how="left", stream_rows=120, master_rows=120, domain=30, extra=20_000, b=25)
    conformance.check_run(subject, replace(case, stream_payload=PAYLOADS, master_payload=PAYLOADS, shards=2))


@every_subject
@pytest.mark.parametrize("how", HOWS)
def test_every_kind_of_join_of_every_key_type(subject: Subject, how: How) -> None:
    for key, unique in itertools.product(KEY_KINDS, (True, False)):
        case = JoinCase(key=key, how=how, unique=unique, stream_rows=50, master_rows=30, master_payload=("string",))
        conformance.check_exact(subject, replace(case, extra=3_000, shards=1 + unique))


@every_subject
@pytest.mark.parametrize("how", ["inner", "semi"])
def test_bigger_tables(subject: Subject, how: Any) -> None:
    case = JoinCase(how=how, stream_rows=3_000, master_rows=200, domain=100, sizes=(1, 0, 400, 3), steps=(1,), b=9)
    for unique in (True, False):
        conformance.check_exact(subject, replace(case, unique=unique, extra=8_000))


@every_subject
def test_arrays_in_files_make_no_difference(subject: Subject, tmp_path: Path) -> None:
    case = JoinCase(stream_rows=400, domain=20, master_payload=("string", "list"), extra=6_000)
    for run in range(2):  # the second finds what the first left in the files
        conformance.check_run(replace(subject, options={**subject.options, "space": FileSpace(tmp_path)}), case)
        case = replace(case, seed=run + 1)


@examples(15)
@given(case=join_cases(how="inner", spread="skewed", extra=3_000))
def test_ssbj_with_an_infinite_switching_factor_is_meshjoin(case: JoinCase) -> None:
    subject = Subject("ssbj", {"switching_factor": 1e12})
    with conformance.built(case) as store:
        join = subject.make(store, case)
        join.bind(case.stream().schema)
        for call in conformance.calls(join, case):
            list(call)
        cached = join.metrics.cached_rows
    if case.master_rows and cached:
        assert join.budget.total > 60_000, "a row is cached that is not worth it"
    conformance.check_exact(subject, case)
