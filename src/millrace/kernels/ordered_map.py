"""An ordered multimap from int64 keys to slots, in flat arrays.

Entries are kept sorted, in chunks; a directory holds the chunks in order, with the lowest key of each::

    directory   0: chunk 4, from 10    1: chunk 0, from 57    2: chunk 7, from 57 …
                    │
                    └─ keys  10 10 23 40 …      slots of equal keys are in order of insertion

A batch of sorted keys is merged into the chunks, each of which is touched once. :func:`tidy` merges neighboring
chunks that together are at most half full. *Stamps* are the times when the rows in the slots arrived.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel, prefetch

USED, SPARE, HIGH, LIVE = 0, 1, 2, 3
"""Places in ``state``: numbers of chunks in the directory and of spare chunks, high-water mark of chunks, entries."""

FIRST = np.int64(-(2**63))
LAST = np.int64(2**63 - 1)
"""The highest possible key; ``FIRST`` is the lowest one."""

_ONE, _STRETCH = np.uint64(1), np.uint64(16)
_AHEAD = 6
"""How many keys, or chunks, ahead of the current one are prefetched."""


class Ordered(NamedTuple):
    """The arrays of an ordered map.

    By chunk number: the ``keys`` and ``slots`` of the chunk's entries, and how many entries it has (``counts``). By
    place in the directory: the number of the chunk at this place (``order``), and the chunk's lowest key (``lows``).
    ``spare`` lists the numbers of unused chunks. For ``state``, see :data:`USED`.
    """

    keys: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    order: npt.NDArray[np.int32]
    lows: npt.NDArray[np.int64]
    spare: npt.NDArray[np.int32]
    state: npt.NDArray[np.int64]


@inlined
def _fill(width: int) -> int:
    """Return the largest number of entries that a chunk of ``width`` places has right after a split."""
    return max(1, width - width // 4)


@inlined
def _last_from(o: Ordered, key: np.int64, at: int) -> int:
    """Return the last directory place from ``at`` on with a lowest key of at most ``key``; ``at`` if there is none."""
    low = at
    step = 1
    used = o.state[USED]
    while low + step < used and o.lows[low + step] <= key:
        low += step
        step *= 2
    high = min(low + step, used)
    while high - low > 1:
        middle = (low + high) >> 1
        if o.lows[middle] <= key:
            low = middle
        else:
            high = middle
    return low


@inlined
def _first_from(o: Ordered, key: np.int64, at: int) -> int:
    """Return the last place of the directory, from ``at`` on, whose lowest key is below ``key``; else ``at``."""
    low = at
    step = 1
    used = o.state[USED]
    while low + step < used and o.lows[low + step] < key:
        low += step
        step *= 2
    high = min(low + step, used)
    while high - low > 1:
        middle = (low + high) >> 1
        if o.lows[middle] < key:
            low = middle
        else:
            high = middle
    return low


@inlined
def _inside(o: Ordered, chunk: int, key: np.int64) -> np.int64:
    """Return how many keys of a chunk are below ``key``.

    Every sixteenth key is compared first, then the keys of one stretch of 16. Counting needs no branch that the
    processor has to predict; each step of a binary search does.
    """
    row = np.uint64(chunk)
    held = np.uint64(o.counts[row])
    low = np.uint64(0)
    for k in range(_STRETCH - _ONE, held, _STRETCH):
        low += np.uint64(o.keys[row, k] < key)
    low *= _STRETCH
    more = np.uint64(0)
    for k in range(low, min(low + _STRETCH, held)):
        more += np.uint64(o.keys[row, k] < key)
    return np.int64(low + more)


@inlined
def _fetch(o: Ordered, at: int) -> None:
    """Prefetch the keys that a search of a chunk compares first; ``at`` is the chunk's place in the directory."""
    row = np.uint64(o.order[at])
    width = np.uint64(o.keys.shape[1])
    for k in range(_STRETCH - _ONE, np.uint64(o.counts[row]), _STRETCH):
        prefetch(o.keys, row * width + k)


