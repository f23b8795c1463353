"""The oracle of pairs and of several inputs is judged by hand-written joins and by loops over all combinations."""

from __future__ import annotations

import itertools
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.errors import ConfigError, SchemaError
from millrace.testing import pair_oracle
from millrace.testing.oracle import assert_same_rows, same_rows
from millrace.testing.pair_oracle import (
    PAIR_HOWS,
    Equal,
    Link,
    Near,
    PairHow,
    equal_keys,
    oracle_multi,
    oracle_pair,
    pair_columns,
)
from millrace.testing.strategies import examples

LEFT = pa.table({"k": [1, 2, None, 4], "v": ["a", "b", "c", "d"]})
RIGHT = pa.table({"k": [2, 2, None, 4, 5], "v": [20, 21, 22, 40, 50]})


def rows(how: PairHow) -> list[tuple[object, ...]]:
    table = oracle_pair(LEFT, RIGHT, equal_keys("k"), how)
    return [tuple(row.values()) for row in table.to_pylist()]


MATCHED: list[tuple[object, ...]] = [(2, "b", 20), (2, "b", 21), (4, "d", 40)]
LONELY_LEFT: list[tuple[object, ...]] = [(1, "a", None), (None, "c", None)]
LONELY_RIGHT: list[tuple[object, ...]] = [(None, None, 22), (5, None, 50)]


def test_every_kind_of_join_by_hand() -> None:
    assert rows("inner") == MATCHED
    assert rows("left") == MATCHED + LONELY_LEFT
    assert rows("right") == MATCHED + LONELY_RIGHT
    assert rows("full") == MATCHED + LONELY_LEFT + LONELY_RIGHT
    assert rows("semi") == [(2, "b"), (4, "d")]
    assert rows("anti") == [(1, "a"), (None, "c")]


def test_columns_are_the_left_s_then_the_right_s() -> None:
    assert oracle_pair(LEFT, RIGHT, equal_keys("k")).column_names == ["k", "v", "v_right"]
    banded = oracle_pair(LEFT, RIGHT, [Near("left.k", "right.k", 1, 1)])
    assert banded.column_names == ["k", "v", "k_right", "v_right"]
    named = pair_columns(LEFT.schema, RIGHT.schema, equal_keys({"k": "v"}), "full", suffix="_2")
    assert named == {"k": ["left.k", "right.v"], "v": "left.v", "k_2": "right.k"}
    chosen = oracle_pair(LEFT, RIGHT, equal_keys("k"), columns={"x": "right.v", "y": "left.v"})
    assert chosen.to_pydict() == {"x": [20, 21, 40], "y": ["b", "b", "d"]}


def test_keys_of_several_columns() -> None:
    left = pa.table({"a": [1, 1, 2], "b": ["x", None, "x"]})
    right = pa.table({"a": [1, 1, 2], "b": ["x", None, "y"], "r": [1, 2, 3]})
    assert oracle_pair(left, right, equal_keys(["a", "b"])).to_pydict() == {"a": [1], "b": ["x"], "r": [1]}


@pytest.mark.parametrize(
    ("ours", "theirs", "below", "above", "expected"),
    [
        ([10, None], [6, 7, 10, 12, 13, None], 3, 2, [7, 10, 12]),
        ([1.5], [1.0, 1.4, 1.6, float("nan")], 0.1, 0.05, [1.4]),
        ([float("nan")], [float("nan"), 1.0], 5, 5, []),
        ([2**62], [2**62 - 1, 2**62, -(2**62)], 0, 2**62, [2**62]),
        ([2**53 + 1], [float(2**53), float(2**53 + 2)], 0, 0, []),
        ([Decimal("1.10")], [Decimal("1.05"), Decimal("1.16")], 0.05, 0.05, [Decimal("1.05")]),
        ([date(2024, 3, 1)], [date(2024, 2, 28), date(2024, 3, 3)], timedelta(2), 0, [date(2024, 2, 28)]),
    ],
)
def test_bands_are_exact(ours: list[Any], theirs: list[Any], below: Any, above: Any, expected: list[Any]) -> None:
    link = Near("left.x", "right.x", below, above)
    joined = oracle_pair(pa.table({"x": ours}), pa.table({"x": theirs}), [link], columns={"y": "right.x"})
    assert joined["y"].to_pylist() == expected


values = st.none() | st.integers(0, 4)
tables = st.lists(st.tuples(values, values), max_size=7)


