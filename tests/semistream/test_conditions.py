"""Conditions judged pair by pair: exact in every type, false for nulls, and refused when they make no sense."""

from __future__ import annotations

import pickle
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.core.errors import ConfigError, SchemaError
from millrace.semistream.conditions.condition import Conjunction
from millrace.semistream.waiting.condition_room import ConditionSearch
from millrace.testing.strategies import third_of_pairs

MOST, LEAST = 2**63 - 1, -(2**63)


def judged(condition: mr.Condition, ours: Any, theirs: Any, also: Any = None) -> list[bool]:
    """What a condition on columns ``x`` of the stream and ``m`` (and ``n``) of the master says of pairs."""
    stream = pa.record_batch({"x": ours})
    master = pa.record_batch({"m": theirs} if also is None else {"m": theirs, "n": also})
    condition.check(stream.schema, master.schema)
    said: list[bool] = condition.holds(stream, master).tolist()
    return said


def test_a_band_has_both_of_its_ends_and_no_more() -> None:
    near = mr.band("x", "m", below=2, above=1)
    assert judged(near, [10] * 6, [7, 8, 10, 11, 12, None]) == [False, True, True, True, False, False]


def test_a_band_of_whole_numbers_is_exact_to_the_end_of_64_bits() -> None:
    near = mr.band("x", "m", below=2, above=2)
    ours, theirs = [MOST, MOST, LEAST, LEAST, MOST], [MOST - 2, MOST - 3, LEAST + 2, LEAST + 3, LEAST]
    assert judged(near, ours, theirs) == [True, False, True, False, False]
    for width, within in ((2**70, True), (2**64 - 1, True), (2**64 - 2, False)):
        assert judged(mr.band("x", "m", below=width), [MOST], [LEAST]) == [within]
        assert judged(mr.band("x", "m", above=width), [LEAST], [MOST]) == [within]
    assert judged(mr.band("x", "m", below=0.9, above=1.9), [5] * 4, [4, 5, 6, 7]) == [False, True, True, False]


def test_a_band_of_floats_is_what_their_sum_says() -> None:
    """0.1 + 0.2 is more than 0.3, and a band of 0.2 around 0.1 does not care that it should not be."""
    assert judged(mr.band("x", "m", above=0.2), [0.1, 0.1], [0.3, 0.1 + 0.2]) == [True, True]
    assert judged(mr.band("x", "m", above=1e308), [1e308], [float("inf")]) == [True]
    assert judged(mr.band("x", "m", above=1.5), [1], [2.5]) == [True]


def test_a_band_of_decimals_takes_a_float_as_it_is_written() -> None:
    ours = pa.array([Decimal("1.00")] * 3, pa.decimal128(10, 2))
    theirs = pa.array([Decimal("1.2900"), Decimal("1.2901"), Decimal("0.9999")], pa.decimal128(12, 4))
    assert judged(mr.band("x", "m", above=0.29), ours, theirs) == [True, False, False]
    assert judged(mr.band("x", "m", above=Decimal("0.29")), ours, theirs) == [True, False, False]
    whole = pa.array([MOST, 1, LEAST])
    assert judged(mr.compare("x", ">", "m"), whole, theirs) == [True, False, False]


def test_distances_in_time() -> None:
    day = mr.band("x", "m", above=timedelta(days=1, hours=23))
    assert judged(day, [date(2026, 2, 28)] * 2, [date(2026, 3, 1), date(2026, 3, 2)]) == [True, False]
    ours = pa.array([datetime(2026, 1, 1)] * 2, pa.timestamp("s"))
    theirs = pa.array([datetime(2026, 1, 1, 0, 0, 0, 500), datetime(2026, 1, 1, 0, 0, 0, 501)], pa.timestamp("us"))
    assert judged(mr.band("x", "m", above=timedelta(microseconds=500)), ours, theirs) == [True, False]
    assert judged(mr.compare("x", "<", "m"), [time(9)], [time(9, 30)]) == [True]
    far = pa.array([2**40, -(2**40)], pa.timestamp("s"))
    assert judged(mr.compare("x", ">", "m"), far, pa.array([0, 0], pa.timestamp("ns"))) == [True, False]