@inlined
def _fetch_all(o: Ordered, at: int) -> None:
    """Prefetch the whole chunk at a directory place."""
    row = np.uint64(o.order[at])
    held = np.uint64(o.counts[row])
    base = row * np.uint64(o.keys.shape[1])
    for k in range(np.uint64(0), held, np.uint64(8)):
        prefetch(o.keys, base + k)
    for k in range(np.uint64(0), held, np.uint64(16)):
        prefetch(o.slots, base + k)


@inlined
def _run(o: Ordered, keys: npt.NDArray[np.int64], i: int, at: int) -> int:
    """Return the end of the run of keys, from ``i`` on, that belong in the chunk at directory place ``at``."""
    if at + 1 >= o.state[USED]:
        return len(keys)
    limit = o.lows[at + 1]
    j = i
    while j < len(keys) and keys[j] < limit:
        j += 1
    return j


@kernel
def chunks_needed(o: Ordered, keys: npt.NDArray[np.int64]) -> int:
    """Return how many new chunks :func:`insert` will need for these sorted keys. O(keys + directory)."""
    width = o.keys.shape[1]
    fill = _fill(width)
    if o.state[USED] == 0:
        return int((len(keys) + width - 1) // width)
    needed = 0
    i = 0
    at = 0
    while i < len(keys):
        at = _last_from(o, keys[i], at)
        j = _run(o, keys, i, at)
        total = o.counts[o.order[at]] + j - i
        if total > width:
            needed += (total + fill - 1) // fill - 1
        i = j
    return needed


@inlined
def _new_chunk(o: Ordered) -> int:
    if o.state[SPARE] > 0:
        o.state[SPARE] -= 1
        return int(o.spare[o.state[SPARE]])
    o.state[HIGH] += 1
    return int(o.state[HIGH] - 1)


@inlined
def _merge_into(
    o: Ordered, chunk: int, keys: npt.NDArray[np.int64], slots: npt.NDArray[np.int32], i: int, j: int
) -> None:
    """Merge keys ``i`` to ``j`` into a chunk that has room for them, beginning with the last key."""
    row = np.uint64(chunk)
    held = np.int64(o.counts[row])
    a = held - 1
    k = held + j - i - 1
    for b in range(j - 1, i - 1, -1):
        key = keys[b]
        while a >= 0 and o.keys[row, np.uint64(a)] > key:
            o.keys[row, np.uint64(k)] = o.keys[row, np.uint64(a)]
            o.slots[row, np.uint64(k)] = o.slots[row, np.uint64(a)]
            a -= 1
            k -= 1
        o.keys[row, np.uint64(k)] = key
        o.slots[row, np.uint64(k)] = slots[b]
        k -= 1
    o.counts[row] = held + j - i


@inlined
def _merge_out(
    o: Ordered,
    chunk: int,
    keys: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int32],
    i: int,
    j: int,
    both_keys: npt.NDArray[np.int64],
    both_slots: npt.NDArray[np.int32],
) -> None:
    """Merge a chunk with the new entries ``[i:j]``; write the result to ``both_keys`` and ``both_slots``."""
    held = int(o.counts[chunk])
    a = 0
    b = i
    for k in range(held + j - i):
        if a < held and (b >= j or o.keys[chunk, a] <= keys[b]):
            both_keys[k] = o.keys[chunk, a]
            both_slots[k] = o.slots[chunk, a]
            a += 1
        else:
            both_keys[k] = keys[b]
            both_slots[k] = slots[b]
            b += 1