def meets(link: Link, row: dict[str, Any]) -> bool:
    one, other = row[link.one], row[link.other]
    if one is None or other is None:
        return False
    return bool(one == other if isinstance(link, Equal) else one - link.below <= other <= one + link.above)


def made(name: str, content: list[tuple[Any, Any]]) -> pa.Table:
    schema = pa.schema([("x", pa.int64()), ("y", pa.int64()), ("n", pa.int64())])
    return pa.Table.from_pylist([{"x": x, "y": y, "n": n} for n, (x, y) in enumerate(content)], schema=schema)


CONDITIONS: dict[str, list[Link]] = {
    "chain": [Equal("a.x", "b.x"), Equal("b.y", "c.y"), Near("c.x", "d.x", 1, 0)],
    "star": [Equal("a.x", "b.x"), Equal("a.x", "c.x"), Equal("d.x", "a.x")],
    "snowflake": [Equal("b.x", "a.x"), Near("c.x", "a.y", 0, 1), Equal("d.y", "c.y")],
    "triangle": [Equal("a.x", "b.x"), Equal("b.y", "c.y"), Equal("c.x", "a.y"), Near("d.x", "a.x", 0, 2)],
    "two on one pair": [Equal("a.x", "b.x"), Near("a.y", "b.y", 1, 1), Equal("b.x", "c.x"), Equal("c.y", "d.y")],
    "untied": [Equal("a.x", "b.x"), Equal("c.y", "d.y")],
}


@pytest.mark.parametrize("shape", CONDITIONS)
@examples(15)
@given(st.tuples(tables, tables, tables, tables))
def test_several_inputs_against_plain_loops(shape: str, contents: tuple[list[tuple[Any, Any]], ...]) -> None:
    inputs = {name: made(name, content) for name, content in zip("abcd", contents, strict=True)}
    links = CONDITIONS[shape]
    expected = []
    for combination in itertools.product(*(table.to_pylist() for table in inputs.values())):
        row = {
            f"{name}.{column}": v for name, each in zip("abcd", combination, strict=True) for column, v in each.items()
        }
        if all(meets(link, row) for link in links):
            expected.append({name: row[f"{name}.n"] for name in "abcd"})
    columns = {name: f"{name}.n" for name in "abcd"}
    wanted = pa.Table.from_pylist(expected, schema=pa.schema([(name, pa.int64()) for name in "abcd"]))
    assert_same_rows(oracle_multi(inputs, links, columns), wanted)


@examples(20)
@given(tables, tables, st.sampled_from(PAIR_HOWS))
def test_large_joins_are_looked_at_in_stretches(left: list[Any], right: list[Any], how: PairHow) -> None:
    one, other = made("left", left), made("right", right)
    whole = oracle_pair(one, other, equal_keys("x"), how)
    cells = pair_oracle._CELLS
    try:
        pair_oracle._CELLS = 5
        assert same_rows(oracle_pair(one, other, equal_keys("x"), how), whole)
    finally:
        pair_oracle._CELLS = cells


@examples(20)
@given(tables, tables)
def test_kinds_of_join_fit_together(left: list[Any], right: list[Any]) -> None:
    one, other = made("left", left), made("right", right)
    count = {how: oracle_pair(one, other, equal_keys(["x", "y"]), how).num_rows for how in PAIR_HOWS}
    assert count["semi"] + count["anti"] == len(left)
    assert count["left"] == count["inner"] + count["anti"]
    assert count["full"] == count["left"] + count["right"] - count["inner"]


def test_dictionaries_and_text_come_out_plain() -> None:
    left = pa.table({"k": pa.array(["x", "y", None]).dictionary_encode()})
    right = pa.table({"k": pa.chunked_array([["y"], ["z"]]), "r": [[1], [2]]})
    assert oracle_pair(left, right, equal_keys("k"), "left").to_pydict() == {
        "k": ["y", "x", None],
        "r": [[1], None, None],
    }


def test_what_cannot_be_joined() -> None:
    with pytest.raises(ConfigError, match=r"how: expected one of 'inner', .*; got 'outer'"):
        oracle_pair(LEFT, RIGHT, equal_keys("k"), "outer")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="expected columns of two of the inputs left, right"):
        oracle_pair(LEFT, RIGHT, [Equal("left.k", "left.v")])
    with pytest.raises(SchemaError, match="expected columns of two of the inputs left, right"):
        oracle_pair(LEFT, RIGHT, [Equal("left.k", "master.k")])
