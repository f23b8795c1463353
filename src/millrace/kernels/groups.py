"""Kernels for caches: a ring of the multimap is a *group*, its oldest slot the group's head.

``state`` of the head says what the group is good for. While a group is collecting it answers nobody; an empty group
has a head but no row, and answers "no such key".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel
from millrace.kernels.multimap import Multimap, find

COLLECTING = np.uint8(1)
EMPTY = np.uint8(2)

MISS = np.int32(-1)
ABSENT = np.int32(-2)


@kernel
def look_up(
    m: Multimap,
    state: npt.NDArray[np.uint8],
    hits: npt.NDArray[np.int32],
    codes: npt.NDArray[np.int64],
    whole: bool,
    heads: npt.NDArray[np.int32],
) -> int:
    """The head of each code's group, ``MISS`` or ``ABSENT``; counts hits. Returns how many were answered.

    ``whole`` says that every key of the master is here, so that a code that is not found is absent.
    """
    answered = 0
    for i in range(len(codes)):
        newest = m.directory[find(m, codes[i])]
        if newest < 0:
            heads[i] = ABSENT if whole else MISS
            answered += np.int64(whole)
            continue
        head = m.next[newest]
        if state[head] & COLLECTING:
            heads[i] = MISS
            continue
        hits[head] += 1
        answered += 1
        heads[i] = ABSENT if state[head] & EMPTY else head
    return answered


@kernel
def collecting(
    m: Multimap,
    state: npt.NDArray[np.uint8],
    codes: npt.NDArray[np.int64],
    among: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
    heads: npt.NDArray[np.int32],
) -> int:
    """Pairs (position in ``codes``, head) for the positions in ``among`` whose group is collecting."""
    made = 0
    for i in range(len(among)):
        row = among[i]
        newest = m.directory[find(m, codes[row])]
        if newest >= 0 and state[m.next[newest]] & COLLECTING:
            rows[made] = row
            heads[made] = m.next[newest]
            made += 1
    return made


@kernel
def tally_rows(
    m: Multimap,
    counts: npt.NDArray[np.int32],
    codes: npt.NDArray[np.int64],
    among: npt.NDArray[np.int32],
) -> None:
    """Add one to the count at a code's slot for every position in ``among`` that has the code."""
    for i in range(len(among)):
        slot = m.directory[find(m, codes[among[i]])]
        if slot >= 0:
            counts[slot] += 1


@kernel
def all_groups(m: Multimap, heads: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32]) -> int:
    """Head and size of every group, in directory order; return how many."""
    found = 0
    for at in range(len(m.directory)):
        newest = m.directory[at]
        if newest >= 0:
            heads[found] = m.next[newest]
            sizes[found] = m.count[newest]
            found += 1
    return found


@kernel
def mark_matched(
    tally: npt.NDArray[np.uint8], slots: npt.NDArray[np.int32], fresh: npt.NDArray[np.int32]
) -> int:
    """Set the matched bit of each slot's tally; write the slots that did not have it; return how many."""
    found = 0
    for i in range(len(slots)):
        slot = slots[i]
        if tally[slot] < 128:
            tally[slot] |= 128
            fresh[found] = slot
            found += 1
    return found


@kernel
def count_up(tally: npt.NDArray[np.uint8], slots: npt.NDArray[np.int32]) -> None:
    """Add one to the lower seven bits of each slot's tally, which stop at 127."""
    for i in range(len(slots)):
        slot = slots[i]
        if tally[slot] & 127 < 127:
            tally[slot] += 1


@kernel
def shifts(m: Multimap, slots: npt.NDArray[np.int32]) -> int:
    """Slots in the rings of the given slots, added up: what removing them by value from lists would touch."""
    total = 0
    for i in range(len(slots)):
        total += m.count[m.directory[find(m, m.code[slots[i]])]]
    return total


@kernel
def frequent(
    waiting: Multimap,
    cached: Multimap,
    codes: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int32],
    least: int,
    out: npt.NDArray[np.int32],
) -> int:
    """Positions whose code at least ``least`` tuples wait for and that is not cached; neighbours that repeat count once."""
    found = 0
    last = np.int32(-1)
    for i in range(len(positions)):
        position = positions[i]
        if position == last:
            continue
        last = position
        newest = waiting.directory[find(waiting, codes[position])]
        if newest >= 0 and waiting.count[newest] >= least:
            if cached.directory[find(cached, codes[position])] < 0:
                out[found] = position
                found += 1
    return found
