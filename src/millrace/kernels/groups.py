"""Kernels for caches: all slots of one code in the multimap are a *group*; the oldest slot is the group's head.

``state`` of the head says whether the group can answer a look-up. A group that is still collecting its rows answers
none. An empty group has a head but no row, and answers "no such key".

A *tally* is a byte for each waiting tuple: bit 7 says whether the tuple has matched, bits 0 to 6 count the
master rows that it has met.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.jit import kernel
from millrace.kernels.multimap import HIGH, Multimap, find

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
    found: npt.NDArray[np.int32],
) -> int:
    """Write the newest slot of each code, or ``MISS``, or ``ABSENT``; return how many codes are not ``MISS``.

    ``hits`` counts how often each group answered, at the place of its head.

    ``whole`` says that every key of the master is cached, so that a code that is not found is absent from the master.
    """
    answered = 0
    for i in range(len(codes)):
        newest = m.directory[find(m, codes[i])]
        if newest < 0:
            found[i] = ABSENT if whole else MISS
            answered += int(whole)
            continue
        head = m.slots[newest].next
        if state[head] & COLLECTING:
            found[i] = MISS
            continue
        hits[head] += 1
        answered += 1
        found[i] = ABSENT if state[head] & EMPTY else newest
    return answered


@kernel
def add_one(counts: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> None:
    """Add one to the count at every slot; slots may repeat."""
    for i in range(len(slots)):
        counts[slots[i]] += 1


@kernel
def all_groups(m: Multimap, heads: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32]) -> int:
    """Write the oldest slot and the size of every group, ordered by newest slot; return how many groups there are.

    The order is not that of the directory. Otherwise a cache that always removes the first of several equally good
    groups would leave one end of the directory empty and the rest crowded.
    """
    found = 0
    for slot in range(m.state[HIGH]):
        if m.slots[slot].count > 0:
            heads[found] = m.slots[slot].next
            sizes[found] = m.slots[slot].count
            found += 1
    return found


@kernel
def mark_matched(tally: npt.NDArray[np.uint8], slots: npt.NDArray[np.int32], fresh: npt.NDArray[np.int32]) -> int:
    """Set bit 7 of each slot's tally; write to ``fresh`` the slots where it was not set before; return how many."""
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
    """Add one to the count in bits 0 to 6 of each slot's tally, up to 127."""
    for i in range(len(slots)):
        slot = slots[i]
        if tally[slot] & 127 < 127:
            tally[slot] += 1


@kernel
def frequent(
    waiting: Multimap,
    newest: npt.NDArray[np.int32],
    cached: Multimap,
    least: int,
    out: npt.NDArray[np.int32],
) -> int:
    """Write which keys are not cached and have at least ``least`` waiting tuples; return how many.

    ``newest`` holds the newest slot of each key. A key is written as its place in this array.
    """
    found = 0
    for i in range(len(newest)):
        slot = newest[i]
        if waiting.slots[slot].count >= least and cached.directory[find(cached, waiting.slots[slot].code)] < 0:
            out[found] = i
            found += 1
    return found


@kernel
def since(entered: npt.NDArray[np.int32], slots: npt.NDArray[np.int32], step: int, out: npt.NDArray[np.int32]) -> None:
    """Write how many steps before ``step`` the tuple at each slot entered the waiting room."""
    for i in range(len(slots)):
        out[i] = step - entered[slots[i]]


@kernel
def set_all(marks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32], value: int) -> None:
    """Write ``value`` to the places ``slots`` of an array."""
    for i in range(len(slots)):
        marks[slots[i]] = value