@kernel
def insert(o: Ordered, keys: npt.NDArray[np.int64], slots: npt.NDArray[np.int32]) -> None:
    """Insert sorted keys, each after the entries with an equal key. O(keys + directory + moved entries).

    Chunks are visited from the last to the first, so that every entry of the directory moves only once, by the number
    of chunks that are split off before it.
    """
    width = o.keys.shape[1]
    fill = int(_fill(width))
    count = len(keys)
    if count == 0:
        return
    if o.state[USED] == 0:
        chunk = _new_chunk(o)
        o.counts[chunk] = 0
        o.order[0] = chunk
        o.state[USED] = 1
        more = (count + width - 1) // width - 1
        fill = width
    else:
        more = int(chunks_needed(o, keys))
    both_keys = np.empty(width + count, np.int64)
    both_slots = np.empty(width + count, np.int32)
    at = int(o.state[USED])
    o.state[USED] += more
    j = count
    while j > 0:
        at -= 1
        if at >= _AHEAD:
            _fetch_all(o, at - _AHEAD)
        chunk = int(o.order[at])
        i = j
        if at == 0:
            i = 0
        else:
            low = o.lows[at]
            while i > 0 and keys[i - 1] >= low:
                i -= 1
        total = int(o.counts[chunk]) + j - i
        if i == j:
            o.order[at + more] = chunk
            o.lows[at + more] = o.lows[at]
        elif total <= width:
            _merge_into(o, chunk, keys, slots, i, j)
            o.order[at + more] = chunk
            o.lows[at + more] = o.keys[chunk, 0]
        else:
            _merge_out(o, chunk, keys, slots, i, j, both_keys, both_slots)
            parts = (total + fill - 1) // fill
            more -= parts - 1
            start = 0
            for part in range(parts):
                stop = (part + 1) * total // parts
                if part > 0:
                    chunk = _new_chunk(o)
                for k in range(stop - start):
                    o.keys[chunk, k] = both_keys[start + k]
                    o.slots[chunk, k] = both_slots[start + k]
                o.counts[chunk] = stop - start
                o.order[at + more + part] = chunk
                o.lows[at + more + part] = both_keys[start]
                start = stop
        j = i
    o.state[LIVE] += count


@kernel
def tidy(o: Ordered) -> None:
    """Merge small neighboring chunks and add empty chunks to the spare ones. O(directory + moved entries)."""
    half = o.keys.shape[1] // 2
    kept = 0
    for at in range(o.state[USED]):
        chunk = o.order[at]
        held = o.counts[chunk]
        if held > 0 and kept > 0 and o.counts[o.order[kept - 1]] + held <= half:
            before = o.order[kept - 1]
            base = o.counts[before]
            for k in range(held):
                o.keys[before, base + k] = o.keys[chunk, k]
                o.slots[before, base + k] = o.slots[chunk, k]
            o.counts[before] = base + held
            held = np.int32(0)
        if held == 0:
            o.counts[chunk] = 0
            o.spare[o.state[SPARE]] = chunk
            o.state[SPARE] += 1
        else:
            o.order[kept] = chunk
            o.lows[kept] = o.keys[chunk, 0]
            kept += 1
    o.state[USED] = kept


@kernel
def matches(
    o: Ordered,
    lows: npt.NDArray[np.int64],
    highs: npt.NDArray[np.int64],
    cursor: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    keys: npt.NDArray[np.int64],
) -> int:
    """For each i, write the entries with a key from ``lows[i]`` to ``highs[i]``: i, slot and key of each entry.

    Both ``lows`` and ``highs`` ascend. ``cursor`` is (i, directory place where the entries for i begin, directory
    place to continue at, offset in the chunk there or -1): start with (0, 0, 0, -1), and call again until i reaches
    ``len(lows)``. Returns how many entries were written. O(len(lows) * log(directory) + entries written).
    """
    limit = len(rows)
    made = 0
    i = cursor[0]
    at = cursor[1]
    walk = cursor[2]
    offset = cursor[3]
    used = o.state[USED]
    if used == 0:
        cursor[0] = len(lows)
        return 0
    near = at
    while i < len(lows):
        if offset < 0:
            if i + _AHEAD < len(lows):
                near = np.int64(_first_from(o, lows[i + _AHEAD], near))
                _fetch(o, int(near))
            at = np.int64(_first_from(o, lows[i], at))
            walk = at
            offset = _inside(o, o.order[at], lows[i])
        high = highs[i]
        chunk = o.order[walk]
        held = o.counts[chunk]
        while True:
            if offset >= held:
                walk += 1
                if walk >= used:
                    break
                offset = np.int64(0)
                chunk = o.order[walk]
                held = o.counts[chunk]
            key = o.keys[chunk, offset]
            if key > high:
                break
            if made == limit:
                cursor[0] = i
                cursor[1] = at
                cursor[2] = walk
                cursor[3] = offset
                return made
            rows[made] = i
            slots[made] = o.slots[chunk, offset]
            keys[made] = key
            made += 1
            offset += 1
        offset = np.int64(-1)
        i += 1
    cursor[0] = i
    return made


