"""A model of Millrace's joins that load the page of the oldest tuple: HYBRIDJOIN, CACHEJOIN and SSCJ.

T is the number of tuples that arrive while a tuple goes from the end of the queue to its head, and G the number of
pages that tuples wait for; :mod:`page_loads <millrace.cost.page_loads>` computes both. If the waiting room holds h_S
tuples and S tuples enter between two steps, h_S - S/2 tuples wait on average, and the oldest tuple of a page waits
while T tuples arrive, plus or minus S/2.

A step loads the pages of the n oldest tuples. Of the tuples that arrived after the oldest one, one in T/G was the first
of its page. A page that is loaded has a share q = (T - G) / (T · G) of the stream on average. So the n oldest tuples
are among the first D arrivals, counted from the oldest tuple, with a = G/T and

    n  =  1  +  a · D  +  q · D  +  a · q · D² / 2

The terms count the oldest tuple, the first tuples of other pages, later tuples of the oldest tuple's page, and later
tuples of other pages. A step loads 1 + a · D pages, and each answers T/G tuples.
"""

from __future__ import annotations

import math

import numpy as np

from millrace.core.bisection import increasing_root
from millrace.core.errors import ConfigError
from millrace.cost.engine_room import Room
from millrace.cost.frequencies import Floats, Frequencies, at_least
from millrace.cost.page_loads import PageLoads
from millrace.cost.plan import plan
from millrace.cost.prediction import Prediction
from millrace.cost.symbols import Disk
from millrace.cost.workload import Workload

_PART_OF_ROOM = 40  # a step frees at most about 1/40 of the room
_ENTRY_BYTES, _INDEX_PAGE = 12, 8192
_COUNTED_ROOMS = 3  # uses are halved after a room full of tuples, which is about as exact as counting over 3
_BUSY = 0.01  # share of the cached keys that may change in a hundred loads before the threshold goes up
_ROUNDS = 12


