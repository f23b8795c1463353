"""A multimap from key codes to slots, in flat arrays.

Slots of one code form a ring in order of insertion. The directory (open addressing, linear probing) points at the
*newest* slot of a ring, whose successor is the oldest::

    directory ──► newest ──next──► oldest ──next──► … ──next──► newest
                    │
                    └─ count = slots in the ring (-1 in the other slots of the ring, 0 in free ones)

so appending, removing the oldest, and asking for a ring's size are O(1). Removing another slot walks its ring; chunks
leave a waiting room in the order they came, so this does not happen there. Free slots are threaded through ``next``.
The arrays may be on the heap or in a mapped file, and may be longer than what is in use.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel
from millrace.kernels.mixing import mix, place

FREE, LIVE, HIGH, RINGS = 0, 1, 2, 3
"""Places in ``state``: first free slot (or -1), live slots, slots ever used, distinct codes."""


class Multimap(NamedTuple):
    """The arrays. ``code``, ``next`` and ``count`` are by slot; ``directory`` holds slots or -1."""

    directory: npt.NDArray[np.int32]
    code: npt.NDArray[np.int64]
    next: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]
    state: npt.NDArray[np.int64]


@inlined
def find(m: Multimap, code: np.int64) -> np.int64:
    """Where the directory has ``code``, or the empty place where it would go."""
    directory = m.directory
    places = len(directory)
    at = place(mix(code), places)
    while directory[at] >= 0 and m.code[directory[at]] != code:
        at += 1
        if at == places:
            at = 0
    return at


@kernel
def clear(m: Multimap) -> None:
    """Forget everything."""
    m.directory[:] = -1
    m.count[: m.state[HIGH]] = 0
    m.state[FREE] = -1
    m.state[LIVE] = 0
    m.state[HIGH] = 0
    m.state[RINGS] = 0


@kernel
def insert(
    m: Multimap,
    codes: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int32],
) -> None:
    """Append each code to its ring; write its slot, and the size of its ring then. O(1) each."""
    free = m.state[FREE]
    high = m.state[HIGH]
    for i in range(len(codes)):
        code = codes[i]
        if free >= 0:
            slot = free
            free = np.int64(m.next[slot])
        else:
            slot = high
            high += 1
        at = find(m, code)
        newest = np.int64(m.directory[at])
        m.code[slot] = code
        if newest < 0:
            m.next[slot] = slot
            m.count[slot] = 1
            m.state[RINGS] += 1
        else:
            m.next[slot] = m.next[newest]
            m.next[newest] = slot
            m.count[slot] = m.count[newest] + 1
            m.count[newest] = -1
        m.directory[at] = slot
        slots[i] = slot
        counts[i] = m.count[slot]
    m.state[FREE] = free
    m.state[HIGH] = high
    m.state[LIVE] += len(codes)


@inlined
def _close_gap(m: Multimap, gap: np.int64) -> None:
    """Empty a directory place and pull back the entries that linear probing pushed past it."""
    directory = m.directory
    places = len(directory)
    at = gap
    while True:
        at += 1
        if at == places:
            at = 0
        slot = directory[at]
        if slot < 0:
            break
        home = place(mix(m.code[slot]), places)
        if (at - home) % places >= (at - gap) % places:
            directory[gap] = slot
            gap = at
    directory[gap] = -1


@kernel
def remove(m: Multimap, slots: npt.NDArray[np.int32]) -> int:
    """Remove slots in the given order; return the steps walked along rings. O(1) for the oldest of a ring."""
    free = m.state[FREE]
    walked = 0
    for i in range(len(slots)):
        slot = np.int64(slots[i])
        at = find(m, m.code[slot])
        newest = np.int64(m.directory[at])
        if m.next[slot] == slot:
            _close_gap(m, at)
            m.state[RINGS] -= 1
        else:
            before = newest
            while m.next[before] != slot:
                before = np.int64(m.next[before])
                walked += 1
            m.next[before] = m.next[slot]
            size = m.count[newest] - 1
            if slot == newest:
                newest = before
                m.directory[at] = before
            m.count[newest] = size
        m.count[slot] = 0
        m.next[slot] = free
        free = slot
    m.state[FREE] = free
    m.state[LIVE] -= len(slots)
    return walked


@kernel
def probe(
    m: Multimap,
    codes: npt.NDArray[np.int64],
    among: npt.NDArray[np.int32],
    cursor: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int32],
) -> int:
    """Pairs (slot, position in ``codes``) for the positions listed in ``among``, as many as the outputs hold.

    ``cursor`` is (place in ``among``, slot to go on with or -1): start with (0, -1), call again until the first
    reaches ``len(among)``. A ring's slots come oldest first. O(matches + len(among)).
    """
    limit = len(slots)
    made = 0
    i = cursor[0]
    resume = cursor[1]
    while i < len(among) and made < limit:
        row = among[i]
        newest = m.directory[find(m, codes[row])]
        if newest >= 0:
            slot = m.next[newest] if resume < 0 else np.int32(resume)
            resume = np.int64(-1)
            while made < limit:
                slots[made] = slot
                rows[made] = row
                made += 1
                if slot == newest:
                    slot = np.int32(-1)
                    break
                slot = m.next[slot]
            if slot >= 0:
                resume = np.int64(slot)
                break
        i += 1
    cursor[0] = i
    cursor[1] = resume
    return made


@kernel
def oldest(m: Multimap, codes: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> None:
    """The oldest slot of each code's ring, or -1. O(1) each."""
    for i in range(len(codes)):
        newest = m.directory[find(m, codes[i])]
        out[i] = m.next[newest] if newest >= 0 else -1


