"""Conversion of compared columns to numbers of one scale, so that values can be sorted and searched.

Whole numbers, decimals of at most 18 digits, dates, times and timestamps become int64 in the finest unit of the
columns; if one of them holds floats, numbers become float64. Everything else (text, bytes, booleans, wider decimals)
has an order but no distance: such values are compared by Arrow, pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import SchemaError

Numbers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Family = Literal["number", "date", "moment", "local moment", "time", "duration", "text", "bytes", "boolean", ""]

_MOST, _LEAST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_WIDEST = 2**65  # more than the distance of any two numbers
_EXACT_DIGITS = 18  # decimals whose unscaled value fits in 64 bits
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # per second


@dataclass(frozen=True)
class Measure:
    """The scale to which all columns of a comparison are converted.

    Parameters
    ----------
    family
        The kind of values, see :func:`family_of`.
    per_unit
        Number of steps of the scale in 1 (numbers), in a day (dates) or in a second (times); 0 for floats.
    """

    family: Family
    per_unit: int

    @property
    def floating(self) -> bool:
        return self.per_unit == 0

    def numbers(self, array: pa.Array, exact: bool = False) -> Numbers:
        """Return the values of a column as numbers of this measure; a null gives an arbitrary number.

        Values that do not fit in 64 bits are clipped, or raise an error if ``exact``: in a comparison one side may be
        clipped, but not both.
        """
        if self.floating:
            floats: Numbers = pc.fill_null(array, _zero(array.type)).to_numpy(zero_copy_only=False).astype(np.float64)
            return floats
        whole = _whole_numbers(array)
        factor = self.per_unit // _per_unit(array.type)
        if factor == 1:
            return whole
        # A value that does not fit in 64 bits is beyond every value that is stored in these steps.
        limit = _MOST // factor
        if exact and (too_much := ((whole > limit) | (whole < -limit)) & _valid(array)).any():
            raise SchemaError(
                f"where: {array[int(np.argmax(too_much))]} ({array.type}) is too large to be converted to steps of "
                f"1/{self.per_unit:,}, the unit of the other column; cast both columns to one type"
            )
        inside = np.clip(whole, -limit, limit) * factor
        return np.where(whole > limit, _MOST, np.where(whole < -limit, _LEAST, inside))

    def scales(self, type_: pa.DataType) -> bool:
        """Return whether values of a type are multiplied when converted, so that some may not fit in 64 bits."""
        return not self.floating and self.per_unit > _per_unit(type_)

    def check_width(self, width: Any, subject: str) -> None:
        """Raise an error unless a distance fits the values: a number for numbers, a timedelta for dates and times."""
        if self.family == "number" and isinstance(width, timedelta):
            raise SchemaError(f"{subject}: expected a number as the distance; got {width!r}")
        if self.family != "number" and not isinstance(width, timedelta) and width != 0:
            raise SchemaError(f"{subject}: expected a datetime.timedelta as the distance; got {width!r}")

    def width(self, width: Any) -> int | float:
        """Return a distance in steps of this measure, rounded down; if the measure is of floats, it is not rounded."""
        if not width:
            return 0
        if self.floating:
            return float(width)
        if self.family == "number":
            return min(_WIDEST, math.floor(Decimal(str(width)) * self.per_unit))
        if self.family == "date":
            return int(width // timedelta(days=1))
        return min(_WIDEST, int(width // timedelta(microseconds=1)) * self.per_unit // 10**6)

    def moved(self, numbers: Numbers, by: int | float) -> Numbers:
        """Return numbers plus a distance; whole numbers are clipped to 64 bits."""
        if not by:
            return numbers
        if self.floating:
            with np.errstate(over="ignore"):  # infinity is far enough
                floats: Numbers = numbers + by
            return floats
        while by:  # a distance may not fit in 64 bits
            step = max(-_MOST, min(_MOST, by))
            numbers = np.minimum(numbers, _MOST - step) if step > 0 else np.maximum(numbers, _LEAST - step)
            numbers = numbers + step
            by -= step
        return numbers


def is_width(value: object) -> bool:
    """Return whether a value can be a distance: a finite number or a timedelta."""
    if isinstance(value, bool | np.timedelta64):
        return False
    if isinstance(value, int | float | Decimal | np.integer | np.floating):
        return math.isfinite(value)
    return isinstance(value, timedelta)


@lru_cache(maxsize=1024)
def measure_of(types: tuple[pa.DataType, ...]) -> Measure | None:
    """Return the measure of columns that are compared with each other; None if they cannot be converted to numbers.

    >>> measure_of((pa.int32(), pa.decimal128(10, 2)))
    Measure(family='number', per_unit=100)
    >>> measure_of((pa.timestamp("ms"), pa.timestamp("us")))
    Measure(family='local moment', per_unit=1000000)
    >>> measure_of((pa.string(), pa.string()))
    """
    family = family_of(types[0])
    if not all(map(_measurable, types)):
        return None
    if any(map(pa.types.is_floating, types)):
        return Measure(family, 0)
    return Measure(family, max(map(_per_unit, types)))


def check_comparable(names: Sequence[str], types: Sequence[pa.DataType], subject: str) -> None:
    """Raise an error unless values of these columns, the stream's first, can be compared with each other."""
    for name, type_ in zip(names[1:], types[1:], strict=True):
        if not _comparable(types[0], type_):
            raise SchemaError(
                f"{subject}: the stream's column {names[0]!r} is {types[0]} and the master's {name!r} is {type_}, "
                "which cannot be compared; cast one of them"
            )
    if any(map(pa.types.is_floating, types)) and any(map(pa.types.is_decimal, types)):
        listed = ", ".join(f"{name!r} ({type_})" for name, type_ in zip(names, types, strict=True))
        raise SchemaError(
            f"{subject}: decimals and floats cannot be compared with each other: {listed}; cast one of them"
        )


