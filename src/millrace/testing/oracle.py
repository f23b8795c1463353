"""A slow and simple join that all other joins are tested against: it looks keys up in a dictionary of row numbers.

Conditions are evaluated pair by pair on Python values, except predicates, which are called on batches.

Tables are compared as multisets of rows. An error shows which rows are missing and which are surplus::

    output: expected 3 rows; got 3
             k | total | name
    missing  1 |    10 | 'Ann'
    surplus  1 |    10 | None
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from millrace.core.spec import JoinSpec
from millrace.rows.columns import plain_schema
from millrace.semistream.conditions.condition import (
    BandCondition,
    BetweenCondition,
    CompareCondition,
    Condition,
    PredicateCondition,
)

Rows: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]"
_SHOWN = 5
_SIGNS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
}


def plain(table: pa.Table) -> pa.Table:
    """Return a table with the types of a join's output: dictionaries are decoded, view types become plain ones."""
    return table.cast(plain_schema(table.schema))


def oracle_join(stream: pa.Table, master: pa.Table, spec: JoinSpec, where: Condition | None = None) -> pa.Table:
    """Join two tables in memory, and return a table with the columns of ``spec.output_schema``.

    Rows match if their keys are equal and they satisfy ``where``. Without a key, all keys count as equal; without
    ``where``, only the keys are compared.

    >>> stream = pa.table({"k": [1, None, 3], "total": [10, 20, 30]})
    >>> master = pa.table({"k": [3, 3, None], "name": ["Cy", "Di", "Ed"]})
    >>> oracle_join(stream, master, JoinSpec.of("k")).to_pylist()
    [{'k': 3, 'total': 30, 'name': 'Cy'}, {'k': 3, 'total': 30, 'name': 'Di'}]
    >>> oracle_join(stream, master, JoinSpec.of("k", "anti")).column("total").to_pylist()
    [10, 20]
    >>> from millrace.semistream.conditions.condition import compare
    >>> oracle_join(stream, master, JoinSpec.without_key(columns=["name"]), compare("k", "<", "k")).to_pylist()
    [{'k': 1, 'total': 10, 'name': 'Cy'}, {'k': 1, 'total': 10, 'name': 'Di'}]
    """
    stream, master = plain(stream), plain(master)
    by_key: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(_keys(master, spec.master_key)):
        if None not in key:
            by_key.setdefault(key, []).append(row)
    rows = _Rows(stream), _Rows(master)
    left: list[int] = []
    right: list[int | None] = []
    for row, key in enumerate(_keys(stream, spec.stream_key)):
        found = by_key.get(key, [])
        for part in where.parts if where is not None else ():
            found = _matching(part, rows, row, found)
        if spec.how == "inner" or (spec.how == "left" and found):
            left += [row] * len(found)
            right += found
        elif spec.how == "left" or (bool(found) == (spec.how == "semi")):
            left.append(row)
            right.append(None)
    schema = spec.output_schema(stream.schema, master.schema)
    ours = [_take(column, left) for column in stream.columns]
    theirs = [_take(master.column(i), right) for i in spec.master_columns(master.schema)]
    return pa.Table.from_arrays(ours + theirs, schema=schema)


def same_rows(got: Rows, expected: Rows) -> bool:
    """Return whether two tables have the same columns and the same rows equally often, in any order.

    >>> same_rows(pa.table({"a": [1, 2, 2]}), pa.table({"a": [2, 1, 2]}))
    True
    >>> same_rows(pa.table({"a": [1, 2]}), pa.table({"a": [2, 1, 2]}))
    False
    """
    return difference(got, expected) is None


def assert_same_rows(got: Rows, expected: Rows, what: str = "output") -> None:
    """Raise an ``AssertionError`` that shows the difference, unless the rows are the same."""
    found = difference(got, expected, what)
    if found is not None:
        raise AssertionError(found)


def difference(got: Rows, expected: Rows, what: str = "output") -> str | None:
    """Describe how ``got`` differs from ``expected``; return None if it does not.

    >>> print(difference(pa.table({"a": [1, 3]}), pa.table({"a": [1, 20]})))
    output: expected 2 rows; got 2
                a
      missing  20
      surplus   3
    """
    got, expected = _table(got), _table(expected)
    if expected.schema.names and (got.num_columns or got.num_rows):
        ours = [(f.name, f.type) for f in got.schema]
        theirs = [(f.name, f.type) for f in expected.schema]
        if ours != theirs:
            return f"{what}: expected columns {_columns(theirs)}; got {_columns(ours)}"
    came, wanted = Counter(_rows(got)), Counter(_rows(expected))
    if came == wanted and got.num_rows == expected.num_rows:
        return None
    missing, surplus = list((wanted - came).elements()), list((came - wanted).elements())
    lines = [("", expected.schema.names)]
    for mark, rows in (("missing", missing), ("surplus", surplus)):
        lines += [(mark, [_show(value) for value in row]) for row in sorted(rows, key=repr)[:_SHOWN]]
    text = f"{what}: expected {expected.num_rows} rows; got {got.num_rows}\n" + _aligned(lines)
    for mark, rows in (("missing", missing), ("surplus", surplus)):
        if len(rows) > _SHOWN:
            text += f"\n  … {len(rows)} rows {mark} in all"
    return text


