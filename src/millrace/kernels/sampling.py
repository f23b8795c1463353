"""Samples drawn by hashing numbers: with the same seed, a number is either always in the sample or never."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel
from millrace.kernels.mixing import mix


@inlined
def salt_of(seed: int) -> np.int64:
    """Return the salt that belongs to a seed; :func:`scatter` mixes numbers with it."""
    return np.int64(mix(np.int64(seed)) >> np.uint64(1))


@inlined
def scatter(number: np.int64, salt: np.int64) -> np.uint64:
    """Return 64 random bits that depend only on a number and a salt.

    The number is mixed twice. Hash tables place codes by mixing them once, and the codes of a sample should not all
    have their places in one part of a table.
    """
    bits = mix(number)
    bits = mix(np.int64((bits ^ (bits >> np.uint64(29))) >> np.uint64(1)) ^ salt)
    return bits ^ (bits >> np.uint64(31))


@kernel
def scattered(numbers: npt.NDArray[np.int64], seed: int, out: npt.NDArray[np.uint64]) -> None:
    """Write the 64 random bits of each number, with the salt of ``seed``."""
    salt = salt_of(seed)
    for i in range(len(numbers)):
        out[i] = scatter(numbers[i], salt)


@kernel
def sampled(numbers: npt.NDArray[np.int64], seed: int, threshold: np.uint64, out: npt.NDArray[np.bool_]) -> None:
    """Write for each number whether it is sampled: whether its random bits for ``seed`` are below ``threshold``."""
    salt = salt_of(seed)
    for i in range(len(numbers)):
        out[i] = scatter(numbers[i], salt) < threshold
