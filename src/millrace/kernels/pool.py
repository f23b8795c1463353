"""A buffer pool with the second-chance rule, which counts the page reads of a sequence of accesses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel


class Pool(NamedTuple):
    """The arrays of a buffer pool, whose frames hold one page each.

    ``frame`` is the frame that holds each page, ``page`` the page in each frame, both -1 for none. ``used`` is 1 for
    frames used since the clock's ``hand`` passed them.
    """

    frame: npt.NDArray[np.int32]
    page: npt.NDArray[np.int32]
    used: npt.NDArray[np.uint8]
    hand: npt.NDArray[np.int64]


@kernel
def use(pool: Pool, pages: npt.NDArray[np.int64]) -> int:
    """Access pages one after the other; return how many had to be read from disk. O(1) each on average."""
    missed = 0
    hand = pool.hand[0]
    for i in range(len(pages)):
        page = pages[i]
        frame = pool.frame[page]
        if frame >= 0:
            pool.used[frame] = 1
            continue
        missed += 1
        while pool.used[hand]:
            pool.used[hand] = 0
            hand = hand + 1 if hand + 1 < len(pool.page) else 0
        if pool.page[hand] >= 0:
            pool.frame[pool.page[hand]] = -1
        pool.page[hand] = page
        pool.frame[page] = hand
        pool.used[hand] = 1
        hand = hand + 1 if hand + 1 < len(pool.page) else 0
    pool.hand[0] = hand
    return missed
