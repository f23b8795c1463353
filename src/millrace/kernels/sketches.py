"""Two sketches of a stream of key codes, each one table of bounded size (open addressing, linear probing).

A *key sample* holds every key whose random bits are at most a limit, with its exact count. When it is full, the limit
goes down by an eighth and keys above it are removed. So its keys depend on the tuples alone, not on their order::

    0 ├── kept, counted ──┤ limit ········ ignored ·········· 2**64

*Hot keys* are counted from the moment they enter a table. When the table is full, the *floor* rises to the median of
the highest possible counts of its keys, and keys at or below the floor are removed. From then on only one tuple in
:data:`ENTRY`, drawn at random, lets its key enter. Rare keys mostly stay out, and frequent keys miss a few tuples::

    in the table:      count  <=  times it occurred  <=  count + missed
    not in the table:             times it occurred  <=  floor

Until the table is full for the first time, both bounds are certain and nothing is missed. From then on the upper bounds
may be exceeded by chance, by ``k * ENTRY`` tuples with probability ``exp(-k)``. The floor can rise by one only if half
of the keys have each occurred once more. So it is at most ``2 * tuples / most``, if the table holds ``most`` keys, and
usually far lower.

References
----------
P. B. Gibbons: Distinct sampling for highly-accurate answers to distinct values queries and event reports. VLDB 2001.
G. S. Manku, R. Motwani: Approximate frequency counts over data streams. VLDB 2002.
C. Estan, G. Varghese: New directions in traffic measurement and accounting. SIGCOMM 2002 (sample and hold).
D. Anderson et al.: A high-performance algorithm for identifying frequent items in data streams. IMC 2017.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.jit import inlined, kernel
from millrace.kernels.mixing import mix, place
from millrace.kernels.sampling import salt_of, scatter

SAMPLED = np.dtype([("code", np.int64), ("count", np.int32)])
"""An entry of a key sample: a key code and its count. Here and in :data:`HOT`, a count of 0 marks an empty place."""

HOT = np.dtype([("code", np.int64), ("count", np.int32), ("missed", np.int32)])
"""An entry of the hot keys: a key code, its count since it entered, and the most times it can have occurred before."""

ENTRY = 8
"""How often a key occurs on average before it enters the hot keys, once their table has been full."""

SAMPLE_SEED = 0x5A3D
ALL = np.uint64(2**64 - 1)
"""The limit of a key sample that holds every key."""

_ENTERS = np.uint64(2**64 // ENTRY)
_LESS = np.uint64(3)  # the limit goes down by 2**-3 of itself


class KeySample(NamedTuple):
    """The arrays of a key sample: ``entries`` is a hash table of :data:`SAMPLED` items; the others have one item.

    ``limit`` holds the highest value that the random bits of a key in the sample may have, ``kept`` the number of keys
    in the sample.
    """

    entries: npt.NDArray[Any]
    limit: npt.NDArray[np.uint64]
    kept: npt.NDArray[np.int64]


class HotKeys(NamedTuple):
    """The arrays of hot keys: a table of :data:`HOT` (``entries``), and three arrays of one item each.

    ``floor`` is the most times that a key outside of the table can have occurred, ``kept`` the number of keys in the
    table, ``tuples`` the number of tuples counted so far.
    """

    entries: npt.NDArray[Any]
    floor: npt.NDArray[np.int64]
    kept: npt.NDArray[np.int64]
    tuples: npt.NDArray[np.int64]


@inlined
def most_entries(places: int) -> int:
    """Return the largest number of keys that a sample holds in a table with this many places."""
    return places - (places >> 2) - 1


@inlined
def _find(entries: npt.NDArray[Any], code: np.int64) -> int:
    """Return the place of ``code`` in a table, or the empty place where it would be inserted."""
    places = len(entries)
    at = place(mix(code), places)
    while entries[at].count != 0 and entries[at].code != code:
        at += 1
        if at == places:
            at = 0
    return at


@kernel
def _close_gap(entries: npt.NDArray[Any], gap: int) -> None:
    """Empty a place and move back the entries that linear probing has put behind it."""
    places = len(entries)
    at = gap
    while True:
        at += 1
        if at == places:
            at = 0
        if entries[at].count == 0:
            break
        home = place(mix(entries[at].code), places)
        if (at - home) % places >= (at - gap) % places:
            entries[gap] = entries[at]
            gap = at
    entries[gap].count = 0


@kernel
def _drop_above(entries: npt.NDArray[Any], limit: np.uint64) -> int:
    """Remove the keys of a sample whose random bits are above a limit; return how many were removed."""
    salt = salt_of(SAMPLE_SEED)
    dropped = 0
    at = 0
    while at < len(entries):
        if entries[at].count != 0 and scatter(entries[at].code, salt) > limit:
            _close_gap(entries, at)
            dropped += 1
        else:
            at += 1
    return dropped


@inlined
def lower(limit: np.uint64) -> np.uint64:
    """Return the next lower limit of a key sample, which is seven eighths of ``limit``."""
    return limit - (limit >> _LESS)


@kernel
def sample(s: KeySample, codes: npt.NDArray[np.int64]) -> None:
    """Count each code whose random bits are at most the limit, and lower the limit if the sample is full. O(1) each."""
    salt = salt_of(SAMPLE_SEED)
    limit = s.limit[0]
    kept = s.kept[0]
    most = most_entries(len(s.entries))
    for i in range(len(codes)):
        code = codes[i]
        if scatter(code, salt) > limit:
            continue
        at = _find(s.entries, code)
        if s.entries[at].count == 0:
            s.entries[at].code = code
            kept += 1
        s.entries[at].count += 1
        while kept > most:
            limit = lower(limit)
            kept -= _drop_above(s.entries, limit)
    s.limit[0] = limit
    s.kept[0] = kept


@kernel
def fill(entries: npt.NDArray[Any], given: npt.NDArray[Any]) -> None:
    """Replace the entries of a table by the given ones, whose codes are all different."""
    for at in range(len(entries)):
        entries[at].count = 0
    for i in range(len(given)):
        entries[_find(entries, given[i].code)] = given[i]


@kernel
def _raise(entries: npt.NDArray[Any], kept: int) -> tuple[int, np.int64]:
    """Remove at least the less frequent half of the hot keys; return how many are left, and the new floor."""
    reach = np.empty(kept, np.int64)
    held = np.empty(kept, entries.dtype)
    found = 0
    for at in range(len(entries)):
        if entries[at].count != 0:
            held[found] = entries[at]
            reach[found] = np.int64(entries[at].count) + entries[at].missed
            found += 1
    reach.sort()
    floor = reach[kept // 2]
    left = 0
    for i in range(kept):
        if np.int64(held[i].count) + held[i].missed > floor:
            held[left] = held[i]
            left += 1
    fill(entries, held[:left])
    return left, floor


@kernel
def count(h: HotKeys, codes: npt.NDArray[np.int64]) -> None:
    """Count each code that is a hot key, and let some of the others become hot keys. O(1) each on average."""
    floor = h.floor[0]
    kept = h.kept[0]
    first = h.tuples[0]
    most = len(h.entries) // 2  # most codes are not in the table; if half of it is empty, a search ends soon
    for i in range(len(codes)):
        code = codes[i]
        at = _find(h.entries, code)
        if h.entries[at].count == 0:
            if floor > 0 and mix(first + i) >= _ENTERS:
                continue
            if kept == most:
                kept, floor = _raise(h.entries, kept)
                at = _find(h.entries, code)
            h.entries[at].code = code
            h.entries[at].missed = np.int32(floor)
            kept += 1
        h.entries[at].count += 1
    h.floor[0] = floor
    h.kept[0] = kept
    h.tuples[0] = first + len(codes)