@kernel
def ring_sizes(m: Multimap, codes: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> None:
    """How many slots each code has. O(1) each."""
    for i in range(len(codes)):
        newest = m.directory[find(m, codes[i])]
        out[i] = m.count[newest] if newest >= 0 else 0


@kernel
def expand(
    m: Multimap,
    heads: npt.NDArray[np.int32],
    cursor: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
) -> int:
    """Pairs (position in ``heads``, slot) for whole rings given by their oldest slot; negative heads are passed over.

    Resumable as :func:`probe` is.
    """
    limit = len(rows)
    made = 0
    i = cursor[0]
    resume = cursor[1]
    while i < len(heads) and made < limit:
        head = heads[i]
        if head >= 0:
            slot = head if resume < 0 else np.int32(resume)
            resume = np.int64(-1)
            while made < limit:
                rows[made] = i
                slots[made] = slot
                made += 1
                slot = m.next[slot]
                if slot == head:
                    slot = np.int32(-1)
                    break
            if slot >= 0:
                resume = np.int64(slot)
                break
        i += 1
    cursor[0] = i
    cursor[1] = resume
    return made


@kernel
def rebuild(m: Multimap) -> None:
    """Fill the directory anew, after its length changed. O(slots)."""
    m.directory[:] = -1
    for slot in range(m.state[HIGH]):
        if m.count[slot] > 0:
            m.directory[find(m, m.code[slot])] = slot


@kernel
def trim(m: Multimap) -> int:
    """Lower the high-water mark to the last live slot and hand out low slots first from now on. O(slots)."""
    high = m.state[HIGH]
    while high > 0 and m.count[high - 1] == 0:
        high -= 1
    free = -1
    for slot in range(high - 1, -1, -1):
        if m.count[slot] == 0:
            m.next[slot] = free
            free = slot
    m.state[HIGH] = high
    m.state[FREE] = free
    return high


@kernel
def live_slots(m: Multimap, out: npt.NDArray[np.int32]) -> int:
    """Write all live slots in ascending order; return how many."""
    found = 0
    for slot in range(m.state[HIGH]):
        if m.count[slot] != 0:
            out[found] = slot
            found += 1
    return found


@kernel
def check(m: Multimap) -> int:
    """0 if the structure is sound, else the number of the rule that is broken. Slow; for tests."""
    live = 0
    for slot in range(m.state[HIGH]):
        if m.count[slot] != 0:
            live += 1
    if live != m.state[LIVE]:
        return 1
    in_rings = 0
    rings = 0
    for at in range(len(m.directory)):
        newest = m.directory[at]
        if newest < 0:
            continue
        rings += 1
        if find(m, m.code[newest]) != at:
            return 2
        slot = m.next[newest]
        size = 1
        while slot != newest:
            if m.count[slot] != -1 or m.code[slot] != m.code[newest] or size > live:
                return 3
            slot = m.next[slot]
            size += 1
        if m.count[newest] != size:
            return 4
        in_rings += size
    if in_rings != live or rings != m.state[RINGS]:
        return 5
    free = 0
    slot = np.int32(m.state[FREE])
    while slot >= 0:
        if m.count[slot] != 0 or free > m.state[HIGH]:
            return 6
        free += 1
        slot = m.next[slot]
    if free + live != m.state[HIGH]:
        return 7
    return 0
