"""Conditions on pairs of a stream row and a master row, besides equal keys or instead of them.

Conditions are made by :func:`band`, :func:`between`, :func:`compare` and :func:`predicate`, and combined by ``&``. A
condition is tested on many pairs at a time: row i of one batch with row i of the other. A null in a compared column
makes it false, as in SQL; floats compare as in IEEE 754, so only ``!=`` is true of NaN.

Comparisons are also expressed as *edges*: a master value is the lower or the upper edge of the stream values that match
it. In this form :mod:`condition_room <millrace.semistream.waiting.condition_room>` can search waiting tuples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import ConfigError, SchemaError, one_of
from millrace.semistream.conditions.measures import Flags, Measure, Numbers, check_comparable, is_width, measure_of

PairFunction = Callable[[pa.RecordBatch, pa.RecordBatch], Any]
Sign = Literal["<", "<=", ">", ">=", "!=", "=="]
Inclusive = Literal["both", "left", "right", "neither"]


@dataclass(frozen=True)
class RangeEdge:
    """A bound that a master value sets for a stream value x.

    A lower edge means ``master <= x + width``, an upper edge ``x - width <= master``; with ``<`` if ``strict``.
    """

    master: str
    lower: bool
    strict: bool = False
    width: Any = 0

    def moved(self, numbers: Numbers, measure: Measure) -> Numbers:
        """Return the stream values shifted by the width, to compare with master values.

        The result is ``x + width`` for a lower edge and ``x - width`` for an upper edge.
        """
        width = measure.width(self.width)
        return measure.moved(numbers, width if self.lower else -width)

    @property
    def arrows(self) -> Callable[[pa.Array, pa.Array], pa.Array]:
        """Arrow's comparison function for this edge; its arguments are master values, then stream values."""
        if self.lower:
            return pc.less if self.strict else pc.less_equal  # type: ignore[no-any-return]
        return pc.greater if self.strict else pc.greater_equal  # type: ignore[no-any-return]


def may_clip_both(edges: Iterable[RangeEdge], measure: Measure, master: pa.Schema) -> bool:
    """Return whether both sides of a comparison may be clipped to 64 bits, so that the result could be wrong."""
    return any(edge.width or measure.scales(master.field(edge.master).type) for edge in edges)


@dataclass(frozen=True)
class Condition(ABC):
    """A condition on pairs of a stream row and a master row.

    Parameters
    ----------
    stream, master
        Names of the columns of both sides that the condition uses.
    """

    stream: tuple[str, ...]
    master: tuple[str, ...]

    @property
    def parts(self) -> tuple[Condition, ...]:
        """The conditions that all have to hold: those combined by ``&``, or only this condition."""
        return (self,)

    @property
    def edges(self) -> tuple[RangeEdge, ...]:
        """The condition as bounds on its only stream column; empty if it cannot be expressed by bounds."""
        return ()

    def check(self, stream: pa.Schema, master: pa.Schema) -> None:
        """Raise an error unless both sides have the condition's columns, with types that can be compared."""
        for side, schema, names in (("stream", stream, self.stream), ("master", master, self.master)):
            missing = [name for name in names if name not in schema.names]
            if missing:
                listed = ", ".join(schema.names)
                raise SchemaError(f"{self}: the {side} has no column {', '.join(map(repr, missing))}; it has {listed}")

    def measure(self, stream: pa.Schema, master: pa.Schema) -> Measure | None:
        """Return how the compared values are converted to numbers; None if they are not."""
        return None

    @abstractmethod
    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Flags:
        """Return for every i whether the condition holds for row i of both batches."""

    def __and__(self, other: Condition) -> Condition:
        if not isinstance(other, Condition):
            return NotImplemented
        every = (*self.parts, *other.parts)
        stream = dict.fromkeys(name for part in every for name in part.stream)
        master = dict.fromkeys(name for part in every for name in part.master)
        return Conjunction(tuple(stream), tuple(master), every)

    def __bool__(self) -> bool:
        raise ConfigError("a condition is neither true nor false by itself: combine conditions with &, not with and")


