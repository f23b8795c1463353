"""Band joins on Spark: rows are divided into buckets, so that two matching rows have exactly one bucket in common.

::

    buckets        |     b      |    b+1     |            a right row goes to the bucket of its value,
    left rows          [──·──]                            a left row to all that its interval touches:
                              [──·──]                     this one to two

The interval of a left row goes from its value plus ``low`` to its value plus ``high``; right rows with a value in it
match. Greater values never have a lower bucket number, so the bucket of a matching row lies between the buckets of the
interval's ends, even after rounding.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError, SchemaError
from millrace.rows.key_codes import KeyCoder

Values = npt.NDArray[Any]
_LONG = np.iinfo(np.int64)
_FARTHEST = 1 << 62
_GREATEST = sys.float_info.max
_BANDS_PER_BUCKET = 4
"""Width of a bucket as a multiple of the band's width: the wider a bucket, the fewer left rows go to two buckets."""


@dataclass(frozen=True, repr=False)
class BucketedBand:
    """The condition ``left + low <= right <= left + high`` and its buckets, in the unit of the columns' values."""

    low: float
    high: float
    width: float
    """Width of a bucket, in the unit of the columns' values."""
    floating: bool
    """Whether the values are doubles rather than integers."""

    def __repr__(self) -> str:
        """Return the text that identifies the band in checkpoints, which must not change."""
        return f"Band(low={self.low!r}, high={self.high!r}, width={self.width!r}, floating={self.floating!r})"

    @staticmethod
    def of(band: Any, type_: pa.DataType) -> BucketedBand:
        """Check the band that users give as ``(low, high)``, and return it for columns of this type."""
        if not isinstance(band, tuple | list) or len(band) != 2:
            raise ConfigError(f"band: expected (low, high), the limits of right minus left; got {band!r}")
        floating = pa.types.is_floating(type_)
        low, high = (_in_units(end, type_) for end in band)
        if low > high:
            raise ConfigError(f"band: expected (low, high) with low not above high; got {band!r}")
        if floating:
            farthest = max(abs(low), abs(high))  # rounding may widen a narrow interval, but not to more than this
            return BucketedBand(low, high, min(max(_BANDS_PER_BUCKET * (high - low), farthest) or 1.0, _GREATEST), True)
        return BucketedBand(low, high, min(_BANDS_PER_BUCKET * (high - low + 1), _LONG.max), False)

    def values(self, column: pa.Array) -> Values:
        """Return the values of a column as 64-bit numbers; the number for a null is arbitrary."""
        if self.floating:
            return np.asarray(column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False))
        return KeyCoder([column.type]).codes([column])[0]

    def reach(self, values: Values) -> tuple[Values, Values]:
        """Return the least and the greatest right value that match each left value."""
        if self.floating:
            with np.errstate(over="ignore"):
                return values + self.low, values + self.high
        return _moved(values, int(self.low)), _moved(values, int(self.high))

    def without_partner(self, values: Values, reaching: bool) -> npt.NDArray[np.bool_]:
        """Return a mask of the values that cannot match any value of the other side.

        These are NaN and, among the integers of left rows, those whose whole interval is beyond the range of 64-bit
        integers. ``reaching`` says whether the values are of left rows.
        """
        if self.floating:
            return np.asarray(np.isnan(values))
        none = np.zeros(len(values), np.bool_)
        if not reaching:
            return none
        if self.low > 0:
            none |= values > _LONG.max - int(self.low)
        if self.high < 0:
            none |= values < _LONG.min - int(self.high)
        return none

    def buckets(self, values: Values) -> npt.NDArray[np.int64]:
        """Return the bucket number of each value; greater values never have a lower number."""
        if self.floating:
            finite = np.clip(values, -_GREATEST, _GREATEST)  # a sum may have overflowed to infinity
            with np.errstate(over="ignore"):
                return np.clip(np.floor(finite / self.width), -_FARTHEST, _FARTHEST).astype(np.int64)
        return np.asarray(np.floor_divide(values, np.int64(self.width)))

    def copies(self, values: Values) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row and bucket numbers of all pairs of a left row and a bucket that its interval touches."""
        low, high = self.reach(values)
        first, last = self.buckets(low), self.buckets(high)
        counts = last - first + 1
        rows = np.repeat(np.arange(len(values)), counts)
        before = np.cumsum(counts) - counts
        return rows, first[rows] + np.arange(len(rows)) - before[rows]


def _moved(values: Values, by: int) -> Values:
    """Return the values plus ``by``, limited to the range of 64-bit integers."""
    if by >= 0:
        return np.where(values > _LONG.max - by, _LONG.max, values + np.int64(by))
    return np.where(values < _LONG.min - by, _LONG.min, values + np.int64(by))


def _in_units(end: Any, type_: pa.DataType) -> Any:
    """Return one end of the band as a number in the column's unit."""
    if pa.types.is_floating(type_):
        if isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end):
            return float(end)
        raise ConfigError(f"band: expected finite numbers for columns of {type_}; got {end!r}")
    if pa.types.is_timestamp(type_) or pa.types.is_date32(type_):
        unit = timedelta(days=1) if pa.types.is_date32(type_) else timedelta(microseconds=1)
        if isinstance(end, timedelta) and not end % unit:
            return _bounded(end // unit, end)
        what = "timedeltas of whole days" if pa.types.is_date32(type_) else "timedeltas"
        raise ConfigError(f"band: expected {what} for columns of {type_}; got {end!r}")
    if pa.types.is_decimal128(type_) and type_.precision <= 18:
        if isinstance(end, int | Decimal) and not isinstance(end, bool) and Decimal(end).is_finite():
            scaled = Decimal(end).scaleb(type_.scale)
            if scaled == int(scaled):
                return _bounded(int(scaled), end)
        raise ConfigError(
            f"band: expected Decimals with at most {type_.scale} decimal places for columns of {type_}; got {end!r}"
        )
    if pa.types.is_signed_integer(type_):
        if isinstance(end, int) and not isinstance(end, bool):
            return _bounded(end, end)
        raise ConfigError(f"band: expected whole numbers for columns of {type_}; got {end!r}")
    raise SchemaError(
        f"band: expected columns of numbers (decimals with at most 18 digits), dates or timestamps; got {type_}"
    )


def _bounded(number: int, end: Any) -> int:
    if abs(number) > _FARTHEST:
        raise ConfigError(
            "band: expected limits from -2**62 to 2**62 in the columns' unit (microseconds for timestamps, the last "
            f"decimal place for decimals); got {end!r}"
        )
    return number
