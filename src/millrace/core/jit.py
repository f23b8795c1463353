"""The one way kernels are compiled: no Python objects, no GIL, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a function on arrays at its first call and keep the machine code on disk."""
    compiled: F = numba.njit(function, cache=True, nogil=True, error_model="numpy")
    return compiled


def inlined(function: F) -> F:
    """A piece of a kernel, compiled into its callers."""
    compiled: F = numba.njit(function, cache=True, nogil=True, error_model="numpy", inline="always")
    return compiled