@dataclass(frozen=True)
class ColumnComparison(Condition):
    """Condition that compares a stream column with one or two master columns."""

    function_name: ClassVar[str]
    """Name of the function that makes the condition, for error messages."""

    def __post_init__(self) -> None:
        for name in (*self.stream, *self.master):
            if not isinstance(name, str):
                raise ConfigError(f"{self.function_name}: expected the name of a column; got {name!r}")

    def check(self, stream: pa.Schema, master: pa.Schema) -> None:
        super().check(stream, master)
        check_comparable((*self.stream, *self.master), self._types(stream, master), str(self))
        measure = self.measure(stream, master)
        if measure is not None:
            for edge in self.edges:
                measure.check_width(edge.width, str(self))

    def _types(self, stream: pa.Schema, master: pa.Schema) -> tuple[pa.DataType, ...]:
        return (*(stream.field(name).type for name in self.stream), *(master.field(name).type for name in self.master))

    def measure(self, stream: pa.Schema, master: pa.Schema) -> Measure | None:
        return measure_of(self._types(stream, master))

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Flags:
        measure = self.measure(stream.schema, master.schema)
        values = stream.column(self.stream[0])
        flags = _valid(values)
        for name in self.master:
            flags &= _valid(master.column(name))
        if measure is None:
            for edge in self.edges:
                flags &= _flags(edge.arrows(master.column(edge.master), values))
            return flags
        numbers = measure.numbers(values, exact=may_clip_both(self.edges, measure, master.schema))
        for edge in self.edges:
            moved, bound = edge.moved(numbers, measure), measure.numbers(master.column(edge.master))
            low, high = (bound, moved) if edge.lower else (moved, bound)
            flags &= low < high if edge.strict else low <= high
        return flags


@dataclass(frozen=True)
class BandCondition(ColumnComparison):
    """Condition that a master value lies in a band around a stream value; made by :func:`band`."""

    function_name = "band"
    below: Any
    above: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, width in (("below", self.below), ("above", self.above)):
            if not is_width(width) or not width >= type(width)(0):
                raise ConfigError(f"band: {name}: expected a finite number or a timedelta, at least 0; got {width!r}")

    @property
    def edges(self) -> tuple[RangeEdge, ...]:
        (other,) = self.master
        return (RangeEdge(other, lower=True, width=self.above), RangeEdge(other, lower=False, width=self.below))

    def check(self, stream: pa.Schema, master: pa.Schema) -> None:
        super().check(stream, master)
        if self.measure(stream, master) is None:
            stream_type, master_type = self._types(stream, master)
            raise SchemaError(
                f"{self}: expected columns of numbers (decimals of at most 18 digits), dates or times; "
                f"got {stream_type} and {master_type}"
            )

    def __str__(self) -> str:
        return f"band({self.stream[0]}, {self.master[0]}, below={self.below}, above={self.above})"


@dataclass(frozen=True)
class BetweenCondition(ColumnComparison):
    """Condition that a stream value lies between two values of a master row; made by :func:`between`."""

    function_name = "between"
    inclusive: Inclusive

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("between: inclusive", self.inclusive, get_args(Inclusive))

    @property
    def edges(self) -> tuple[RangeEdge, ...]:
        first, last = self.master
        return (
            RangeEdge(first, lower=True, strict=self.inclusive not in ("both", "left")),
            RangeEdge(last, lower=False, strict=self.inclusive not in ("both", "right")),
        )

    def __str__(self) -> str:
        return f"between({self.stream[0]}, {', '.join(self.master)}, inclusive={self.inclusive})"


@dataclass(frozen=True)
class CompareCondition(ColumnComparison):
    """Comparison of a stream value with a master value, such as ``<=``; made by :func:`compare`."""

    function_name = "compare"
    sign: Sign

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("compare: sign", self.sign, get_args(Sign))

    @property
    def edges(self) -> tuple[RangeEdge, ...]:
        (other,), strict = self.master, self.sign in ("<", ">")
        lower = [RangeEdge(other, lower=True, strict=strict)] if self.sign in (">", ">=", "==") else []
        upper = [RangeEdge(other, lower=False, strict=strict)] if self.sign in ("<", "<=", "==") else []
        return (*lower, *upper)

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Flags:
        if self.sign != "!=":
            return super().holds(stream, master)
        values, others = stream.column(self.stream[0]), master.column(self.master[0])
        measure = self.measure(stream.schema, master.schema)
        if measure is None:
            return _flags(pc.not_equal(values, others))
        flags: Flags = (
            _valid(values)
            & _valid(others)
            & (measure.numbers(values, exact=measure.scales(others.type)) != measure.numbers(others))
        )
        return flags

    def __str__(self) -> str:
        return f"compare({self.stream[0]} {self.sign} {self.master[0]})"


@dataclass(frozen=True)
class PredicateCondition(Condition):
    """Condition given by a function of two record batches; made by :func:`predicate`."""

    function: PairFunction

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"predicate: expected a function of two record batches; got {self.function!r}")

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Flags:
        if not len(stream):
            return np.empty(0, np.bool_)
        return self._mask(
            self.function(stream.select(list(self.stream)), master.select(list(self.master))), len(stream)
        )

    def _mask(self, result: Any, rows: int) -> Flags:
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if isinstance(result, pa.Array) and pa.types.is_boolean(result.type) and len(result) == rows:
            return _flags(result)
        if isinstance(result, np.ndarray) and result.dtype == np.bool_ and result.shape == (rows,):
            return result.copy()
        what = f"{getattr(result, 'type', getattr(result, 'dtype', type(result).__name__))}"
        size = f" of length {len(result)}" if hasattr(result, "__len__") and np.ndim(result) else ""
        raise SchemaError(f"{self}: expected a boolean array of length {rows}, one value per pair; got {what}{size}")

    def __str__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"predicate({name}, stream={list(self.stream)}, master={list(self.master)})"


