"""What schedules promise: every row once and in order, every input ended once; and that rare shapes do come up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import find, given
from hypothesis import strategies as st

from millrace.testing.schedules import (
    End,
    Idle,
    InputTables,
    Operation,
    Push,
    Snapshot,
    budgets,
    scheduled_inputs,
    schedules,
    small_tables,
)
from millrace.testing.strategies import examples

Drawn = tuple[InputTables, list[Operation]]


@examples(40)
@given(scheduled_inputs(("a", "b", "c"), most=40))
def test_every_row_comes_once_and_every_input_ends_once(drawn: Drawn) -> None:
    inputs, schedule = drawn
    came: dict[str, list[pa.RecordBatch]] = {name: [] for name in inputs.tables}
    ended: Counter[str] = Counter()
    for operation, batch in inputs.batches(schedule):
        if isinstance(operation, Push):
            assert batch is not None
            assert not ended[operation.input]
            assert batch.num_rows == operation.rows
            came[operation.input].append(batch)
        elif isinstance(operation, End):
            ended[operation.input] += 1
    assert ended == Counter(dict.fromkeys(inputs.tables, 1))
    for name, table in inputs.tables.items():
        assert pa.Table.from_batches(came[name], table.schema).combine_chunks().equals(table.combine_chunks())


@examples(50)
@given(scheduled_inputs(snapshots=False))
def test_no_snapshots_where_none_are_wanted(drawn: Drawn) -> None:
    assert not any(isinstance(operation, Snapshot) for operation in drawn[1])


@examples(60)
@given(small_tables())
def test_tables_have_their_keys_and_rows_that_can_be_told_apart(inputs: InputTables) -> None:
    assert list(inputs.tables) == ["left", "right"]
    for name, table in inputs.tables.items():
        table.validate(full=True)
        assert table.column_names == [*inputs.on, f"{name}_row", f"{name}_text"]
        assert table[f"{name}_row"].to_pylist() == list(range(table.num_rows))
    left, right = inputs.tables.values()
    assert [left.schema.field(key) for key in inputs.on] == [right.schema.field(key) for key in inputs.on]


def drawn_somewhere(strategy: st.SearchStrategy[Any], wanted: Any) -> None:
    find(strategy, wanted, settings=examples(1000))


def test_rare_shapes_come_up() -> None:
    tables = small_tables()
    drawn_somewhere(
        tables, lambda i: all(t.num_rows > 5 and len(set(t["k"].to_pylist())) == 1 for t in i.tables.values())
    )
    drawn_somewhere(tables, lambda i: i.tables["left"].num_rows == 0 < i.tables["right"].num_rows)
    drawn_somewhere(tables, lambda i: i.tables["left"]["k"].null_count > 3)
    drawn_somewhere(tables, lambda i: i.on == ("k", "k2"))
    drawn_somewhere(tables, lambda i: i.tables["left"].num_rows > 30)
    orders = schedules({"left": 20, "right": 20})
    drawn_somewhere(orders, lambda s: Push("left", 0) in s)
    drawn_somewhere(orders, lambda s: Idle(None) in s and Snapshot() in s)
    drawn_somewhere(orders, lambda s: any(isinstance(o, Idle) and o.arriving == 0 for o in s))
    drawn_somewhere(orders, lambda s: End("left") in s[: len(s) // 2])
    drawn_somewhere(budgets, lambda b: b == 0)