def family_of(type_: pa.DataType) -> Family:
    """Return the kind of a type's values, such as ``"number"`` or ``"text"``; empty if they have no order."""
    t = pa.types
    if t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_):
        return "number"
    if t.is_date(type_):
        return "date"
    if t.is_timestamp(type_):
        return "local moment" if type_.tz is None else "moment"
    if t.is_time(type_):
        return "time"
    if t.is_duration(type_):
        return "duration"
    if t.is_string(type_) or t.is_large_string(type_):
        return "text"
    if t.is_binary(type_) or t.is_large_binary(type_) or t.is_fixed_size_binary(type_):
        return "bytes"
    return "boolean" if t.is_boolean(type_) else ""


def _comparable(one: pa.DataType, other: pa.DataType) -> bool:
    family = family_of(one)
    if family == "" or family_of(other) != family:
        return False
    if measure_of((one, other)) is not None:
        return True
    if pa.types.is_uint64(one) or pa.types.is_uint64(other):
        return bool(one == other)
    try:
        pc.less(pa.array([], one), pa.array([], other))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _measurable(type_: pa.DataType) -> bool:
    if pa.types.is_decimal(type_):
        return bool(type_.precision <= _EXACT_DIGITS and 0 <= type_.scale <= _EXACT_DIGITS)
    if pa.types.is_uint64(type_):
        return False
    return family_of(type_) in ("number", "date", "moment", "local moment", "time", "duration")


def _per_unit(type_: pa.DataType) -> int:
    if pa.types.is_decimal(type_):
        return int(10**type_.scale)
    return _TICKS[type_.unit] if hasattr(type_, "unit") and not pa.types.is_date(type_) else 1


def _valid(array: pa.Array) -> Flags:
    valid: Flags = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _zero(type_: pa.DataType) -> pa.Scalar:
    return pa.scalar(0, pa.int64()).cast(type_)


def _whole_numbers(array: pa.Array) -> Numbers:
    """Return a column as whole numbers in the unit of its type: days for dates, hundredths for decimals of scale 2."""
    if pa.types.is_decimal(array.type):
        wide = array.cast(pa.decimal128(38, array.type.scale))
        low: Numbers = np.frombuffer(wide.buffers()[1], np.int64, 2 * len(wide), 16 * wide.offset)[::2]
        return low
    if pa.types.is_date64(array.type):
        array = array.cast(pa.date32())
    if not pa.types.is_integer(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    whole: Numbers = pc.fill_null(array, _zero(array.type)).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return whole
