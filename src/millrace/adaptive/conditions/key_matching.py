"""Key codes of both inputs: int64 numbers that sort in the order of the keys, or of their hashes.

=====================  ===========================================  ==============================================
key                    code                                         equal codes mean
=====================  ===========================================  ==============================================
one number or time     the value; for a float, sortable bits        equal keys
anything else          64-bit hash                                  possibly equal keys: the values are compared
=====================  ===========================================  ==============================================

Algorithms that use hash partitions mix (hash) the codes, so that a range of codes is a hash partition. A band join
needs codes in the order of the values themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.array_types import Codes, Mask
from millrace.adaptive.conditions.pair_spec import SIDES, PairSpec
from millrace.core.errors import ConfigError, SchemaError
from millrace.kernels import bands
from millrace.rows.columns import fixed_values
from millrace.rows.key_codes import KeyCoder

Band = tuple[Any, Any]
Values = Callable[[], list[pa.Array]]

_FIRST, _LAST = -(2**63), 2**63 - 1
_SIGN = np.int64(_LAST)


class KeyMatching:
    """Computes the key codes of two inputs, and finds which rows match.

    Parameters
    ----------
    spec
        The key columns of both inputs, and the kind of join.
    band
        Least and greatest difference, right key minus left key; None to join equal keys.
    mixed
        Whether codes are hashed, so that a range of codes is a hash partition.

    Notes
    -----
    Integers of any width are compared as int64 and floats as float64, so the codes of one side do not depend on the
    other, whose schema may not be known yet.
    """

    def __init__(self, spec: PairSpec, band: Band | None, mixed: bool) -> None:
        self._spec, self._given, self._mixed = spec, band, mixed
        self._types: list[pa.DataType] = []
        self._bound: list[pa.Schema | None] = [None, None]
        self._coder: KeyCoder | None = None
        self._float = False
        self._band: tuple[Any, Any] | None = None
        self.exact = True
        """Whether equal codes mean equal keys."""

    def bind(self, side: int, schema: pa.Schema) -> None:
        """Set the schema of one side, and check that its key can be compared with the other side's."""
        types = self.check(side, schema)
        if self._bound[1 - side] is None:
            self._coder = self._coder_of(types, self._spec.keys[side])
            self._band = None if self._given is None else _limits(self._given, types[0])
            self._types, self._float = types, self._coder is None
            self.exact = self._coder is None or self._coder.exact
        self._bound[side] = schema

    def check(self, side: int, schema: pa.Schema) -> list[pa.DataType]:
        """Check the key columns in the schema of one side, and return the types in which they are compared."""
        spec = self._spec
        spec.check_side(side, schema)
        names = spec.keys[side]
        types = [_wide(schema.field(name).type) for name in names]
        other = self._bound[1 - side]
        if other is not None:
            for name, theirs, ours, expected in zip(names, spec.keys[1 - side], types, self._types, strict=True):
                if ours != expected:
                    raise SchemaError(
                        f"{SIDES[side]}: key column {name!r} is {schema.field(name).type}, but {theirs!r} of the "
                        f"{SIDES[1 - side]} input is {other.field(theirs).type}; cast one of them"
                    )
        else:
            coder = self._coder_of(types, names)
            if self._given is not None:
                if coder is not None and not coder.exact:
                    raise SchemaError(f"band: expected a key of numbers, dates or times; {names[0]!r} is {types[0]}")
                _limits(self._given, types[0])
        return types

    @staticmethod
    def _coder_of(types: list[pa.DataType], names: Sequence[str]) -> KeyCoder | None:
        """Return the coder of a key, or None for a single float column, whose bits are used as codes."""
        return None if len(types) == 1 and pa.types.is_floating(types[0]) else KeyCoder(types, names)

    def key_columns(self, side: int) -> list[int]:
        """Return the positions of the key columns in the schema of a side."""
        schema = self._bound[side]
        assert schema is not None
        return [schema.get_field_index(name) for name in self._spec.keys[side]]

    def codes(self, columns: Sequence[pa.Array]) -> tuple[Codes, Mask | None]:
        """Return the codes of rows with these key columns, and a mask of the valid keys, or None if all are valid."""
        arrays = self._cast(columns)
        if self._coder is None:
            codes, valid = _float_codes(arrays[0])
        else:
            codes, valid = self._coder.codes(arrays)
        if not self._mixed:
            return codes, valid
        spread = np.empty(len(codes), np.int64)
        bands.mix_all(codes, spread)
        return spread, valid

    def ranges(self, side: int, codes: Codes) -> tuple[Codes, Codes]:
        """Return the lowest and the highest code that can match on the other side, for each of ``codes``."""
        if self._band is None:
            return codes, codes
        low, high = self._band if side == 0 else (-self._band[1], -self._band[0])
        if self._float:
            return _float_ranges(codes, low, high)
        lows, highs = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        for edge, out in ((low, lows), (high, highs)):
            if _FIRST <= edge <= _LAST:
                bands.shift(codes, np.int64(edge), out)
            else:  # no bound
                out[:] = _FIRST if edge < 0 else _LAST
        return lows, highs

    def verified(self, left: Codes, right: Codes, left_values: Values, right_values: Values) -> Mask | None:
        """Return a mask of the pairs whose keys match, given pairs whose codes match. None means that all do."""
        if self._band is not None:
            low, high = self._band
            if self._float:
                with np.errstate(over="ignore", invalid="ignore"):
                    difference = _floats(right) - _floats(left)
                inside: Mask = (low <= difference) & (difference <= high)
                return inside
            out = np.empty(len(left), np.bool_)
            ends = np.int64(max(_FIRST, low)), np.int64(min(_LAST, high))
            bands.within(left, right, *ends, low < _FIRST, high > _LAST, out)
            return out
        if self.exact:
            return None
        assert self._coder is not None
        return self._coder.equal(self._cast(left_values()), self._cast(right_values()))

    def _cast(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        text = (pa.large_string(), pa.large_binary())
        return [c if c.type == t or c.type in text else c.cast(t) for c, t in zip(columns, self._types, strict=True)]


def _wide(type_: pa.DataType) -> pa.DataType:
    """Return the type in which a key column is compared."""
    if pa.types.is_floating(type_):
        return pa.float64()
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        return pa.int64()
    if pa.types.is_large_string(type_):
        return pa.string()
    if pa.types.is_large_binary(type_):
        return pa.binary()
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, "UTC")
    return type_


