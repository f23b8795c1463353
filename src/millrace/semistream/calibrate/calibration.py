"""Measurement of the cost model's unit costs on this machine, with joins of the user's master.

Joins of several kinds, with budgets from small to large, are measured in turn, each for a fraction of a second, once
they are in a steady state. The work that they do is counted::

    seconds = steps · c_step + rows · c_H + tuples that waited · (c_S + c_A + c_E + c_O) + rows they met · c_R
            + hits · c_C + keys that entered ssbj's cache · c_B + rows that it evaluated · c_J
            + pages · c_IO + steps that used the index · c_I + tuples that left one by one · c_Q
            + rows sscj compared · c_F

Every join gives one equation, and the unit costs are the least-squares solution: c_step, c_I, c_B and c_IO are the same
for all budgets, the others differ. Where the equations hardly determine a cost for one budget, it is kept near the cost
for the other budgets. The time of ``lookup`` without the cost of a hit gives c_L.

Data is read from the page cache or the real disk; nothing is modelled. Every join is measured several times, in
rounds. If the join takes steps, a measurement begins and ends with a step. Other work on the machine makes a
measurement slower, never quicker, so the slowest quarter of a join's measurements is ignored. The spread of a unit cost
is computed from its values in single rounds: half the distance between the quartiles, divided by the median.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError
from millrace.cost.measured import Calibration, MeasuredCosts
from millrace.cost.symbols import Disk, UnitCosts
from millrace.datasets.zipf import ZipfSampler
from millrace.kernels.groups import MISS
from millrace.master.store import MasterStore
from millrace.rows.keyed_rows import Codes
from millrace.semistream.choose.unit_cost_file import remember, remembered, remembered_at
from millrace.semistream.choose.validate import check_master
from millrace.semistream.join import SemiStreamJoin

_PAYLOAD = pa.schema([("sid", pa.int64()), ("qty", pa.int32())])
_LEAST_ROWS = 2_000
_BATCH = 10_000
_TUPLES = 1_000_000  # of a stream, at most; four times the master's rows are enough
_LEAST, _MOST = 300_000, 32_000_000  # bytes of a budget
_LEAST_PART, _MOST_PART = 200, 12  # budgets from 1/200 to 1/12 of the master
_LOOK = 400  # a measurement takes 1/400 of the whole time
_LEAST_STEPS = 2
_LEAST_ROUNDS = 3
_SETTLED = 1.2  # turns of the wheel, or rooms full of tuples
_LONGEST = 40  # a join gets at most 1/40 of the whole time to reach a steady state
QUICKER = 0.75
"""Share of a join's measurements that is used; the slowest are ignored."""

_FOR_ALL = ("c_step", "c_I", "c_B", "page")
_BY_BUDGET = ("c_H", "waiting", "c_R", "c_C", "c_J", "c_Q", "c_F")
_JUDGED = ("c_B", "c_J")
_PAGED = ("c_I", "page", "c_Q")
_NEAR = 0.05  # error, relative to a measurement's, of a cost that is 0 or twice its value for the other budgets


def calibrated(master: MasterStore, *, again: bool = False, directory: Path | None = None) -> Calibration:
    """Return the unit costs on this machine for masters like this one; measure them if none are saved, or if ``again``.

    Parameters
    ----------
    directory
        Where unit costs are saved; by default ``millrace`` in the user's cache directory (``XDG_CACHE_HOME``).
    """
    path = remembered_at(master, directory)
    found = None if again else remembered(master, directory)
    if found is None:
        found = calibrate(master)
        remember(path, found)
    return found


def calibrate(master: MasterStore, *, seconds: float = 16.0, seed: int = 0) -> Calibration:
    """Measure the unit costs with joins of this master and return them; takes about ``seconds`` seconds.

    Parameters
    ----------
    master
        A master with at least a few thousand rows. If it has no index, the costs of pages are not measured.
    """
    if not isinstance(seconds, int | float) or not 0 < seconds <= 600:
        raise ConfigError(f"seconds: expected a number above 0, at most 600; got {seconds!r}")
    check_master(master)
    if master.rows < _LEAST_ROWS:
        raise ConfigError(f"master: {master.path} has {master.rows:,} rows; at least {_LEAST_ROWS:,} are needed")
    began = time.perf_counter()
    bench = CalibrationBench(master, seconds, seed)
    while bench.rounds < _LEAST_ROUNDS or time.perf_counter() - began < seconds:
        bench.measure()
    return bench.found()


_Solved = dict[str, list[float]]
"""The values of each unit cost, one per budget, by the cost's name."""


