"""Rows taken from the pages of a mapped file: any columns, in any order, whichever pages have nulls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace.master.read.mapped_rows import MappedRows
from millrace.master.store import MasterStore
from millrace.rows.columns import output_columns

PAGE = 8
ROWS = 44


def values(type_: pa.DataType, nulls: Sequence[int]) -> pa.Array:
    """Return a column whose values differ from row to row, with nulls in these rows."""
    numbers = [None if i in nulls else i * 37 - 400 for i in range(ROWS)]
    if pa.types.is_boolean(type_):
        return pa.array([None if n is None else n % 3 == 0 for n in numbers], type_)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return pa.array([None if n is None else "é" * (n % 5) + str(n) for n in numbers], type_)
    if pa.types.is_list(type_):
        return pa.array([None if n is None else [n, None] for n in numbers], type_)
    return pa.array(numbers, type_)


TYPES = {
    "wide": pa.int64(),
    "double": pa.float64(),
    "day": pa.timestamp("us"),
    "short": pa.int16(),
    "money": pa.decimal128(20, 2),
    "flag": pa.bool_(),
    "text": pa.string(),
    "large": pa.large_string(),
    "list": pa.list_(pa.int32()),
}
NULLS = {
    "nowhere": [],
    "in the second page only": [9, 12],
    "in all pages but the second": [0, 7, 17, 30, 32, 43],
    "in a whole page": list(range(16, 24)),
}


def mapped(path: Path, nulls: Sequence[int]) -> tuple[MappedRows, pa.Table]:
    table = pa.table({"k": np.arange(ROWS)} | {name: values(type_, nulls) for name, type_ in TYPES.items()})
    store = MasterStore.build(table, path / "store", "k", page_rows=PAGE, records=False)
    return store.mapped(0), table


@pytest.mark.parametrize("nulls", NULLS.values(), ids=NULLS.keys())
def test_every_column_has_its_nulls_where_they_were(nulls: list[int], tmp_path: Path) -> None:
    rows, table = mapped(tmp_path, nulls)
    order = np.random.default_rng(1).permutation(ROWS)
    taken = rows.take(range(len(table.schema)), order)
    for name, column in zip(table.schema.names, taken, strict=True):
        column.validate(full=True)
        assert column.to_pylist() == table[name].take(pa.array(order)).to_pylist(), name


@pytest.mark.parametrize("nulls", NULLS.values(), ids=NULLS.keys())
@pytest.mark.parametrize("columns", [[0, 1, 2, 3], [3, 0], [2, 3, 0, 1], [1, 7, 0, 3], [0, 0, 1], [4, 3], [7, 8, 9]])
def test_columns_that_lie_side_by_side_are_each_their_own(columns: list[int], nulls: list[int], tmp_path: Path) -> None:
    """Wide columns of one output are filled together where none has a null; each time in the order of the output."""
    rows, table = mapped(tmp_path, nulls)
    for wanted in (columns, columns[::-1], columns):
        schema = pa.schema([(str(i), table.schema.field(number).type) for i, number in enumerate(wanted)])
        outputs = output_columns(schema, 2 * ROWS)
        chosen = [np.arange(ROWS)[::-1].copy(), np.array([5, 5, 40, 9, 9, 17])]
        for some in chosen:
            for task in rows.gather(wanted, some, outputs):
                task()
        for number, output in zip(wanted, outputs, strict=True):
            finished = output.finish()
            finished.validate(full=True)
            assert finished.to_pylist() == table.column(number).take(pa.array(np.concatenate(chosen))).to_pylist()


@pytest.mark.parametrize("with_nulls", ["a", "b", "c", "d"])
def test_one_of_several_wide_columns_has_nulls(with_nulls: str, tmp_path: Path) -> None:
    """Those without are not next to each other in the output then, and none takes the place of another."""
    names = ["k", "a", "b", "c", "d"]
    gaps = {name: np.isin(np.arange(ROWS), [3, 20]) & (name == with_nulls) for name in names}
    table = pa.table({name: pa.array(np.arange(ROWS) + 1_000 * i, mask=gaps[name]) for i, name in enumerate(names)})
    store = MasterStore.build(table, tmp_path / "store", "k", page_rows=PAGE, records=False)
    outputs = output_columns(table.schema, ROWS)
    for task in store.mapped(0).gather(range(5), np.arange(ROWS)[::-1].copy(), outputs):
        task()
    for name, output in zip(names, outputs, strict=True):
        assert output.finish().to_pylist() == table[name].to_pylist()[::-1], name


def test_bytes_are_counted_over_all_columns(tmp_path: Path) -> None:
    """What strings take is reserved before they are gathered, so it must be all of it."""
    rows, table = mapped(tmp_path, [9, 12])
    text, large, wide = (table.schema.get_field_index(name) for name in ("text", "large", "wide"))
    lengths = [[len(t.encode()) if t else 0 for t in table[name].to_pylist()] for name in ("text", "large")]
    assert rows.longest([text]) == max(lengths[0])
    assert rows.longest([text, wide, large]) == max(lengths[0]) + max(lengths[1])
    assert rows.longest([wide]) == 0
    some = np.array([0, 3, 3, 43, 9])
    assert rows.bytes_of([text], some) == sum(lengths[0][i] for i in some)
    assert rows.bytes_of([large, wide, text], some) == sum(lengths[0][i] + lengths[1][i] for i in some)
    assert rows.bytes_of([text], np.array([], np.int64)) == 0