def _float_codes(array: pa.Array) -> tuple[Codes, Mask | None]:
    """Return floats as int64 codes in numeric order, and a mask of valid rows, or None if no row is null or NaN."""
    values = fixed_values(array).view(np.float64) + 0.0
    bits = values.view(np.int64)
    codes = np.where(bits < 0, bits ^ _SIGN, bits)
    valid = ~np.isnan(values)
    if array.null_count:
        valid &= np.asarray(array.is_valid())
    return codes, None if valid.all() else valid


def _floats(codes: Codes) -> npt.NDArray[np.float64]:
    return np.where(codes < 0, codes ^ _SIGN, codes).view(np.float64)


def _float_ranges(codes: Codes, low: float, high: float) -> tuple[Codes, Codes]:
    """Return, for the float of each code, the lowest and the highest code of floats that are in the band.

    The ranges are slightly too wide, so that no match is lost by rounding; pairs are verified later.
    """
    values = _floats(codes)
    with np.errstate(over="ignore", invalid="ignore"):
        slack = 4 * np.finfo(np.float64).eps * (np.abs(values) + max(abs(low), abs(high))) + 1e-300
        slack = np.where(np.isfinite(slack), slack, 0.0)
        edges = (values + low - slack, values + high + slack)
    lows = np.where(np.isnan(edges[0]), -np.inf, edges[0])
    highs = np.where(np.isnan(edges[1]), np.inf, edges[1])
    lows, highs = (np.ascontiguousarray(edge) + 0.0 for edge in (lows, highs))
    ends = [np.where(bits < 0, bits ^ _SIGN, bits) for bits in (lows.view(np.int64), highs.view(np.int64))]
    return np.minimum.accumulate(ends[0][::-1])[::-1].copy(), ends[1]


def _limits(band: Band, type_: pa.DataType) -> tuple[Any, Any]:
    """Return the two limits of a band in the units of the key codes, or as floats for a float key."""
    if not isinstance(band, tuple | list) or len(band) != 2:
        raise ConfigError(f"band: expected (least, greatest) difference, right minus left; got {band!r}")
    low, high = (_width(edge, type_, at) for at, edge in enumerate(band))
    if pa.types.is_floating(type_):
        low, high = float(low), float(high)
    if not low <= high and not (band[0] <= band[1]):
        raise ConfigError(f"band: expected the least difference first; got {band!r}")
    return low, high


def _width(edge: Any, type_: pa.DataType, at: int) -> Any:
    """Return a limit of a band, the lower one if ``at`` is 0, else the upper one, in the units of the key codes.

    If the codes are whole numbers, the lower limit is rounded up and the upper one down.
    """
    temporal = pa.types.is_temporal(type_)
    zero = isinstance(edge, int) and not isinstance(edge, bool) and edge == 0
    if temporal and not (isinstance(edge, timedelta) or zero):
        raise ConfigError(f"band: the key is {type_}, so expected a timedelta; got {edge!r}")
    if not temporal and (isinstance(edge, bool) or not isinstance(edge, int | float | Decimal)):
        raise ConfigError(f"band: the key is {type_}, so expected a number; got {edge!r}")
    if isinstance(edge, float) and not np.isfinite(edge):
        if np.isnan(edge):
            raise ConfigError("band: expected numbers; got nan")
        return edge if pa.types.is_floating(type_) else (2**64 if edge > 0 else -(2**64))
    if pa.types.is_floating(type_):
        return float(edge)
    exact = Decimal(edge) if isinstance(edge, int) else Decimal(str(edge)) if not temporal else Decimal(0)
    if isinstance(edge, timedelta):
        micros = Decimal(edge // timedelta(microseconds=1))
        if pa.types.is_date(type_):
            exact = micros / 86_400_000_000
        else:
            exact = micros * 1000 if type_.unit == "ns" else micros
    if pa.types.is_decimal(type_):
        exact = exact.scaleb(type_.scale)
    return int(exact.to_integral_value(ROUND_CEILING if at == 0 else ROUND_FLOOR))