def _keys(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    if table.num_rows == 0:
        return iter(())
    if not names:
        return iter([()] * table.num_rows)
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


class _Rows:
    """A table whose values can be read by column and row, as Python values."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._lists: dict[str, list[Any]] = {}

    def value(self, name: str, row: int) -> Any:
        if name not in self._lists:
            self._lists[name] = self.table.column(name).to_pylist()
        return self._lists[name][row]

    def batch(self, names: Sequence[str], rows: Sequence[int]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_take(self.table.column(name), rows) for name in names], list(names))


def _matching(part: Condition, rows: tuple[_Rows, _Rows], row: int, others: list[int]) -> list[int]:
    """Return the master rows among ``others`` that satisfy a condition together with a row of the stream."""
    if not isinstance(part, PredicateCondition):
        return [other for other in others if _satisfies(part, rows, row, other)]
    if not others:
        return []
    stream, master = rows
    flags = part.function(stream.batch(part.stream, [row] * len(others)), master.batch(part.master, others))
    return [other for other, flag in zip(others, flags.tolist(), strict=True) if flag]


def _satisfies(part: Condition, rows: tuple[_Rows, _Rows], row: int, other: int) -> bool:
    """Return whether row ``row`` of the stream and row ``other`` of the master satisfy a condition."""
    stream, master = rows
    ours = stream.value(part.stream[0], row)
    theirs = [master.value(name, other) for name in part.master]
    if ours is None or None in theirs:
        return False
    if isinstance(part, CompareCondition):
        return bool(_SIGNS[part.sign](ours, theirs[0]))
    if isinstance(part, BandCondition):
        return bool(ours - _width(part.below, ours) <= theirs[0] <= ours + _width(part.above, ours))
    assert isinstance(part, BetweenCondition)
    above = operator.le if part.inclusive in ("both", "left") else operator.lt
    below = operator.le if part.inclusive in ("both", "right") else operator.lt
    return bool(above(theirs[0], ours) and below(ours, theirs[1]))


def _width(width: Any, value: Any) -> Any:
    """Return the width of a band in a type that can be added to ``value``."""
    if isinstance(value, date | timedelta):
        return width or timedelta(0)
    return Decimal(str(width)) if isinstance(value, Decimal) else width


def _take(column: pa.ChunkedArray, rows: Sequence[int | None]) -> pa.Array:
    whole = column.combine_chunks()
    array = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    return array.take(pa.array(rows, pa.int64()))


def _table(rows: Rows) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    batches = [rows] if isinstance(rows, pa.RecordBatch) else list(rows)
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    if table.num_columns == 0 or table.num_rows == 0:
        return iter(())
    return zip(*(map(_hashable, column.to_pylist()) for column in table.columns), strict=True)


def _hashable(value: Any) -> Any:
    """Return a hashable form of a value. Floats become text, so that NaN equals NaN and 0.0 differs from -0.0."""
    if isinstance(value, float):
        return ("float", repr(value))
    if isinstance(value, bool | int):
        return (type(value).__name__, value)
    if isinstance(value, list | tuple):
        return ("list", tuple(map(_hashable, value)))
    if isinstance(value, dict):
        return ("struct", tuple((name, _hashable(inner)) for name, inner in value.items()))
    return value


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        kind, inner = value
        if kind == "float":
            return str(inner)
        if kind == "list":
            return "[" + ", ".join(map(_show, inner)) + "]"
        if kind == "struct":
            return "{" + ", ".join(f"{name}: {_show(each)}" for name, each in inner) + "}"
        return repr(inner)
    return repr(value)


def _columns(fields: Sequence[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} ({type_})" for name, type_ in fields) or "none"


def _aligned(lines: Sequence[tuple[str, Sequence[str]]]) -> str:
    widths = [max(len(line[1][i]) for line in lines) for i in range(len(lines[0][1]))]
    head = max(len(mark) for mark, _ in lines)
    return "\n".join(
        f"  {mark:<{head}}  " + " | ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for mark, cells in lines
    )
