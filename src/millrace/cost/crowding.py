"""How much of its quota a cyclic join lets in, where tuples leave with their match.

The quota is what keeps the room full on average, and no tuple enters a full room. Where the number of waiting tuples
goes up and down within a turn, some of the quota is lost while it is up, and not made up for while it is down. Two
things make it go up and down: the last load of a turn is shorter than the others, and the tuples of a very frequent
key leave all at once, when its row passes. Neither depends on how large the room is.

Both are played out: k loads, a chunk of tuples before each, of which 1 - (what has passed since) is still here; for
frequent keys all of it until the key's row has passed. Where their rows lie is not known, so several places are tried.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from millrace.cost.frequencies import Frequencies

_FREQUENT = 0.003
_MOST_KEYS = 16
_FEW_LOADS = 48
_LOADS, _TRIES, _TURNS = 32, 16, 6


def filled(frequencies: Frequencies, loads: int, last: float) -> float:
    """Return the part of the quota that is used.

    A turn has so many loads, the last as long as this part of the others.
    """
    frequent = np.repeat(frequencies.each, np.minimum(frequencies.counts, _MOST_KEYS).astype(int))[:_MOST_KEYS]
    keys = tuple(round(share, 4) for share in frequent[frequent >= _FREQUENT].tolist())
    part = _played(_LOADS, 1.0, keys) if keys else 1.0
    if loads <= _FEW_LOADS and last < 1:
        part *= _played(loads, round(last, 2), ())
    return part


@cache
def _played(loads: int, last: float, keys: tuple[float, ...]) -> float:
    lengths = np.ones(loads)
    lengths[-1] = max(last, 0.01)
    starts = (np.cumsum(lengths) - lengths) / lengths.sum()
    passed = (starts[:, None] - starts) % 1.0  # from when chunk j entered until load t
    present = np.repeat((1 - sum(keys)) * (1 - passed)[None], _TRIES if keys else 1, axis=0)
    number = np.arange(loads)
    age = (number[:, None] - number) % loads
    random = np.random.default_rng(0)
    for share in keys:
        at = np.searchsorted(starts, random.random(len(present)), side="right") - 1
        present += share * ((at[:, None, None] - number) % loads >= age)
    quota = 2 / (loads + 1)  # of a room for 1
    entered = np.full((len(present), loads), quota)
    for t in list(range(loads)) * _TURNS:
        others = (present[:, t] * entered).sum(1) - entered[:, t]
        entered[:, t] = np.clip(1 - others, 0, quota)
    return float(entered.mean() / quota)