@kernel
def below(o: Ordered, key: np.int64, equal: bool) -> int:
    """Return how many entries have a key below ``key`` or, if ``equal``, a key of at most ``key``. O(directory)."""
    found = 0
    for at in range(o.state[USED]):
        chunk = o.order[at]
        held = o.counts[chunk]
        last = o.keys[chunk, held - 1]
        if last < key or (equal and last == key):
            found += held
            continue
        for k in range(held):
            if o.keys[chunk, k] < key or (equal and o.keys[chunk, k] == key):
                found += 1
            else:
                return found
    return found


@kernel
def key_at(o: Ordered, rank: int) -> np.int64:
    """Return the key of the entry with this rank in ascending order, counted from 0. O(directory)."""
    for at in range(o.state[USED]):
        held = o.counts[o.order[at]]
        if rank < held:
            return np.int64(o.keys[o.order[at], rank])
        rank -= held
    return LAST


@kernel
def take(
    o: Ordered,
    low: np.int64,
    high: np.int64,
    skip: int,
    limit: int,
    stamps: npt.NDArray[np.int64],
    latest: np.int64,
    keys: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int32],
) -> int:
    """Remove entries with keys from ``low`` to ``high`` and stamps up to ``latest``, except the first ``skip`` of them.

    At most ``limit`` entries are removed. The function writes their keys and slots, in key order, to ``keys`` and
    ``slots``, and returns their number. Call :func:`tidy` afterwards. O(directory + range).
    """
    taken = 0
    for at in range(o.state[USED]):
        chunk = o.order[at]
        held = o.counts[chunk]
        if o.keys[chunk, held - 1] < low:
            continue
        if o.lows[at] > high or taken >= limit:
            break
        kept = 0
        for k in range(held):
            key = o.keys[chunk, k]
            slot = o.slots[chunk, k]
            if low <= key <= high and taken < limit and stamps[slot] <= latest:
                if skip > 0:
                    skip -= 1
                else:
                    keys[taken] = key
                    slots[taken] = slot
                    taken += 1
                    continue
            o.keys[chunk, kept] = key
            o.slots[chunk, kept] = slot
            kept += 1
        o.counts[chunk] = kept
    o.state[LIVE] -= taken
    return taken


@kernel
def drop(o: Ordered, keys: npt.NDArray[np.int64], bits: npt.NDArray[np.uint8], mask: np.uint8) -> None:
    """Remove the entries whose slots have a bit of ``mask`` in ``bits``; ``keys`` are the sorted keys of these entries.

    Call :func:`tidy` afterwards. O(directory + keys + entries of the chunks concerned).
    """
    i = 0
    dropped = 0
    for at in range(o.state[USED]):
        chunk = o.order[at]
        held = o.counts[chunk]
        if held == 0:
            continue
        while i < len(keys) and keys[i] < o.keys[chunk, 0]:
            i += 1
        if i == len(keys):
            break
        if keys[i] > o.keys[chunk, held - 1]:
            continue
        kept = 0
        for k in range(held):
            slot = o.slots[chunk, k]
            if bits[slot] & mask:
                dropped += 1
                continue
            o.keys[chunk, kept] = o.keys[chunk, k]
            o.slots[chunk, kept] = slot
            kept += 1
        o.counts[chunk] = kept
    o.state[LIVE] -= dropped


@inlined
def _hand_place(o: Ordered, stamps: npt.NDArray[np.int64], key: np.int64, stamp: np.int64) -> int:
    """Return the directory place of the chunk that may hold the first entry after ``key`` and ``stamp``.

    Entries are in the order of their keys, and entries with equal keys in the order of their stamps.
    """
    low = 0
    high = int(o.state[USED])
    while high - low > 1:
        middle = (low + high) >> 1
        chunk = o.order[middle]
        first = o.keys[chunk, 0]
        if first < key or (first == key and stamps[o.slots[chunk, 0]] <= stamp):
            low = middle
        else:
            high = middle
    return low