@pytest.mark.parametrize(
    ("inclusive", "expected"), [("both", [1, 1, 1]), ("left", [1, 1, 0]), ("right", [0, 1, 1]), ("neither", [0, 1, 0])]
)
def test_ends_of_an_interval(inclusive: str, expected: list[int]) -> None:
    inside = mr.between("x", "m", "n", inclusive=inclusive)
    assert judged(inside, [1, 2, 3], [1, 1, 1], [3, 3, 3]) == [bool(flag) for flag in expected]
    assert (
        judged(mr.between("x", "m", "n"), [2, 2], pa.array([None, 1]), pa.array([3, None], pa.int64())) == [False] * 2
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([1, 2, 3, None], [2, 2, 2, 2]),
        ([1, 2, 3, 2], [2.0, 2.0, 2.0, None]),
        (["a", "b", "c", None], ["b", "b", "b", "b"]),
        ([b"a", b"b", b"c", None], [b"b", b"b", b"b", b"b"]),
        (
            pa.array([1, 2, 3, None], pa.uint64()),
            pa.array([2, 2, 2, 2], pa.uint64()),
        ),
        (pa.array([1, 2, 3, None], pa.decimal128(30, 4)), pa.array([2, 2, 2, 2], pa.decimal128(20, 2))),
    ],
    ids=["whole", "mixed", "text", "bytes", "unsigned", "wide decimals"],
)
def test_every_sign(ours: Any, theirs: Any) -> None:
    expected = {"<": [1, 0, 0], "<=": [1, 1, 0], ">": [0, 0, 1], ">=": [0, 1, 1], "!=": [1, 0, 1], "==": [0, 1, 0]}
    for sign, flags in expected.items():
        assert judged(mr.compare("x", sign, "m"), ours, theirs) == [*map(bool, flags), False], sign


def test_a_predicate_may_answer_in_arrow_or_numpy_and_null_means_no() -> None:
    answers = [pa.array([True, None, False]), np.array([True, False, False]), pa.chunked_array([[True], [None, False]])]
    for answer in answers:
        said = mr.predicate(lambda s, m, answer=answer: answer, stream=["x"], master=["m"])  # type: ignore[misc]
        assert judged(said, [1, 2, 3], [1, 2, 3]) == [True, False, False]


def test_a_later_condition_sees_only_pairs_that_have_passed() -> None:
    seen: list[int] = []

    def noted(stream: pa.RecordBatch, master: pa.RecordBatch) -> Any:
        seen.extend(stream["x"].to_pylist())
        assert stream.schema.names == ["x"]
        return np.ones(len(stream), bool)

    both = mr.compare("x", ">", "m") & mr.predicate(noted, stream=["x"], master=["m"])
    assert judged(both, [1, 5, 7], [3, 3, 9]) == [False, True, False]
    assert seen == [5]


