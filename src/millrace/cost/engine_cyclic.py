"""A model of Millrace's joins that scan the whole master: MESHJOIN, R-MESHJOIN and SSBJ."""

from __future__ import annotations

import math

import numpy as np

from millrace.core.bisection import increasing_root
from millrace.core.significance import MARGIN, count_for
from millrace.cost.crowding import filled
from millrace.cost.engine_room import Room
from millrace.cost.frequencies import Floats, Frequencies, at_least
from millrace.cost.plan import Plan, plan
from millrace.cost.prediction import Prediction
from millrace.cost.symbols import UnitCosts
from millrace.cost.workload import Workload

_RESERVE = 0.01  # share of the budget that is kept free for the cache to grow into
_SWITCHING = 16 * 8
_MOST_TUPLES = 46.0  # logarithm of a number of tuples that no turn reaches
_COUNTED_TURNS = 3  # hits are halved every turn, which is about as exact as counting over this many turns


def predict(workload: Workload, algorithm: str, memory: int, b: int | None, loads_per_step: int) -> Prediction:
    sizes = plan(memory, workload.rows, paged=False, b=b, threads=workload.threads)
    costs = workload.unit_costs(memory)
    turn = _Turn(workload, costs, sizes, loads_per_step, judges=algorithm == "ssbj")
    free = memory - sizes.load_bytes
    if algorithm != "ssbj":
        return turn.prediction(algorithm, memory, turn.settled(free, workload.frequencies))
    free -= workload.threads * _SWITCHING + 8
    if _whole_bytes(workload) * 1.02 + 16 * workload.tuple_bytes + 65_536 <= free:
        return _in_memory(workload, costs, memory, sizes)

    def short(log_tuples: float) -> float:
        """Return log(assumed tuples per turn / tuples per turn that the model computes from this assumption)."""
        return log_tuples - math.log(turn.balanced(free, memory, math.exp(log_tuples)).tuples)

    tuples = math.exp(increasing_root(short, 0.0, 0.0, _MOST_TUPLES, 1e-6, 1e-4))
    return turn.prediction(algorithm, memory, turn.balanced(free, memory, tuples))


class _Settled:
    """A turn of the wheel in a steady state, with its numbers of tuples and keys, its waiting room and its cache."""

    def __init__(self, misses: float, met: float, room: Room) -> None:
        self.misses, self.met, self.room = misses, met, room
        self.tuples = misses
        self.hit_share = self.cached = self.switched = 0.0

    def with_cache(self, hit_share: float, cached: float, switched: float) -> _Settled:
        """Add a cache of ``cached`` bytes that answers a share of the tuples and admits ``switched`` keys per turn."""
        self.hit_share, self.cached, self.switched = hit_share, cached, switched
        self.tuples = self.misses / (1 - hit_share)
        return self


class _Turn:
    """The model of a turn of the wheel in loads of b rows."""

    def __init__(
        self, workload: Workload, costs: UnitCosts, sizes: Plan, loads_per_step: int, judges: bool = False
    ) -> None:
        self._situation, self._costs, self._sizes, self._judges = workload, costs, sizes, judges
        self.loads = -(-workload.rows // sizes.b)
        self.steps = -(-self.loads // loads_per_step)
        step_rows = sizes.b * loads_per_step
        self._last = (workload.rows - (self.steps - 1) * step_rows) / step_rows

    def settled(self, free: float, frequencies: Frequencies) -> _Settled:
        """Return a turn in steady state with ``free`` bytes for waiting tuples, whose keys have these frequencies."""
        s, k = self._situation, self.steps
        room = Room.fitting(s, self._sizes, free, lambda capacity: min(k + 1, capacity / s.stay))
        quota = room.capacity / s.stay / (k + 1)
        quota = math.floor(quota) if quota >= 1 else quota
        used = filled(frequencies, k, self._last) if s.leave_early else 1.0
        misses = k * quota * used
        return _Settled(misses, frequencies.distinct(misses), room)

    def balanced(self, free: float, memory: int, tuples: float) -> _Settled:
        """Return a turn in steady state with the cache that SSBJ keeps if ``tuples`` tuples arrive in a turn.

        The cache and the waiting tuples share ``free`` bytes of a budget of ``memory`` bytes.
        """
        s = self._situation
        kept, leaves = balanced(s, tuples)
        share = min(s.frequencies.share(kept), 1 - 1e-9)
        inside = s.frequencies.counts * kept
        cached = float(inside.sum()) * s.cached_bytes
        rest = s.frequencies.without(np.minimum(kept, 1 - 1e-9))
        beside = self.settled(max(free - cached - _RESERVE * memory, 0.0), rest)
        return beside.with_cache(share, cached, float(inside @ leaves))

    def seconds(self, settled: _Settled) -> float:
        """Return how many seconds the turn takes."""
        s, costs = self._situation, self._costs
        reading = s.disk.transfer(s.rows * s.read_bytes) + s.disk.seek * (self.loads if s.every_load_seeks else 1)
        met = settled.met * s.rows_per_key
        probing = self.steps * costs.c_step + s.rows * costs.c_H + met * costs.c_R
        hits = (settled.tuples - settled.misses) * costs.hit
        switching = settled.switched * costs.c_B + (met * costs.c_J if self._judges else 0.0)
        return reading + probing + hits + switching + settled.misses * (costs.waiting + s.rows_per_key * costs.c_O)

    def prediction(self, algorithm: str, memory: int, settled: _Settled) -> Prediction:
        seconds = self.seconds(settled)
        parts = {"load": float(self._sizes.load_bytes), **settled.room.parts(self._situation)}
        if algorithm == "ssbj":
            parts["cache"] = settled.cached
        return Prediction(
            algorithm,
            memory,
            self._sizes.b,
            None,
            c_loop=seconds / self.steps,
            w=settled.tuples / self.steps,
            hit_share=settled.hit_share,
            mean_wait=seconds / 2,
            worst_wait=seconds,
            waiting=settled.misses / self.steps * self._situation.stay * (self.steps + 1),
            parts=parts,
        )


def balanced(workload: Workload, tuples: float) -> tuple[Floats, Floats]:
    """Return the part of each bucket's keys that SSBJ caches, and the chance that a cached key is evicted in a turn.

    In a turn, ``tuples`` tuples arrive. If m tuples take as much memory as the rows of a key, the key is cached when
    significantly more than m of its tuples wait, and evicted when significantly fewer arrived in the last turns.
    In a steady state as many keys are cached as are evicted. So if a key is cached with the chance ``enters`` in a
    turn, and evicted with the chance ``leaves``, it is in the cache for enters / (enters + leaves) of the time.
    """
    n = workload.frequencies.expected(tuples)
    worth = workload.cached_bytes / (workload.tuple_bytes * workload.stay)
    enters = at_least(int(count_for(worth, MARGIN)) + 1, n)
    leaves = 1 - at_least(int(count_for(_COUNTED_TURNS * worth, -MARGIN)) + 1, _COUNTED_TURNS * n)
    return enters / np.maximum(enters + leaves, 1e-300), leaves


def _whole_bytes(workload: Workload) -> float:
    """Return the bytes of a cache that holds every row of the master."""
    return workload.rows / workload.rows_per_key * workload.cached_bytes


def _in_memory(workload: Workload, costs: UnitCosts, memory: int, sizes: Plan) -> Prediction:
    """Predict the performance of SSBJ with a cache that holds the whole master."""
    parts = {"load": float(sizes.load_bytes), "cache": _whole_bytes(workload)}
    return Prediction("ssbj", memory, sizes.b, None, costs.hit, 1.0, 1.0, 0.0, 0.0, 0.0, parts)
