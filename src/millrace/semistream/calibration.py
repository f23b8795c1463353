"""The unit costs of the cost model on the machine at hand, measured with the engine's own joins on the user's master.

Joins of several kinds with budgets from small to large are looked at in turn, each for a fraction of a second, once
they have settled. What they did is counted, and the unit costs are those that explain best how long it took:

==========  ===========================================================================================
meshjoin    seconds = steps · c_step + rows · c_H + tuples · (c_S + c_A + c_E + c_O) + rows that met · c_R
…           as it is, with skewed keys, with short loads, with few tuples to a step: four equations
…           into an empty room: c_S + c_A per tuple; without output (anti): all but c_O
ssbj        tuples that all hit: c_C; what else is left over: c_B per key that enters
hybridjoin  what is left over: c_I per step and c_IO per page
sscj        what is left over: c_F per row
lookup      c_L per tuple
==========  ===========================================================================================

What is read is in the page cache or comes from the disk as it is; nothing is modelled. All is measured several times;
the median counts, and the spread is half the distance between the quartiles, in parts of the median.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError
from millrace.cost.measured import Calibration, MeasuredCosts
from millrace.cost.symbols import Disk, UnitCosts
from millrace.datasets.zipf import ZipfSampler
from millrace.kernels.groups import MISS
from millrace.master.store import MasterStore
from millrace.rows.keyed import Codes
from millrace.semistream.asked import check_master
from millrace.semistream.join import SemiStreamJoin

_PAYLOAD = pa.schema([("sid", pa.int64()), ("qty", pa.int32())])
_LEAST_ROWS = 2_000
_BATCH = 20_000
_TUPLES = 1_000_000  # at most; four times the master's rows are enough
_LEAST, _MOST = 300_000, 32_000_000  # bytes
_LEAST_PART, _MOST_PART = 400, 8  # of the master
_LOOK = 200  # looks in the time there is
_LEAST_STEPS = 2
_SETTLED = 1.5  # turns of the wheel, or rooms full of tuples
_LONGEST = 17  # joins that do not settle, in the time there is


def calibrate(master: MasterStore, *, seconds: float = 12.0, seed: int = 0) -> Calibration:
    """Measure the unit costs with joins of this master; takes about ``seconds``.

    Parameters
    ----------
    master
        With at least a few thousand rows. Without an index a page costs nothing beside its rows.
    """
    if not isinstance(seconds, int | float) or not 0 < seconds <= 600:
        raise ConfigError(f"seconds: expected a number above 0, at most 600; got {seconds!r}")
    check_master(master)
    if master.rows < _LEAST_ROWS:
        raise ConfigError(f"master: {master.path} has {master.rows:,} rows; at least {_LEAST_ROWS:,} are needed")
    return _Bench(master, seconds, seed).measured()


@dataclass(frozen=True)
class _Counts:
    """What a join did while it was looked at."""

    seconds: float
    steps: int
    rows: int
    tuples: int
    hits: int
    admitted: int

    @property
    def misses(self) -> int:
        return self.tuples - self.hits

    def explained(self, costs: UnitCosts, different: float) -> float:
        """Seconds that these costs explain, with so many different keys to a tuple that waits."""
        waiting = self.misses * (costs.waiting + costs.c_O + different * costs.c_R)
        return self.steps * costs.c_step + self.rows * costs.c_H + waiting + self.hits * costs.hit


class _Run:
    """A join at work."""

    def __init__(self, join: SemiStreamJoin, stream: list[pa.RecordBatch], seconds: float) -> None:
        self.join, self._seconds = join, seconds
        self._feed = _forever(stream, max(100, min(_BATCH, join.capacity // 4)))
        began = time.perf_counter()
        while join.metrics.cycles < _SETTLED and time.perf_counter() - began < seconds / _LONGEST:
            _run(join.push(next(self._feed)))
        waiting = stream if join.cache.rows is None else [_missing(join, batch) for batch in stream]
        self.different = _different(waiting, join.capacity)
        """Different keys for each tuple that waits."""

    def look(self) -> _Counts:
        """What it does for a while."""
        marks = self._marks()
        began = time.perf_counter()
        while True:
            _run(self.join.push(next(self._feed)))
            taken = time.perf_counter() - began
            if taken >= self._seconds / _LOOK and self.join.metrics.steps - marks[0] >= _LEAST_STEPS:
                return _Counts(taken, *(now - then for then, now in zip(marks, self._marks(), strict=True)))

    def _marks(self) -> tuple[int, int, int, int, int]:
        m = self.join.metrics
        return m.steps, m.probes, m.tuples_in, m.cache_hits, m.admitted_keys


class _Bench:
    def __init__(self, master: MasterStore, seconds: float, seed: int) -> None:
        self._master, self._seconds = master, seconds
        self._uniform = self._stream(0.0, seed)
        self._skewed = self._stream(1.0, seed + 1)
        least = max(_LEAST, master.nbytes // _LEAST_PART, self._least_memory())
        most = max(2 * least, min(_MOST, master.nbytes // _MOST_PART))
        self._budgets = tuple(round(m) for m in np.geomspace(least, most, 3))
        self._seen: dict[str, list[list[float]]] = {}

    def measured(self) -> Calibration:
        began = time.perf_counter()
        benches = [_Budget(self, budget) for budget in self._budgets]
        while True:
            self._round(benches)
            if time.perf_counter() - began >= self._seconds:
                break
        median = {name: np.median(np.array(values), axis=0) for name, values in self._seen.items()}
        spread = {name: float(np.median(_spread(np.array(values)))) for name, values in self._seen.items()}
        page = float(median.pop("page", np.zeros(1))[0])
        costs = [
            UnitCosts(**{name: float(values[at]) for name, values in median.items()})
            for at in range(len(self._budgets))
        ]
        return Calibration(MeasuredCosts(self._budgets, tuple(costs)), Disk(page, float("inf")), spread)

    def _round(self, benches: list[_Budget]) -> None:
        """Look at every join once, and explain what they did."""
        found = self._cyclic(benches)
        for bench, costs in zip(benches, found, strict=True):
            costs |= bench.cached(UnitCosts(**costs))
        if self._master.indexed:
            page, looking = self._pages(benches, [UnitCosts(**costs) for costs in found])
            self._note("page", [page])
            look_up = benches[0].looked_up()
            for bench, costs in zip(benches, found, strict=True):
                costs["c_I"], costs["c_L"] = looking, look_up
                costs["c_F"] = bench.compared(UnitCosts(**costs), page)
        for name in found[0]:
            self._note(name, [costs[name] for costs in found])

    def _note(self, name: str, values: list[float]) -> None:
        self._seen.setdefault(name, []).append(values)

    def _cyclic(self, benches: list[_Budget]) -> list[dict[str, float]]:
        """MESHJOIN four times with each budget; c_step is the same for all of them."""
        equations: list[list[float]] = []
        known: list[float] = []
        for place, bench in enumerate(benches):
            for run in bench.meshjoins:
                counts = run.look()
                row = [0.0] * (1 + 3 * len(benches))
                row[0] = counts.steps
                row[1 + 3 * place : 4 + 3 * place] = [counts.rows, counts.tuples, counts.tuples * run.different]
                equations.append(row)
                known.append(counts.seconds)
        solved = _least_squares(np.array(equations), np.array(known))
        found = []
        for place, bench in enumerate(benches):
            c_H, waiting, c_R = solved[1 + 3 * place : 4 + 3 * place]  # noqa: N806
            found.append({"c_step": solved[0], "c_H": c_H, "c_R": c_R, **bench.split(waiting)})
        return found

    def _pages(self, benches: list[_Budget], costs: list[UnitCosts]) -> tuple[float, float]:
        """HYBRIDJOIN with each budget: seconds of a page beside its rows, and of a step's look into the index."""
        equations, known = [], []
        for bench, unit in zip(benches, costs, strict=True):
            counts = bench.hybridjoin.look()
            left = max(counts.seconds - counts.explained(unit, bench.hybridjoin.different), counts.seconds / 100)
            equations.append([counts.rows / bench.hybridjoin.join.b, counts.steps])
            known.append(left)
        page, looking = _least_squares(np.array(equations, float), np.array(known))
        return page, looking

    # what is joined

    def _stream(self, skew: float, seed: int) -> list[pa.RecordBatch]:
        """Batches with keys of the master."""
        store = self._master
        sampler = ZipfSampler(store.rows, skew, seed=seed)
        ends = np.cumsum([store.mapped(shard).rows for shard in range(store.shards)])
        return [
            self._batch(sampler.sample(_BATCH) - 1, ends) for _ in range(-(-min(_TUPLES, 4 * store.rows) // _BATCH))
        ]

    def _batch(self, rows: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Tuples with the keys of these rows, counted through all shards."""
        store = self._master
        columns = [store.schema.get_field_index(name) for name in store.key]
        shards = np.searchsorted(ends, rows, side="right")
        parts: list[list[pa.Array]] = []
        order: list[npt.NDArray[np.int64]] = []
        for shard in np.unique(shards):
            mine = np.flatnonzero(shards == shard)
            mapped = store.mapped(int(shard))
            parts.append(mapped.take(columns, rows[mine] - (ends[shard] - mapped.rows)))
            order.append(mine)
        back = pa.array(np.argsort(np.concatenate(order), kind="stable"))
        keys = [pa.concat_arrays([part[i] for part in parts]).take(back) for i in range(len(columns))]
        payload = [pa.array(np.arange(len(rows)), t) for t in _PAYLOAD.types]
        names = [*store.key, *(f"{name}__calibration" for name in _PAYLOAD.names)]
        return pa.record_batch([*keys, *payload], names)

    def join(self, algorithm: str, memory: int, how: str = "inner", **options: Any) -> SemiStreamJoin:
        on = list(self._master.key)
        join = SemiStreamJoin(self._master, on=on, how=how, algorithm=algorithm, memory=memory, **options)
        join.bind(self._uniform[0].schema)
        return join

    def run(self, algorithm: str, memory: int, how: str = "inner", *, skewed: bool = False, **options: Any) -> _Run:
        stream = self._skewed if skewed else self._uniform
        return _Run(self.join(algorithm, memory, how, **options), stream, self._seconds)

    def some(self, tuples: int, *, skewed: bool = False) -> pa.RecordBatch:
        return (self._skewed if skewed else self._uniform)[0].slice(0, max(1, tuples))

    def _least_memory(self) -> int:
        """With which a thousand tuples can wait."""
        join = self.join("meshjoin", max(4_000_000, self._master.nbytes // 4))
        return int(1_000 * join.tuple_bytes)

    @property
    def indexed(self) -> bool:
        return self._master.indexed


class _Budget:
    """The joins with one budget."""

    def __init__(self, bench: _Bench, memory: int) -> None:
        self._bench, self._memory = bench, memory
        own = bench.run("meshjoin", memory)
        short, few = max(1, own.join.b // 8), max(1, own.join.access.quota(own.join.capacity) // 8)
        self.meshjoins = [
            own,
            bench.run("meshjoin", memory, skewed=True),
            bench.run("meshjoin", memory, b=short),
            bench.run("meshjoin", memory, w=few),
        ]
        self._silent = bench.run("meshjoin", memory, "anti")
        self._ssbj = bench.run("ssbj", memory, skewed=True)
        if bench.indexed:
            self.hybridjoin = bench.run("hybridjoin", memory)
            self._sscj = bench.run("sscj", memory, skewed=True)
            self._lookup = bench.join("lookup", memory)

    def split(self, waiting: float) -> dict[str, float]:
        """What a tuple that waits costs, by what is done with it."""
        join = self._bench.join("meshjoin", self._memory, "anti", w=2**31)
        some = self._bench.some(min(_BATCH, join.capacity // 2))
        reading = _timed(lambda: _codes(join, some)) / len(some)
        pushing = _timed(lambda: _run(join.push(some))) / len(some)
        silent, loud = self._silent.look(), self.meshjoins[0].look()
        out = max(0.0, loud.seconds / loud.tuples - silent.seconds / silent.tuples)
        c_S = min(reading, waiting / 4)  # noqa: N806
        c_A = min(max(pushing - c_S, 0.0), waiting / 2)  # noqa: N806
        c_O = min(out, waiting - c_S - c_A)  # noqa: N806
        return {"c_S": c_S, "c_A": c_A, "c_O": c_O, "c_E": waiting - c_S - c_A - c_O}

    def cached(self, costs: UnitCosts) -> dict[str, float]:
        """SSBJ: a tuple that hits, and a key that enters."""
        join = self._ssbj.join
        batch = self._bench.some(_BATCH, skewed=True)
        hit = batch.filter(pa.array(join.cache.look_up(_codes(join, batch)) >= 0))
        if not len(hit):
            return {"c_B": 0.0, "c_C": 0.0}
        each = float(np.median([_timed(lambda: _run(join.push(hit))) for _ in range(3)])) / len(hit)
        counts = self._ssbj.look()
        left = counts.seconds - counts.explained(replace(costs, c_C=each), self._ssbj.different)
        return {"c_B": max(0.0, left) / max(1, counts.admitted), "c_C": each}

    def compared(self, costs: UnitCosts, page: float) -> float:
        """SSCJ: a row that may enter the cache."""
        counts = self._sscj.look()
        explained = counts.explained(costs, self._sscj.different) + counts.steps * costs.c_I
        explained += counts.rows / self._sscj.join.b * page
        return max(0.0, counts.seconds - explained) / max(1, counts.rows)

    def looked_up(self) -> float:
        """A tuple that is answered through the index."""
        batch = self._bench.some(_BATCH)
        return _timed(lambda: _run(self._lookup.push(batch))) / len(batch)


def _codes(join: SemiStreamJoin, batch: pa.RecordBatch) -> Codes:
    return join.store.coder.codes(join.widened([batch.column(name) for name in join.spec.stream_key]))[0]


def _missing(join: SemiStreamJoin, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Tuples that the cache does not answer."""
    return batch.filter(pa.array(join.cache.look_up(_codes(join, batch)) == MISS))


def _different(stream: list[pa.RecordBatch], tuples: int) -> float:
    """Different keys among so many tuples of a stream, for each of them."""
    some = pa.Table.from_batches(stream).slice(0, max(1, tuples))
    keys = some.column_names[: -len(_PAYLOAD)]
    return float(some.group_by(keys).aggregate([]).num_rows / max(1, some.num_rows))


def _least_squares(equations: npt.NDArray[np.float64], known: npt.NDArray[np.float64]) -> list[float]:
    """Unknowns of at least 0 with the least error in parts of what is known; who would be negative is 0."""
    scaled = equations / known[:, None]
    free = np.arange(equations.shape[1])
    found = np.zeros(equations.shape[1])
    while len(free):
        scale = np.maximum(np.abs(scaled[:, free]).max(axis=0), 1e-300)
        values = np.linalg.lstsq(scaled[:, free] / scale, np.ones(len(known)), rcond=None)[0] / scale
        if (values >= 0).all():
            found[free] = values
            break
        free = np.delete(free, int(np.argmin(values * scale)))
    return [float(value) for value in found]


def _forever(stream: list[pa.RecordBatch], tuples: int) -> Iterator[pa.RecordBatch]:
    """The stream again and again, in batches of at most so many tuples."""
    while True:
        for batch in stream:
            for start in range(0, len(batch), tuples):
                yield batch.slice(start, tuples)


def _run(batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        continue


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _spread(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    low, middle, high = np.percentile(values, [25, 50, 75], axis=0)
    return np.where(middle > 0, (high - low) / 2 / np.maximum(middle, 1e-300), 0.0)
