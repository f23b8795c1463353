"""The oracle is judged by hand-written joins, and the comparison by tables that differ in one place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.spec import JoinSpec
from millrace.testing.cases import HOWS, KEY_KINDS, PAYLOADS, JoinCase, key_arrays
from millrace.testing.oracle import assert_same_rows, difference, oracle_join, same_rows

STREAM = pa.table({"k": [1, 2, None, 4], "s": ["a", "b", "c", "d"]})
MASTER = pa.table({"k": [2, 2, None, 4, 5], "m": [20, 21, 22, 40, 50]})


def rows(how: str) -> list[tuple[object, ...]]:
    joined = oracle_join(STREAM, MASTER, JoinSpec.of("k", how))
    return [tuple(row.values()) for row in joined.to_pylist()]


def test_inner_join_pairs_every_match_and_no_null() -> None:
    assert rows("inner") == [(2, "b", 20), (2, "b", 21), (4, "d", 40)]


def test_left_join_keeps_the_unmatched_with_nulls() -> None:
    assert rows("left") == [(1, "a", None), (2, "b", 20), (2, "b", 21), (None, "c", None), (4, "d", 40)]


def test_semi_and_anti_join_split_the_stream() -> None:
    assert rows("semi") == [(2, "b"), (4, "d")]
    assert rows("anti") == [(1, "a"), (None, "c")]


def test_a_null_in_one_column_of_a_composite_key_matches_nothing() -> None:
    stream = pa.table({"a": [1, 1], "b": ["x", None]})
    master = pa.table({"a": [1, 1], "b": ["x", None], "m": [1, 2]})
    assert oracle_join(stream, master, JoinSpec.of(["a", "b"])).column("m").to_pylist() == [1]


def test_columns_and_names_follow_the_spec() -> None:
    spec = JoinSpec.of({"id": "k"}, "left", ["m", "k"], suffix="_r")
    stream = pa.table({"id": [2], "m": [0]})
    assert oracle_join(stream, MASTER, spec).column_names == ["id", "m", "m_r", "k"]


def test_empty_sides() -> None:
    assert oracle_join(STREAM.slice(0, 0), MASTER, JoinSpec.of("k")).num_rows == 0
    assert oracle_join(STREAM, MASTER.slice(0, 0), JoinSpec.of("k", "left")).num_rows == 4


@pytest.mark.parametrize("key", KEY_KINDS)
def test_cases_have_distinct_keys_and_every_kind_of_join(key: str) -> None:
    ids = np.arange(150)
    made = key_arrays(key, ids)  # type: ignore[arg-type]
    keys = list(zip(*(array.to_pylist() for array in made), strict=True))
    assert len(set(keys)) == len(ids)
    case = JoinCase(key=key, stream_payload=PAYLOADS, master_payload=PAYLOADS)  # type: ignore[arg-type]
    counts = {how: replace(case, how=how).expected().num_rows for how in HOWS}
    assert counts["semi"] + counts["anti"] == case.stream_rows
    assert counts["left"] == counts["inner"] + counts["anti"]
    assert 0 < counts["semi"] < case.stream_rows
    assert sum(len(batch) for batch in case.batches()) == case.stream_rows


def test_the_comparison_ignores_order_and_counts_duplicates() -> None:
    assert same_rows(pa.table({"a": [1, 2, 2]}), pa.table({"a": [2, 2, 1]}))
    assert not same_rows(pa.table({"a": [1, 1, 2]}), pa.table({"a": [1, 2, 2]}))
    assert not same_rows(pa.table({"a": [1]}), pa.table({"a": [1, 1]}))


def test_the_comparison_sees_types_nulls_and_signs() -> None:
    nan = float("nan")
    assert same_rows(pa.table({"a": [nan, None]}), pa.table({"a": [None, nan]}))
    assert not same_rows(pa.table({"a": [0.0]}), pa.table({"a": [-0.0]}))
    assert not same_rows(pa.table({"a": [1]}), pa.table({"a": [1.0]}))
    assert not same_rows(pa.table({"a": [1]}), pa.table({"b": [1]}))
    assert not same_rows(pa.table({"a": [[1, None]]}), pa.table({"a": [[1, 0]]}))
    assert not same_rows(pa.table({"a": [True]}), pa.table({"a": [1]}))


def test_the_comparison_takes_batches_and_nothing_at_all() -> None:
    table = pa.table({"a": [1, 2]})
    assert same_rows(iter(table.to_batches(max_chunksize=1)), table)
    assert same_rows([], table.slice(0, 0))
    assert not same_rows([], table)


def test_an_error_shows_the_rows_side_by_side() -> None:
    got = pa.table({"key": [1, 22], "name": ["Ann", None]})
    expected = pa.table({"key": [1, 2], "name": ["Ann", "Bo"]})
    assert difference(got, expected) == (
        "output: expected 2 rows; got 2\n           key | name\n  missing    2 | 'Bo'\n  surplus   22 | None"
    )
    with pytest.raises(AssertionError, match=r"mine: expected 2 rows; got 2"):
        assert_same_rows(got, expected, "mine")


def test_an_error_shows_only_the_first_rows() -> None:
    text = difference(pa.table({"a": list(range(100))}), pa.table({"a": pa.array([], pa.int64())}))
    assert text is not None
    assert text.count("surplus") == 6
    assert "100 rows surplus in all" in text