class _Measurement(NamedTuple):
    """One measurement of a join: its time, its tuples, and how often each unit cost was incurred."""

    seconds: float
    tuples: int
    counts: Mapping[str, float]

    @property
    def each(self) -> float:
        return self.seconds / max(1, self.tuples)

    @property
    def pace(self) -> float:
        """Seconds per unit of work; work is the geometric mean of the numbers of tuples and steps."""
        return self.seconds / math.sqrt(max(1, self.tuples) * max(1.0, self.counts["c_step"]))

    @classmethod
    def all_of(cls, measurements: Sequence[_Measurement]) -> _Measurement:
        """Return the sum of several measurements."""
        counts = {name: sum(m.counts[name] for m in measurements) for name in measurements[0].counts}
        return cls(sum(m.seconds for m in measurements), sum(m.tuples for m in measurements), counts)


class _Run:
    """A running join that is measured."""

    def __init__(
        self, join: SemiStreamJoin, stream: list[pa.RecordBatch], seconds: float, *, extra: tuple[str, ...] = ()
    ) -> None:
        self.join, self._stream, self._seconds, self._extra = join, stream, seconds, extra
        self._least_steps = 0 if join.access.at_once else _LEAST_STEPS
        self._feed = _forever(stream, max(100, min(_BATCH, join.capacity // 4)))
        began = time.perf_counter()
        while join.metrics.cycles < _SETTLED and time.perf_counter() - began < seconds / _LONGEST:
            _run(join.push(next(self._feed)))
        waiting = stream if join.cache.rows is None else [_part(join, batch, hits=False) for batch in stream]
        self._met = _different(waiting, join.capacity) * join.store.rows / max(1, join.store.manifest.keys)
        self.measurements: list[_Measurement] = []

    def hits(self) -> _Run:
        """Return a run of the same join with only the tuples that its cache answers, or with all if it answers none."""
        stream = [batch for batch in (_part(self.join, b, hits=True) for b in self._stream) if len(batch)]
        run = _Run(self.join, stream or self._stream, 0.0)
        run._seconds, run._least_steps = self._seconds, 0
        return run

    def measure(self) -> _Measurement:
        """Measure the join once, after a short run that loads its data into the processor's caches."""
        self._go_on(self._seconds / _LOOK / 4)
        before = self._marks()
        taken = self._go_on(self._seconds / _LOOK)
        did = {name: now - before[name] for name, now in self._marks().items()}
        misses = did["tuples"] - did["hits"]
        counts = {
            "c_step": did["steps"], "c_H": did["rows"], "waiting": misses, "c_R": misses * self._met, "c_C": did["hits"]
        }  # fmt: skip
        more = {
            "c_B": did["admitted"], "c_J": counts["c_R"],
            "c_I": did["steps"], "page": did["rows"] / self.join.b, "c_Q": misses, "c_F": did["rows"],
        }  # fmt: skip
        counts |= {name: more[name] for name in self._extra}
        self.measurements.append(_Measurement(taken, did["tuples"], counts))
        return self.measurements[-1]

    @property
    def quicker(self) -> _Measurement:
        """Sum of all measurements except the slowest, which are ignored; :data:`QUICKER` is the share that is used."""
        measurements = sorted(self.measurements, key=lambda measurement: measurement.pace)
        return _Measurement.all_of(measurements[: max(1, round(QUICKER * len(measurements)))])

    def _go_on(self, seconds: float) -> float:
        """Run the join for at least ``seconds`` and a few steps, until a step ends; return the seconds it took."""
        steps = self.join.metrics.steps
        enough = steps + self._least_steps
        began = time.perf_counter()
        while True:
            _run(self.join.push(next(self._feed)))
            taken = time.perf_counter() - began
            before, steps = steps, self.join.metrics.steps
            if taken >= seconds and steps >= enough and (steps > before or not self._least_steps):
                return taken

    def _marks(self) -> dict[str, int]:
        m = self.join.metrics
        return {
            "steps": m.steps,
            "rows": m.probes,
            "tuples": m.tuples_in,
            "hits": m.cache_hits,
            "admitted": m.admitted_keys,
        }


class CalibrationBench:
    """Measures joins of several kinds and budgets in rounds; a few rounds take about ``seconds`` seconds."""

    def __init__(self, master: MasterStore, seconds: float = 16.0, seed: int = 0) -> None:
        self._master, self._seconds = master, seconds
        self._rows_per_key = master.rows / max(1, master.manifest.keys)
        self.rounds = 0
        self._uniform = self._stream(0.0, seed)
        self._skewed = self._stream(1.0, seed + 1)
        least = max(_LEAST, master.nbytes // _LEAST_PART, self._least_memory())
        most = max(2 * least, min(_MOST, master.nbytes // _MOST_PART))
        self._budgets = [round(m) for m in np.geomspace(least, most, 3)]
        self._runs = [self._runs_with(memory, place) for place, memory in enumerate(self._budgets)]
        middle = self._budgets[1]
        self._loud, self._silent = self._runs[1][0], self._run("meshjoin", middle, "anti")
        self._lookup = self._run("lookup", self._budgets[0]) if master.indexed else None
        self._every = [run for runs in self._runs for run in runs] + [self._silent]
        self._every += [self._lookup] if self._lookup else []

    def _runs_with(self, memory: int, place: int) -> list[_Run]:
        """Return the joins to measure with the budget number ``place``, which is ``memory`` bytes.

        The joins differ in how often each unit cost is incurred, so that all unit costs can be found.
        """
        own = self._run("meshjoin", memory)
        short, few = max(1, own.join.b // 4), max(1, own.join.access.quota(own.join.capacity) // 4)
        runs = [
            own,
            self._run("meshjoin", memory, skewed=True),
            self._run("meshjoin", memory, b=short),
            self._run("ssbj", memory, skewed=True, extra=_JUDGED),
        ]
        runs.append(runs[-1].hits())
        if place:  # with the least budget a step has few tuples anyway
            runs.append(self._run("meshjoin", memory, w=few))
        if place == 1:
            runs.append(self._run("ssbj", memory, extra=_JUDGED))
        if self._master.indexed:
            runs += [
                self._run("hybridjoin", memory, extra=_PAGED),
                self._run("hybridjoin", memory, skewed=True, extra=_PAGED),
                self._run("sscj", memory, skewed=place != 1, extra=(*_PAGED, "c_F")),  # both skews occur
            ]
        return runs

    def measure(self) -> None:
        """Measure every join once."""
        for run in self._every:
            run.measure()
        self.rounds += 1

    def found(self) -> Calibration:
        """Return the unit costs that best fit all measurements so far."""
        quick = self._solved([[run.quicker for run in runs] for runs in self._runs])
        shares = self._split(self._loud.quicker.each - self._silent.quicker.each, quick["waiting"][1])
        each = self._lookup.quicker.each if self._lookup else 0.0
        solved = self._by_symbol(quick, shares, each)
        rounds = [
            self._by_symbol(
                self._solved([[run.measurements[number] for run in runs] for runs in self._runs]),
                shares,
                self._lookup.measurements[number].each if self._lookup else 0.0,
            )
            for number in range(self.rounds)
        ]
        spread = {name: _spread(np.array([r[name] for r in rounds])) for name in solved}
        page = solved.pop("page")[0]
        costs = [
            UnitCosts(**{name: values[place] for name, values in solved.items()}) for place in range(len(self._budgets))
        ]
        return Calibration(MeasuredCosts(tuple(self._budgets), tuple(costs)), Disk(page, float("inf")), spread)

    def _solved(self, measurements: list[list[_Measurement]]) -> _Solved:
        """Return the unit costs that best fit ``measurements``, which holds a list per budget with an item per join."""
        alike = _fit([(0, measurement) for runs in measurements for measurement in runs], 1, None)
        by_budget = [(place, measurement) for place, runs in enumerate(measurements) for measurement in runs]
        return _fit(by_budget, len(measurements), alike)

    def _by_symbol(self, solved: _Solved, shares: Mapping[str, float], lookup: float) -> _Solved:
        """Return the unit costs by symbol; the single cost of a waiting tuple in ``solved`` is split into several.

        ``shares`` split the cost of a waiting tuple; ``lookup`` is the time of the algorithm ``lookup`` in seconds per
        tuple, from which c_L is computed.
        """
        found = {name: values for name, values in solved.items() if name != "waiting"}
        found |= {name: [share * each for each in solved["waiting"]] for name, share in shares.items()}
        more = max(0.0, lookup - self._rows_per_key * found["c_C"][0])
        found["c_L"] = [more / (self._rows_per_key * _different(self._uniform, _BATCH))] * len(self._budgets)
        return found

    def _split(self, out: float, waiting: float) -> dict[str, float]:
        """Return the shares of c_S, c_A, c_O and c_E in ``waiting``, the seconds that a waiting tuple costs.

        ``out`` is the seconds per tuple that are spent on output.
        """
        join = self.join("meshjoin", self._budgets[1], "anti", w=2**31)
        some = self._uniform[0].slice(0, max(1, min(_BATCH, join.capacity // 2)))
        _codes(join, some)
        reading = _timed(lambda: _codes(join, some)) / len(some)
        pushing = _timed(lambda: _run(join.push(some))) / len(some)
        waiting = max(waiting, 1e-12)
        c_S = min(reading / waiting, 0.25)  # noqa: N806
        c_A = min(max(pushing / waiting - c_S, 0.0), 0.5)  # noqa: N806
        c_O = min(max(out, 0.0) / self._rows_per_key / waiting, 1 - c_S - c_A)  # noqa: N806
        return {"c_S": c_S, "c_A": c_A, "c_O": c_O, "c_E": 1 - c_S - c_A - c_O}

    # what is joined

    def _stream(self, skew: float, seed: int) -> list[pa.RecordBatch]:
        """Return batches of a stream with keys of the master, Zipf-distributed with this skew."""
        store = self._master
        sampler = ZipfSampler(store.rows, skew, seed=seed)
        ends = np.cumsum([store.mapped(shard).rows for shard in range(store.shards)])
        return [
            self._batch(sampler.sample(_BATCH) - 1, ends) for _ in range(-(-min(_TUPLES, 4 * store.rows) // _BATCH))
        ]

    def _batch(self, rows: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return a batch with the keys of the master rows numbered ``rows``.

        Rows are numbered across all shards; shard i ends before row number ``ends[i]``.
        """
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
        """Return a join of the master, bound to the stream's columns."""
        on = list(self._master.key)
        join = SemiStreamJoin(self._master, on=on, how=how, algorithm=algorithm, memory=memory, **options)
        join.bind(self._uniform[0].schema)
        return join

    def _run(
        self,
        algorithm: str,
        memory: int,
        how: str = "inner",
        *,
        skewed: bool = False,
        extra: tuple[str, ...] = (),
        **options: Any,
    ) -> _Run:
        stream = self._skewed if skewed else self._uniform
        return _Run(self.join(algorithm, memory, how, **options), stream, self._seconds, extra=extra)

    def _least_memory(self) -> int:
        """Return the bytes of memory in which a thousand tuples can wait."""
        join = self.join("meshjoin", max(4_000_000, self._master.nbytes // 4))
        return int(1_000 * join.tuple_bytes)


def _fit(measurements: list[tuple[int, _Measurement]], budgets: int, near: _Solved | None) -> _Solved:
    """Return the unit costs that best fit the measurements and, if ``near`` is given, are close to it.

    Each measurement is paired with the number of its budget.
    """
    names = [(name, 0) for name in _FOR_ALL] + [(name, place) for name in _BY_BUDGET for place in range(budgets)]
    places = {name: at for at, name in enumerate(names)}
    rows, wanted = [], []
    for place, measurement in measurements:
        row = np.zeros(len(names))
        for name, count in measurement.counts.items():
            row[places[name, 0 if name in _FOR_ALL else place]] = count / measurement.seconds
        rows.append(row)
        wanted.append(1.0)
    for name, place in names if near else ():
        expected = near[name][0] if near else 0.0
        if expected > 0:
            row = np.zeros(len(names))
            row[places[name, place]] = _NEAR / expected
            rows.append(row)
            wanted.append(_NEAR)
    found = _least_squares(np.array(rows), np.array(wanted))
    return {
        name: [float(found[places[name, 0 if name in _FOR_ALL else place]]) for place in range(budgets)]
        for name in (*_FOR_ALL, *_BY_BUDGET)
    }


def _codes(join: SemiStreamJoin, batch: pa.RecordBatch) -> Codes:
    return join.loop.parts.binding.keys.codes(batch.columns)[0]


def _part(join: SemiStreamJoin, batch: pa.RecordBatch, *, hits: bool) -> pa.RecordBatch:
    """Return the tuples of a batch that the cache answers, or the other tuples if ``hits`` is false."""
    return batch.filter(pa.array((join.cache.look_up(_codes(join, batch)) != MISS) == hits))


def _different(stream: list[pa.RecordBatch], tuples: int) -> float:
    """Return the number of different keys per tuple, among the first ``tuples`` tuples of a stream."""
    some = pa.Table.from_batches(stream).slice(0, max(1, tuples))
    keys = some.column_names[: -len(_PAYLOAD)]
    return float(some.group_by(keys).aggregate([]).num_rows / max(1, some.num_rows))


def _least_squares(equations: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a least-squares solution without negative values: unknowns that would be negative are 0."""
    free = np.flatnonzero(equations.any(axis=0))
    found = np.zeros(equations.shape[1])
    while len(free):
        scale = np.abs(equations[:, free]).max(axis=0)
        values = np.linalg.lstsq(equations[:, free] / scale, wanted, rcond=None)[0]
        if (values >= 0).all():
            found[free] = values / scale
            break
        free = np.delete(free, int(np.argmin(values)))
    return found


def _forever(stream: list[pa.RecordBatch], tuples: int) -> Iterator[pa.RecordBatch]:
    """Yield the stream again and again, in batches of at most ``tuples`` tuples."""
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


def _spread(values: npt.NDArray[np.float64]) -> float:
    """Return the spread of a unit cost: half the distance between the quartiles, divided by the median.

    Each row of ``values`` is one round, each column a budget; the result is the median over the budgets.
    """
    low, middle, high = np.percentile(values, [25, 50, 75], axis=0)
    return float(np.median(np.where(middle > 0, (high - low) / 2 / np.maximum(middle, 1e-300), 0.0)))