@kernel
def sweep(
    o: Ordered,
    low: np.int64,
    high: np.int64,
    hand: npt.NDArray[np.int64],
    limit: int,
    stamps: npt.NDArray[np.int64],
    bits: npt.NDArray[np.uint8],
    keys: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int32],
) -> int:
    """Run the clock algorithm on the entries with keys from ``low`` to ``high``; return how many were removed.

    An entry whose use bit is set stays, and the bit is cleared; any other entry is removed. The algorithm begins after
    the hand (key, stamp), and ends when ``limit`` entries are removed or it has gone round once. The hand is then at
    the last entry that was visited. Call :func:`tidy` afterwards. O(entries passed + directory).
    """
    used = int(o.state[USED])
    taken = 0
    if used == 0:
        return 0
    start = _hand_place(o, stamps, hand[0], hand[1])
    began_key = hand[0]
    began_stamp = hand[1]
    for turn in range(used + 1):
        at = (start + turn) % used
        chunk = o.order[at]
        held = o.counts[chunk]
        if held == 0 or o.keys[chunk, held - 1] < low or o.keys[chunk, 0] > high:
            continue
        if taken >= limit:
            break
        kept = 0
        for k in range(held):
            key = o.keys[chunk, k]
            slot = o.slots[chunk, k]
            stamp = stamps[slot]
            behind = key > began_key or (key == began_key and stamp > began_stamp)
            due = behind if turn == 0 else (turn < used or not behind)
            if due and low <= key <= high and taken < limit:
                hand[0] = key
                hand[1] = stamp
                if bits[slot] & 1 == 0:
                    keys[taken] = key
                    slots[taken] = slot
                    taken += 1
                    continue
                bits[slot] &= 254
            o.keys[chunk, kept] = key
            o.slots[chunk, kept] = slot
            kept += 1
        o.counts[chunk] = kept
    o.state[LIVE] -= taken
    return taken


@kernel
def entries(o: Ordered, keys: npt.NDArray[np.int64], slots: npt.NDArray[np.int32]) -> int:
    """Write all entries in order; return how many."""
    found = 0
    for at in range(o.state[USED]):
        chunk = o.order[at]
        for k in range(o.counts[chunk]):
            keys[found] = o.keys[chunk, k]
            slots[found] = o.slots[chunk, k]
            found += 1
    return found


@kernel
def rename(o: Ordered, names: npt.NDArray[np.int32]) -> None:
    """Replace the slot number of every entry by ``names[slot]``."""
    for at in range(o.state[USED]):
        chunk = o.order[at]
        for k in range(o.counts[chunk]):
            o.slots[chunk, k] = names[o.slots[chunk, k]]


@kernel
def pack(o: Ordered) -> None:
    """Move the chunks in use to the lowest chunk numbers. O(chunks)."""
    used = o.state[USED]
    places = np.full(o.state[HIGH], -1, np.int32)
    for at in range(used):
        places[o.order[at]] = at
    free = 0
    for chunk in range(used, o.state[HIGH]):
        if places[chunk] >= 0:
            while places[free] >= 0:
                free += 1
            for k in range(o.counts[chunk]):
                o.keys[free, k] = o.keys[chunk, k]
                o.slots[free, k] = o.slots[chunk, k]
            o.counts[free] = o.counts[chunk]
            o.order[places[chunk]] = free
            places[free] = places[chunk]
    o.state[HIGH] = used
    o.state[SPARE] = 0


@kernel
def check(o: Ordered, stamps: npt.NDArray[np.int64]) -> int:
    """Return 0 if the structure is sound, else the number of the rule that is broken. Slow; for tests."""
    live = 0
    before = FIRST
    stamp = FIRST
    for at in range(o.state[USED]):
        chunk = o.order[at]
        if o.counts[chunk] < 1 or o.counts[chunk] > o.keys.shape[1]:
            return 1
        if o.lows[at] != o.keys[chunk, 0]:
            return 2
        for k in range(o.counts[chunk]):
            key = o.keys[chunk, k]
            if key < before:
                return 3
            if key == before and stamps[o.slots[chunk, k]] <= stamp and live > 0:
                return 4
            before = key
            stamp = stamps[o.slots[chunk, k]]
            live += 1
    if live != o.state[LIVE]:
        return 5
    if o.state[USED] + o.state[SPARE] != o.state[HIGH]:
        return 6
    return 0
