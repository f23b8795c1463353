"""Joins of two and of several inputs, written to be obviously right: every combination of rows is tested.

Columns are named ``"input.column"``; two inputs are called ``left`` and ``right``. Null and NaN satisfy no
condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import SchemaError, one_of
from millrace.testing.oracle import plain

PairHow = Literal["inner", "left", "right", "full", "semi", "anti"]
PAIR_HOWS: tuple[PairHow, ...] = get_args(PairHow)

Indices: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = "Mapping[str, str | Sequence[str]]"
"""A mapping from each output column to ``"input.column"`` or to several of them; the first non-null value is output."""

_CELLS = 4_000_000  # combinations tested at a time


@dataclass(frozen=True)
class Equal:
    """The condition that the values of two columns are equal."""

    one: str
    other: str


@dataclass(frozen=True)
class Near:
    """The condition ``one - below <= other <= one + above`` on two columns."""

    one: str
    other: str
    below: Any = 0
    above: Any = 0


Link: TypeAlias = Equal | Near


def equal_keys(on: str | Sequence[str] | Mapping[str, str]) -> list[Link]:
    """Return the conditions that the key columns of two inputs are equal.

    >>> equal_keys({"bid": "ask"})
    [Equal(one='left.bid', other='right.ask')]
    """
    if isinstance(on, str):
        on = [on]
    pairs = on.items() if isinstance(on, Mapping) else [(name, name) for name in on]
    return [Equal(f"left.{ours}", f"right.{theirs}") for ours, theirs in pairs]


def pair_columns(
    left: pa.Schema, right: pa.Schema, links: Sequence[Link], how: PairHow = "inner", suffix: str = "_right"
) -> dict[str, str | Sequence[str]]:
    """Return the usual columns of a join of two inputs: the left's, then the right's without keys that must be equal.

    In a right or full join, keys that must be equal are taken from the right where the left is null. A right column
    gets the suffix if the left has a column of the same name.
    """
    keys = {link.one: link.other for link in links if isinstance(link, Equal)}
    columns: dict[str, str | Sequence[str]] = {}
    for name in left.names:
        ours = f"left.{name}"
        columns[name] = [ours, keys[ours]] if ours in keys and how in ("right", "full") else ours
    if how in ("semi", "anti"):
        return columns
    for name in right.names:
        if f"right.{name}" not in keys.values():
            columns[name + suffix if name in left.names else name] = f"right.{name}"
    return columns


def oracle_pair(
    left: pa.Table, right: pa.Table, links: Sequence[Link], how: PairHow = "inner", columns: Columns | None = None
) -> pa.Table:
    """Join two tables on all of the conditions; the output has ``columns`` or, by default, :func:`pair_columns`.

    >>> left, right = pa.table({"k": [1, None, 3], "a": [1, 2, 3]}), pa.table({"k": [3, 4, None], "b": [7, 8, 9]})
    >>> oracle_pair(left, right, equal_keys("k"), "full").to_pydict()
    {'k': [3, 1, None, 4, None], 'a': [3, 1, 2, None, None], 'b': [7, None, None, 8, 9]}
    >>> near = [Near("left.k", "right.k", above=2)]
    >>> oracle_pair(left, right, near, columns={"x": "left.k", "y": "right.k"}).to_pydict()
    {'x': [1, 3, 3], 'y': [3, 3, 4]}
    """
    one_of("how", how, PAIR_HOWS)
    inputs = {"left": plain(left), "right": plain(right)}
    if columns is None:
        columns = pair_columns(left.schema, right.schema, links, how)
    rows = _combinations(inputs, links)
    unmatched = {name: np.setdiff1d(np.arange(table.num_rows), rows[name]) for name, table in inputs.items()}
    if how == "semi":
        return _output_table(inputs, {"left": np.unique(rows["left"])}, columns)
    if how == "anti":
        return _output_table(inputs, {"left": unmatched["left"]}, columns)
    for name, other in (("left", "right"), ("right", "left")):
        if how in (name, "full"):
            no_row = np.full(len(unmatched[name]), -1)
            rows = {
                name: np.concatenate([rows[name], unmatched[name]]),
                other: np.concatenate([rows[other], no_row]),
            }
    return _output_table(inputs, rows, columns)


def oracle_multi(inputs: Mapping[str, pa.Table], links: Sequence[Link], columns: Columns) -> pa.Table:
    """Join several tables on all of the conditions between them; the conditions may form a chain, a star or any graph.

    >>> r = {"a": pa.table({"x": [1, 2]}), "b": pa.table({"x": [2, 2], "y": [5, 6]}), "c": pa.table({"y": [6, 6]})}
    >>> oracle_multi(r, [Equal("a.x", "b.x"), Equal("b.y", "c.y")], {"x": "a.x", "y": "c.y"}).to_pydict()
    {'x': [2, 2], 'y': [6, 6]}
    """
    tables = {name: plain(table) for name, table in inputs.items()}
    return _output_table(tables, _combinations(tables, links), columns)


def _combinations(inputs: Mapping[str, pa.Table], links: Sequence[Link]) -> dict[str, Indices]:
    """Return the combinations that satisfy all conditions, as an array of row numbers for each input."""
    names = list(inputs)
    for link in links:
        ends = {_parts(link.one)[0], _parts(link.other)[0]}
        if len(ends) != 2 or not ends <= set(names):
            raise SchemaError(f"{link}: expected columns of two of the inputs {', '.join(names)}")
    rows = {names[0]: np.arange(inputs[names[0]].num_rows)}
    while len(rows) < len(names):
        name = _next_input(names, rows, links)
        rows = _join_input(inputs, rows, name, [link for link in links if _is_between(link, rows, name)])
    return rows


def _next_input(names: Sequence[str], joined: Mapping[str, Indices], links: Sequence[Link]) -> str:
    """Return an input that a condition connects to the inputs already joined or, if there is none, the next input."""
    left = [name for name in names if name not in joined]
    connected = [name for name in left if any(_is_between(link, joined, name) for link in links)]
    return (connected or left)[0]


def _is_between(link: Link, joined: Mapping[str, Indices], name: str) -> bool:
    ends = {_parts(link.one)[0], _parts(link.other)[0]}
    return name in ends and bool(ends & set(joined))


def _join_input(
    inputs: Mapping[str, pa.Table], rows: Mapping[str, Indices], name: str, links: Sequence[Link]
) -> dict[str, Indices]:
    """Return the combinations so far, each extended by every row of one more input that satisfies the conditions."""
    count, more = len(next(iter(rows.values()))), inputs[name].num_rows
    grids = [_Grid(inputs, rows, name, link) for link in links]
    kept: list[Indices] = [np.zeros(0, np.int64)]
    partners: list[Indices] = [np.zeros(0, np.int64)]
    for start, end in _row_ranges(count, more):
        meets = np.ones((end - start, more), np.bool_)
        for grid in grids:
            meets &= grid.meets(start, end)
        one, other = np.nonzero(meets)
        kept.append(one + start)
        partners.append(other)
    chosen = np.concatenate(kept)
    return {**{each: numbers[chosen] for each, numbers in rows.items()}, name: np.concatenate(partners)}


def _row_ranges(count: int, width: int) -> Iterator[tuple[int, int]]:
    step = max(1, _CELLS // max(1, width))
    return ((start, min(count, start + step)) for start in range(0, count, step))


class _Grid:
    """A condition evaluated as a matrix, with a row per combination so far and a column per row of the new input."""

    def __init__(self, inputs: Mapping[str, pa.Table], rows: Mapping[str, Indices], name: str, link: Link) -> None:
        values, others = _values(inputs, link.one), _values(inputs, link.other)
        lows = highs = values
        if isinstance(link, Near):
            lows = [None if value is None else value - _width(link.below, value) for value in values]
            highs = [None if value is None else value + _width(link.above, value) for value in values]
        low, high, other = _arrays(lows, highs, others)
        bounds = [low, high, np.array([value is not None for value in values], np.bool_)]
        inner = [other, np.array([value is not None for value in others], np.bool_)]
        one, another = _parts(link.one)[0], _parts(link.other)[0]
        self._bounds = bounds if one == name else [array[rows[one]] for array in bounds]
        self._inner = inner if another == name else [array[rows[another]] for array in inner]
        self._bounds_across = one == name

    def meets(self, start: int, end: int) -> npt.NDArray[np.bool_]:
        def laid(arrays: list[npt.NDArray[Any]], across: bool) -> list[npt.NDArray[Any]]:
            return [array[None, :] if across else array[start:end, None] for array in arrays]

        low, high, present = laid(self._bounds, self._bounds_across)
        value, there = laid(self._inner, not self._bounds_across)
        above, below = (low <= value).astype(np.bool_), (value <= high).astype(np.bool_)
        met: npt.NDArray[np.bool_] = present & there & above & below
        return met


def _width(width: Any, value: Any) -> Any:
    """Return the width of a condition in a type that can be added to a value."""
    if isinstance(value, date | timedelta):
        return width or timedelta(0)
    return Decimal(str(width)) if isinstance(value, Decimal) else width


def _arrays(*lists: list[Any]) -> list[npt.NDArray[Any]]:
    """Return values as arrays that compare exactly: of 64-bit numbers if possible, else of Python objects."""
    kinds = {type(value) for values in lists for value in values if value is not None}
    small = all(-(2**63) <= value < 2**63 for values in lists for value in values if isinstance(value, int))
    if kinds <= {int} and small:
        return [np.array([0 if value is None else value for value in values], np.int64) for values in lists]
    if kinds == {float}:
        return [np.array([np.nan if value is None else value for value in values], np.float64) for values in lists]
    filler = next(value for values in lists for value in values if value is not None)
    arrays = [np.empty(len(values), object) for values in lists]
    for array, values in zip(arrays, lists, strict=True):
        array[:] = [filler if value is None else value for value in values]
    return arrays


def _values(inputs: Mapping[str, pa.Table], name: str) -> list[Any]:
    table, column = _parts(name)
    values: list[Any] = inputs[table].column(column).to_pylist()
    return values


def _parts(name: str) -> tuple[str, str]:
    table, _, column = name.partition(".")
    return table, column


def _output_table(inputs: Mapping[str, pa.Table], rows: Mapping[str, Indices], columns: Columns) -> pa.Table:
    """Return the combinations as a table; row number -1 means no row."""
    return pa.table({name: _column(inputs, rows, source) for name, source in columns.items()})


def _column(inputs: Mapping[str, pa.Table], rows: Mapping[str, Indices], source: str | Sequence[str]) -> pa.Array:
    sources = [source] if isinstance(source, str) else list(source)
    taken = [_taken(inputs[table].column(column), rows[table]) for table, column in map(_parts, sources)]
    return pc.coalesce(*taken) if len(taken) > 1 else taken[0]


def _taken(column: pa.ChunkedArray, rows: Indices) -> pa.Array:
    positions = pa.array(rows, mask=rows < 0)
    return pa.concat_arrays(column.chunks).take(positions) if column.num_chunks else pa.nulls(len(rows), column.type)