def predict(workload: Workload, algorithm: str, memory: int, b: int | None, cache_share: float | None) -> Prediction:
    s = workload
    if s.rows_per_key != 1:
        raise ConfigError(f"{algorithm}: the model expects one master row per key; got {s.rows_per_key:.2g}")
    sizes = plan(memory, s.rows, paged=True, b=b, threads=s.threads)
    cache = int((cache_share or 0.0) * memory)
    free = memory - sizes.load_bytes - cache
    kept: Floats = np.zeros_like(s.frequencies.each)
    entering, span, wanted = 0.0, 2 * free / s.tuple_bytes, s.rows / sizes.b
    hit_share = min(s.frequencies.share(s.frequencies.hottest(cache / s.cached_bytes)), 1 - 1e-9) if cache else 0.0
    for _ in range(_ROUNDS):
        steps = span / entering + 1 if entering else 2.0 * _PART_OF_ROOM
        room = Room.fitting(s, sizes, free, lambda h: min(steps, h))  # noqa: B023
        before, hits_before = entering, hit_share
        if cache:
            in_stream = 1 / (1 - hit_share)  # tuples of the stream for each tuple that enters the room
            rows = cache / s.cached_bytes
            if algorithm == "sscj":
                kept = s.frequencies.noticed(rows, _COUNTED_ROOMS * room.capacity * in_stream)
            else:
                kept = _random_victims(s.frequencies, rows, span * in_stream, wanted)
            hit_share = min(s.frequencies.share(kept), 1 - 1e-9)
        left = s.frequencies.without(np.minimum(kept, 1 - 1e-9))
        pages = PageLoads(left, s.rows, sizes.b)
        span = pages.span(max(room.capacity - entering / 2, 1.0))
        wanted = pages.wanted(span)
        looked_up = _looked_up(room.capacity / _PART_OF_ROOM * wanted / span, sizes.step_rows // sizes.b)
        loads = _loads(looked_up, span, wanted)
        entering = loads * span / wanted
        if abs(entering - before) <= 1e-3 * entering and abs(hit_share - hits_before) <= 1e-3 * (1 - hit_share):
            break
    costs = s.unit_costs(memory)
    met = entering * left.distinct(span) / span
    reading = loads * (s.disk.c_IO(sizes.b * s.read_bytes) + sizes.b * (costs.c_H + (costs.c_F if cache else 0.0)))
    tuples = entering / (1 - hit_share)
    seconds = costs.c_step + costs.c_I + _index(s.disk, s.rows, looked_up) + reading + met * costs.c_R
    seconds += entering * (costs.waiting + costs.c_Q + costs.c_O) + (tuples - entering) * costs.hit
    parts = {"load": float(sizes.load_bytes), **room.parts(s)}
    if cache:
        parts["cache"] = float(cache)
    return Prediction(
        algorithm,
        memory,
        sizes.b,
        cache_share,
        c_loop=seconds,
        w=tuples,
        hit_share=hit_share,
        mean_wait=max(0.0, room.capacity - entering / 2) / entering * seconds,
        worst_wait=(span + entering / 2) / entering * seconds,
        waiting=room.capacity,
        parts=parts,
    )


def _looked_up(enough: float, most: int) -> float:
    """Return for how many tuples a step looks up the page, on average.

    ``enough`` is how many page loads free the part of the waiting room that a step should free. The join rounds this
    number down, which takes 0.5 off on average. The result is at least 1 and at most ``most``.
    """
    return max(1.0, min(float(most), enough - 0.5))


def _loads(looked_up: float, span: float, wanted: float) -> float:
    """Return how many pages a step loads if it looks up the pages of the ``looked_up`` oldest tuples.

    This is 1 + a · D in the module's docstring; ``looked_up`` is n, ``span`` is T and ``wanted`` is G.
    """
    a, q = wanted / span, (span - wanted) / (span * wanted)
    more = looked_up - 1
    back = more / a if q * more < 1e-9 * a else (math.sqrt((a + q) ** 2 + 2 * a * q * more) - (a + q)) / (a * q)
    return 1 + a * back


def _index(disk: Disk, rows: int, looked_up: float) -> float:
    """Return the seconds to read the pages of the index that hold the entries of ``looked_up`` keys."""
    pages = max(1.0, rows * _ENTRY_BYTES / _INDEX_PAGE)
    different = pages * -math.expm1(looked_up * math.log1p(-1 / pages)) if pages > 1 else 1.0
    return disk.sweep(different, _INDEX_PAGE, pages)


def _random_victims(frequencies: Frequencies, rows: float, tuples: float, wanted: float) -> Floats:
    """Return the part of each bucket's keys that CACHEJOIN keeps in a cache of ``rows`` rows.

    Between two loads of the same page, ``tuples`` tuples of the stream arrive and ``wanted`` pages are loaded. A key
    enters when its page is loaded and enough tuples wait for it, and leaves when it is drawn at random for eviction. If
    ``enters`` and ``leaves`` are the chances of this in a load, a key is cached for enters / (enters + leaves) of the
    time. ``leaves`` is the same for all keys, and follows from the size of the cache. The threshold for entering is
    raised until at most 1 % of the cached keys change in a hundred loads.
    """
    if rows >= frequencies.keys:
        return np.ones_like(frequencies.each)
    waiting = frequencies.expected(tuples)
    kept: Floats = np.zeros_like(frequencies.each)
    for threshold in range(1, 1_000):
        enters = at_least(threshold, waiting) / wanted  # a page is loaded once in ``wanted`` loads

        def left_out(log_leaves: float, enters: Floats = enters) -> float:
            return -math.log(float(frequencies.counts @ (enters / (enters + math.exp(log_leaves)))) + 1e-300)

        leaves = math.exp(increasing_root(left_out, -math.log(rows), -40.0, 5.0, 1e-6, 1e-3))
        kept = enters / (enters + leaves)
        if 100 * leaves <= _BUSY:
            break
    return kept