@dataclass(frozen=True)
class Conjunction(Condition):
    """Several conditions that all have to hold, made by ``&``; each is tested only where those before it hold."""

    every: tuple[Condition, ...]

    @property
    def parts(self) -> tuple[Condition, ...]:
        return self.every

    def check(self, stream: pa.Schema, master: pa.Schema) -> None:
        for part in self.every:
            part.check(stream, master)

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Flags:
        flags, left = np.zeros(len(stream), np.bool_), np.arange(len(stream))
        for part in self.every:
            if not len(left):
                break
            passed = part.holds(stream, master)
            if not passed.all():
                left, chosen = left[passed], pa.array(np.flatnonzero(passed))
                stream, master = stream.take(chosen), master.take(chosen)
        flags[left] = True
        return flags

    def __str__(self) -> str:
        return " & ".join(map(str, self.every))


def band(stream: str, master: str, *, below: Any = 0, above: Any = 0) -> Condition:
    """Return the condition ``stream - below <= master <= stream + above``.

    Parameters
    ----------
    stream, master
        Columns of both sides: numbers, dates, times or timestamps.
    below, above
        How far the master's value may be below and above the stream's: numbers, or a ``timedelta`` for dates and times.

    Examples
    --------
    >>> near = band("price", "list_price", below=5, above=1)
    >>> stream, master = pa.record_batch({"price": [10, 10, 10]}), pa.record_batch({"list_price": [5, 11, 12]})
    >>> near.holds(stream, master)
    array([ True,  True, False])
    """
    return BandCondition((stream,), (master,), below, above)


def between(stream: str, first: str, last: str, *, inclusive: str = "both") -> Condition:
    """Return the condition that the master's interval from ``first`` to ``last`` contains the stream's value.

    ``inclusive`` names the ends that belong to the interval: ``"both"``, ``"left"``, ``"right"`` or ``"neither"``.

    Examples
    --------
    >>> valid = between("day", "valid_from", "valid_to", inclusive="left")
    >>> stream = pa.record_batch({"day": [3, 7]})
    >>> valid.holds(stream, pa.record_batch({"valid_from": [3, 3], "valid_to": [7, 7]}))
    array([ True, False])
    """
    return BetweenCondition((stream,), (first, last), cast(Inclusive, inclusive))


def compare(stream: str, sign: str, master: str) -> Condition:
    """Return the condition ``stream sign master``, where the sign is ``<``, ``<=``, ``>``, ``>=``, ``!=`` or ``==``.

    Examples
    --------
    >>> enough = compare("amount", ">=", "threshold")
    >>> enough.holds(pa.record_batch({"amount": [5, None]}), pa.record_batch({"threshold": [5, 5]}))
    array([ True, False])
    """
    return CompareCondition((stream,), (master,), cast(Sign, sign))


def predicate(function: PairFunction, *, stream: Sequence[str], master: Sequence[str]) -> Condition:
    """Return a condition that is given by a function of two record batches of the same length.

    Row i of the first holds the ``stream`` columns of a pair, row i of the second its ``master`` columns; the function
    returns a boolean array, Arrow's or NumPy's, with one value per pair. It is never called without pairs. Memory that
    it allocates is not part of the budget.

    Examples
    --------
    >>> same_start = predicate(
    ...     lambda s, m: pc.equal(pc.utf8_slice_codeunits(s["name"], 0, 1), pc.utf8_slice_codeunits(m["label"], 0, 1)),
    ...     stream=["name"], master=["label"],
    ... )
    >>> same_start.holds(pa.record_batch({"name": ["Ann", "Bo"]}), pa.record_batch({"label": ["Art", "Cy"]}))
    array([ True, False])
    """
    for side, names in (("stream", stream), ("master", master)):
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise ConfigError(f"predicate: {side}: expected a list of column names; got {names!r}")
    if not stream or not master:
        raise ConfigError(
            "predicate: expected columns of both sides; got none of " + ("the master" if stream else "the stream")
        )
    return PredicateCondition(tuple(stream), tuple(master), function)


def _valid(array: pa.Array) -> Flags:
    flags: Flags = np.array(array.is_valid().to_numpy(zero_copy_only=False))
    return flags


def _flags(array: pa.Array) -> Flags:
    """Return a boolean array as NumPy flags; nulls become false."""
    flags: Flags = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return flags
