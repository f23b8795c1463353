"""Samples that depend on numbers alone: the same number is in or out, whenever it is asked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel
from millrace.kernels.mixing import mix


@kernel
def sampled(numbers: npt.NDArray[np.int64], seed: int, threshold: np.uint64, out: npt.NDArray[np.bool_]) -> None:
    """Which numbers fall below a threshold once they are mixed with a seed.

    Mixed twice, for tables place their codes by mixing once: a sample must not fill only a part of them.
    """
    salt = mix(np.int64(seed)) >> np.uint64(1)
    for i in range(len(numbers)):
        bits = mix(numbers[i])
        bits = mix(np.int64((bits ^ (bits >> np.uint64(29))) >> np.uint64(1)) ^ np.int64(salt))
        out[i] = bits ^ (bits >> np.uint64(31)) < threshold