def test_conditions_are_combined_and_sent_elsewhere() -> None:
    three = mr.band("x", "m", below=1) & (
        mr.compare("x", "!=", "m") & mr.predicate(third_of_pairs, stream=["seq"], master=["row"])
    )
    assert isinstance(three, Conjunction)
    assert len(three.parts) == 3
    assert (three.stream, three.master) == (("x", "seq"), ("m", "row"))
    assert pickle.loads(pickle.dumps(three)) == three
    assert str(three).startswith("band(x, m, below=1, above=0) & compare(x != m) & predicate(third_of_pairs, ")
    with pytest.raises(ConfigError, match="with &, not with and"):
        three and three  # noqa: B018
    with pytest.raises(TypeError):
        three & 3  # type: ignore[operator]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: mr.band("x", "m", below=-1), "band: below: expected .* at least 0; got -1"),
        (lambda: mr.band("x", "m", above=float("nan")), "band: above: .*got nan"),
        (lambda: mr.band("x", "m", above=float("inf")), "band: above: .*finite.*got inf"),
        (lambda: mr.band("x", "m", above="5"), "band: above: .*got '5'"),
        (lambda: mr.band("x", "m", above=True), "band: above: .*got True"),
        (lambda: mr.band("x", 3), "band: expected the name of a column; got 3"),  # type: ignore[arg-type]
        (lambda: mr.between("x", "m", None), "between: expected the name of a column"),  # type: ignore[arg-type]
        (lambda: mr.between("x", "m", "n", inclusive="yes"), "inclusive: expected one of 'both'.*got 'yes'"),
        (lambda: mr.compare("x", "=", "m"), "sign: expected one of '<'.*got '='"),
        (lambda: mr.predicate("x > m", stream=["x"], master=["m"]), "expected a function"),  # type: ignore[arg-type]
        (lambda: mr.predicate(third_of_pairs, stream="x", master=["m"]), "stream: expected a list"),
        (lambda: mr.predicate(third_of_pairs, stream=["x"], master=[]), "none of the master"),
    ],
)
def test_conditions_that_make_no_sense(made: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made()


@pytest.mark.parametrize(
    ("condition", "ours", "theirs", "words"),
    [
        (mr.compare("x", "<", "m"), pa.timestamp("us"), pa.timestamp("us", "UTC"), "timestamp.*cannot be compared"),
        (mr.compare("x", "<", "m"), pa.date32(), pa.timestamp("us"), "date32.*timestamp"),
        (mr.compare("x", "<", "m"), pa.float64(), pa.decimal128(10, 2), "decimals and floats"),
        (mr.compare("x", "<", "m"), pa.float64(), pa.decimal128(30, 2), "decimals and floats"),
        (mr.compare("x", "<", "m"), pa.int64(), pa.uint64(), "int64.*uint64"),
        (mr.compare("x", "<", "m"), pa.bool_(), pa.int8(), "bool.*int8"),
        (mr.band("x", "m"), pa.decimal128(30, 2), pa.decimal128(30, 2), "18 digits"),
        (mr.band("x", "m", above=1), pa.date32(), pa.date32(), "timedelta.*got 1"),
        (mr.band("x", "m", above=timedelta(1)), pa.int8(), pa.int8(), "a number"),
    ],
)
def test_types_that_do_not_go_together(condition: mr.Condition, ours: Any, theirs: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        condition.check(pa.schema({"x": ours}), pa.schema({"m": theirs}))


def test_what_is_searched_is_bounded_on_both_sides_if_anything_is() -> None:
    stream = pa.schema({"a": pa.int64(), "b": pa.float64(), "c": pa.string()})
    master = pa.schema({"x": pa.int64(), "y": pa.int64(), "z": pa.string()})
    above, below = mr.compare("a", ">=", "x"), mr.compare("a", "<", "y")
    near, text = mr.band("b", "x", above=1), mr.compare("c", "<", "z")

    def searched(condition: mr.Condition) -> tuple[str | None, int, str]:
        search = ConditionSearch(condition, stream, master)
        return search.column, len(search.edges), str(search.rest)

    assert searched(above) == ("a", 1, "None")
    assert searched(text & above & below) == ("a", 2, str(text))
    assert searched(above & near) == ("b", 2, str(above))
    assert searched(near & above & below) == ("b", 2, str(above & below))
    assert searched(text & mr.compare("a", "!=", "x")) == (None, 0, f"{text} & compare(a != x)")


def test_what_is_too_much_for_64_bits_is_never_taken_for_less() -> None:
    ours, theirs = pa.array([50_000]), pa.array([Decimal(50)], pa.decimal128(18, 16))
    with pytest.raises(SchemaError, match=r"50000 \(int64\) is too large"):
        judged(mr.band("x", "m", below=4960), ours, theirs)
    assert judged(mr.compare("x", ">", "m"), ours, theirs) == [True]
