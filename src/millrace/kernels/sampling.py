"""Samples drawn by hashing numbers: under one seed, a number is always in the sample or always out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel
from millrace.kernels.mixing import mix


@inlined
def salt_of(seed: int) -> np.int64:
    """Return the salt of a seed, with which numbers are mixed."""
    return np.int64(mix(np.int64(seed)) >> np.uint64(1))


@inlined
def scatter(number: np.int64, salt: np.int64) -> np.uint64:
    """Return 64 random bits that depend on a number and a salt alone.

    Mixed twice, since hash tables place codes by mixing once: a sample must not crowd into one part of a table.
    """
    bits = mix(number)
    bits = mix(np.int64((bits ^ (bits >> np.uint64(29))) >> np.uint64(1)) ^ salt)
    return bits ^ (bits >> np.uint64(31))


@kernel
def scattered(numbers: npt.NDArray[np.int64], seed: int, out: npt.NDArray[np.uint64]) -> None:
    """Write the 64 random bits of each number under a seed."""
    salt = salt_of(seed)
    for i in range(len(numbers)):
        out[i] = scatter(numbers[i], salt)


@kernel
def sampled(numbers: npt.NDArray[np.int64], seed: int, threshold: np.uint64, out: npt.NDArray[np.bool_]) -> None:
    """Write whether the random bits of each number under a seed are below a threshold."""
    salt = salt_of(seed)
    for i in range(len(numbers)):
        out[i] = scatter(numbers[i], salt) < threshold
