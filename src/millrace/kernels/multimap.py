"""A multimap from key codes to slots, in flat arrays.

Slots of one code form a ring in order of insertion. The directory (open addressing, linear probing) points at the
*newest* slot of a ring, whose successor is the oldest::

    directory ──► newest ──next──► oldest ──next──► … ──next──► newest
                    │
                    └─ count = slots in the ring (-1 in the other slots of the ring, 0 in free ones)

so appending, removing the oldest, and reading a ring's size are O(1). Removing another slot walks through its ring,
which is rare: the waiting room removes the slots of a code oldest first. Free slots form a list, linked by ``next``.
The arrays may be on the heap or in a mapped file, and may be longer than the part that is in use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel
from millrace.kernels.bitfilter import candidates, second, shift_of
from millrace.kernels.mixing import mix, place

_BLOCK = 1024
_AHEAD = 32
LEAST_MATCHES = 16
"""The least length of the output arrays of :func:`find_all`."""

FREE, LIVE, HIGH, RINGS = 0, 1, 2, 3
"""Places in ``state``: first free slot (or -1), number of live slots, high-water mark of slots, number of codes."""


SLOT = np.dtype([("code", np.int64), ("next", np.int32), ("count", np.int32)])
"""The fields of a slot, which lie side by side, so that a look-up reads one cache line."""


class Multimap(NamedTuple):
    """The arrays of a multimap.

    ``directory`` holds slot numbers, and -1 at empty places. ``slots`` holds an item of type :data:`SLOT`
    for each slot. ``state`` holds four numbers, at the places :data:`FREE`, :data:`LIVE`, :data:`HIGH` and
    :data:`RINGS`.
    """

    directory: npt.NDArray[np.int32]
    slots: npt.NDArray[Any]
    state: npt.NDArray[np.int64]

    @property
    def code(self) -> npt.NDArray[np.int64]:
        """The key code of each slot."""
        codes: npt.NDArray[np.int64] = self.slots["code"]
        return codes


@inlined
def find(m: Multimap, code: np.int64) -> int:
    """Return the place of ``code`` in the directory, or the empty place where it would be inserted."""
    directory = m.directory
    places = len(directory)
    at = place(mix(code), places)
    while directory[at] >= 0 and m.slots[directory[at]].code != code:
        at += 1
        if at == places:
            at = 0
    return at


@kernel
def clear(m: Multimap) -> None:
    """Remove all entries."""
    m.directory[:] = -1
    for slot in range(m.state[HIGH]):
        m.slots[slot].count = 0
    m.state[FREE] = -1
    m.state[LIVE] = 0
    m.state[HIGH] = 0
    m.state[RINGS] = 0


@inlined
def _look_up_ahead(m: Multimap, codes: npt.NDArray[np.int64], found: npt.NDArray[np.int64]) -> None:
    """Read what the next insertions will need, so that the memory reads of several insertions overlap."""
    places = len(m.directory)
    for i in range(len(codes)):
        found[i] = m.directory[place(mix(codes[i]), places)]
    for i in range(len(codes)):
        if found[i] >= 0:
            found[i] = m.slots[found[i]].code


@kernel
def insert(
    m: Multimap,
    codes: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int32],
) -> None:
    """Append a slot for each code to the code's ring, which links all slots of the code in order of insertion.

    ``slots`` receives the new slots, and ``counts`` the number of slots that are then in the ring. O(1) each.
    """
    free = m.state[FREE]
    high = m.state[HIGH]
    ahead = np.empty(_AHEAD, np.int64)
    for i in range(len(codes)):
        if i % _AHEAD == 0:
            _look_up_ahead(m, codes[i : i + _AHEAD], ahead)
        code = codes[i]
        if free >= 0:
            slot = free
            free = np.int64(m.slots[slot].next)
        else:
            slot = high
            high += 1
        at = find(m, code)
        newest = np.int64(m.directory[at])
        m.slots[slot].code = code
        if newest < 0:
            m.slots[slot].next = slot
            m.slots[slot].count = 1
            m.state[RINGS] += 1
        else:
            m.slots[slot].next = m.slots[newest].next
            m.slots[newest].next = slot
            m.slots[slot].count = m.slots[newest].count + 1
            m.slots[newest].count = -1
        m.directory[at] = slot
        slots[i] = slot
        counts[i] = m.slots[slot].count
    m.state[FREE] = free
    m.state[HIGH] = high
    m.state[LIVE] += len(codes)


@inlined
def _close_gap(m: Multimap, gap: int) -> None:
    """Empty a directory place and move back the entries that linear probing has put behind it."""
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
        home = place(mix(m.slots[slot].code), places)
        if (at - home) % places >= (at - gap) % places:
            directory[gap] = slot
            gap = at
    directory[gap] = -1


@inlined
def _look_ahead(m: Multimap, slots: npt.NDArray[np.int32], newest: npt.NDArray[np.int32]) -> None:
    """Read what the next removals will need, so that the memory reads of several removals overlap."""
    places = len(m.directory)
    for i in range(len(slots)):
        newest[i] = m.directory[place(mix(m.slots[slots[i]].code), places)]
    for i in range(len(slots)):
        if newest[i] >= 0:
            newest[i] = m.slots[newest[i]].next


@kernel
def remove(m: Multimap, slots: npt.NDArray[np.int32]) -> int:
    """Remove slots in the given order. O(1) for the oldest slot of a code.

    Returns the sum, over all removals, of the number of slots that the code had just before. This is how many entries
    would have to be searched if the slots of each code were in a plain list.
    """
    free = m.state[FREE]
    touched = 0
    ahead = np.empty(_AHEAD, np.int32)
    for i in range(len(slots)):
        if i % _AHEAD == 0:
            _look_ahead(m, slots[i : i + _AHEAD], ahead)
        slot = np.int64(slots[i])
        at = find(m, m.slots[slot].code)
        newest = np.int64(m.directory[at])
        size = m.slots[newest].count
        touched += size
        if size == 1:
            _close_gap(m, at)
            m.state[RINGS] -= 1
        else:
            before = newest
            while m.slots[before].next != slot:
                before = np.int64(m.slots[before].next)
            m.slots[before].next = m.slots[slot].next
            if slot == newest:
                newest = before
                m.directory[at] = before
            m.slots[newest].count = size - 1
        m.slots[slot].count = 0
        m.slots[slot].next = free
        free = slot
    m.state[FREE] = free
    m.state[LIVE] -= len(slots)
    return touched


@kernel
def find_all(
    m: Multimap,
    bits: npt.NDArray[np.uint64],
    codes: npt.NDArray[np.int64],
    start: int,
    positions: npt.NDArray[np.int32],
    newest: npt.NDArray[np.int32],
    found: npt.NDArray[np.int64],
) -> None:
    """Look up codes, from ``start`` on, until the outputs are full.

    For each code that is present, write its position in ``codes`` and its newest slot. ``found`` becomes (how many were
    found, where to continue). ``bits`` is a filter that is tested first. The map is not changed, so several threads may
    search at the same time. O(codes + matches).
    """
    size = min(_BLOCK, len(positions) // 2)
    block = np.empty(size, np.int32)
    limit = len(positions) - size
    shift = shift_of(bits)
    made = 0
    at = start
    while at < len(codes) and made <= limit:
        stop = min(at + size, len(codes))
        passed = candidates(bits, codes[at:stop], block)
        for i in range(passed):
            row = at + block[i]
            if not second(bits, shift, codes[row]):
                continue
            slot = m.directory[find(m, codes[row])]
            positions[made] = row
            newest[made] = slot
            made += int(slot >= 0)
        at = stop
    found[0] = made
    found[1] = at


@kernel
def expand(
    m: Multimap,
    newest: npt.NDArray[np.int32],
    cursor: npt.NDArray[np.int64],
    index: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
) -> int:
    """Write pairs (place in ``newest``, slot) for all slots of some rings. A ring links all slots of one code.

    ``newest`` holds the newest slot of each ring. Negative slots are skipped, and so are rings that have been removed
    since they were found. ``cursor`` is (place in ``newest``, slot to continue with or -1): start with (0, -1), and
    call again until the place reaches ``len(newest)``. A ring's slots come oldest first. O(pairs).
    """
    limit = len(index)
    made = 0
    i = cursor[0]
    resume = cursor[1]
    while i < len(newest) and made < limit:
        last = newest[i]
        if last >= 0 and m.slots[last].count > 0:
            slot = m.slots[last].next if resume < 0 else np.int32(resume)
            resume = np.int64(-1)
            while made < limit:
                index[made] = i
                slots[made] = slot
                made += 1
                if slot == last:
                    slot = np.int32(-1)
                    break
                slot = m.slots[slot].next
            if slot >= 0:
                resume = np.int64(slot)
                break
        resume = np.int64(-1)  # also if the rest of a ring was removed between two calls
        i += 1
    cursor[0] = i
    cursor[1] = resume
    return made


@kernel
def oldest(m: Multimap, codes: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> None:
    """Write the oldest slot of each code, or -1 if it has none. O(1) each."""
    for i in range(len(codes)):
        newest = m.directory[find(m, codes[i])]
        out[i] = m.slots[newest].next if newest >= 0 else -1


@kernel
def newest(m: Multimap, codes: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> None:
    """Write the newest slot of each code, or -1 if it has none. O(1) each."""
    for i in range(len(codes)):
        out[i] = m.directory[find(m, codes[i])]


@kernel
def ring_sizes(m: Multimap, codes: npt.NDArray[np.int64], out: npt.NDArray[np.int32]) -> None:
    """Write how many slots each code has. O(1) each."""
    for i in range(len(codes)):
        newest = m.directory[find(m, codes[i])]
        out[i] = m.slots[newest].count if newest >= 0 else 0


@kernel
def rebuild(m: Multimap) -> None:
    """Fill the directory anew after its length has changed. O(slots)."""
    m.directory[:] = -1
    for slot in range(m.state[HIGH]):
        if m.slots[slot].count > 0:
            m.directory[find(m, m.slots[slot].code)] = slot


@kernel
def trim(m: Multimap) -> int:
    """Lower the high-water mark to the last live slot and return it; low slots are then reused first. O(slots)."""
    high = int(m.state[HIGH])
    while high > 0 and m.slots[high - 1].count == 0:
        high -= 1
    free = -1
    for slot in range(high - 1, -1, -1):
        if m.slots[slot].count == 0:
            m.slots[slot].next = free
            free = slot
    m.state[HIGH] = high
    m.state[FREE] = free
    return high


@kernel
def live_slots(m: Multimap, out: npt.NDArray[np.int32]) -> int:
    """Write all live slots in ascending order; return how many."""
    found = 0
    for slot in range(m.state[HIGH]):
        if m.slots[slot].count != 0:
            out[found] = slot
            found += 1
    return found


@kernel
def check(m: Multimap) -> int:
    """Return 0 if the structure is sound, else the number of the rule that is broken. Slow; for tests."""
    live = 0
    for slot in range(m.state[HIGH]):
        if m.slots[slot].count != 0:
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
        if find(m, m.slots[newest].code) != at:
            return 2
        slot = m.slots[newest].next
        size = 1
        while slot != newest:
            if m.slots[slot].count != -1 or m.slots[slot].code != m.slots[newest].code or size > live:
                return 3
            slot = m.slots[slot].next
            size += 1
        if m.slots[newest].count != size:
            return 4
        in_rings += size
    if in_rings != live or rings != m.state[RINGS]:
        return 5
    free = 0
    slot = int(m.state[FREE])
    while slot >= 0:
        if m.slots[slot].count != 0 or free > m.state[HIGH]:
            return 6
        free += 1
        slot = int(m.slots[slot].next)
    if free + live != m.state[HIGH]:
        return 7
    return 0
