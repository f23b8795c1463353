"""A model of crowded waiting rooms: it estimates how many of the tuples that may enter before a load find room.

It is for joins that scan the whole master in turns, and whose tuples leave as soon as they have a match. The number of
tuples that may enter before each load, the quota, is chosen so that the waiting room is full on average, but no tuple
enters a full room. If the number of waiting tuples rises and falls within a turn of the wheel, part of the quota is
unused while the room is full, and cannot be used later. There are two reasons for rising and falling: the last load of
a turn is shorter than the others, and all tuples of a very frequent key leave together, when its row passes. Neither
effect depends on the size of the room.

Both effects are simulated: a turn has k loads, and a chunk of tuples enters before each. When a part p of a turn has
passed since a chunk entered, a part 1 - p of it still waits; but all tuples of a frequent key wait until the key's row
passes.
It is not known where the rows of frequent keys are, so several random places are tried.
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
    """Return how many new tuples enter before a load on average, divided by the number that may enter.

    A turn of the wheel has ``loads`` loads; ``last`` is the length of the last one as a fraction of the others' length.
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
    passed = (starts[:, None] - starts) % 1.0  # part of a turn from the entry of chunk j to load t
    present = np.repeat((1 - sum(keys)) * (1 - passed)[None], _TRIES if keys else 1, axis=0)
    number = np.arange(loads)
    age = (number[:, None] - number) % loads
    random = np.random.default_rng(0)
    for share in keys:
        at = np.searchsorted(starts, random.random(len(present)), side="right") - 1
        present += share * ((at[:, None, None] - number) % loads >= age)
    quota = 2 / (loads + 1)  # if the room has size 1
    entered = np.full((len(present), loads), quota)
    for t in list(range(loads)) * _TURNS:
        others = (present[:, t] * entered).sum(1) - entered[:, t]
        entered[:, t] = np.clip(1 - others, 0, quota)
    return float(entered.mean() / quota)
