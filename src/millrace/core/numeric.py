"""Type checks for numeric arguments: numbers of Python and NumPy pass, True and False do not."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a real number, including infinity and NaN but not a bool.

    >>> is_number(2), is_number(2.5), is_number(True), is_number("2")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a value is of an integer type other than bool.

    >>> is_whole(2), is_whole(2.0), is_whole(False)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)
