"""The unit costs of the cost model on the machine at hand, measured with the engine's own joins on the user's master.

Every figure is the time of a call for which all but one of the costs are zero or known:

=========================  =====================================================================
push into an empty room    c_S + c_A per tuple
push of tuples that hit    c_S + c_H + c_O per tuple, the hit
steps nobody waits for     c_H per master row, everything read
steps with matches         c_E per tuple where nothing comes out (anti), c_E + c_O where rows do
steps that fill a cache    c_B per master row over c_H (ssbj); c_F is part of c_H here
page loads                 c_IO of a page, beside its rows and matches
=========================  =====================================================================

What is read is in the page cache or comes from the disk as it is; nothing is modelled. Each is measured several times;
the median counts, and the spread is half the distance between the quartiles, in parts of the median.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.errors import ConfigError
from millrace.cost.symbols import Disk, UnitCosts
from millrace.master.store import MasterStore
from millrace.semistream.join import SemiStreamJoin

_PAYLOAD = pa.schema([("sid", pa.int64()), ("qty", pa.int32())])
_TUPLES = 100_000
_HOT = 5_000
_LONGEST_LOAD = 250_000


@dataclass(frozen=True)
class Calibration:
    """What was measured."""

    costs: UnitCosts
    disk: Disk
    """A page found through the index: ``seek`` is all it costs beside its rows."""
    spread: dict[str, float] = field(default_factory=dict)
    """By cost: half the distance between the quartiles, in parts of the median."""


def calibrate(master: MasterStore, *, seconds: float = 12.0, seed: int = 0) -> Calibration:
    """Measure the unit costs with joins of this master; takes about ``seconds``.

    Parameters
    ----------
    master
        With at least a few thousand rows. Without an index a page costs nothing beside its rows.
    """
    if not isinstance(seconds, int | float) or not 0 < seconds <= 600:
        raise ConfigError(f"seconds: expected a number above 0, at most 600; got {seconds!r}")
    if master.rows < 2_000:
        raise ConfigError(f"master: {master.path} has {master.rows:,} rows; at least 2,000 are needed to measure")
    return _Bench(master, seed).measured(seconds)


class _Bench:
    def __init__(self, master: MasterStore, seed: int) -> None:
        self._master = master
        self._random = np.random.default_rng(seed)
        self._tuples = min(_TUPLES, master.rows // 4)
        self._seen: dict[str, list[float]] = {}

    def measured(self, seconds: float) -> Calibration:
        rounds: list[Callable[[], None]] = [self._waiting, self._cache]
        if self._master.indexed:
            rounds.append(self._pages)
        for warm in (True, False):
            began = time.perf_counter()
            self._seen.clear()
            while True:
                for measure in rounds:
                    measure()
                if warm or (time.perf_counter() - began > 0.85 * seconds and len(self._seen["c_H"]) >= 3):
                    break
        at = {name: float(np.median(values)) for name, values in self._seen.items()}
        spread = {name: _spread(values) for name, values in self._seen.items()}
        reading = min(at["c_S"], at["push"], at["hit"])
        costs = UnitCosts(
            c_H=at["c_H"],
            c_S=reading,
            c_A=at["push"] - reading,
            c_E=at["c_E"],
            c_O=max(0.0, at["match"] - at["c_E"]),
            c_B=max(0.0, at["ssbj row"] - at["c_H"]),
        )
        return Calibration(costs, Disk(max(0.0, at.get("page", 0.0)), float("inf")), spread)

    def _note(self, name: str, value: float) -> None:
        self._seen.setdefault(name, []).append(value)

    # what is joined

    def _stream(self, first: float, last: float, tuples: int, distinct: int | None = None) -> pa.RecordBatch:
        """Tuples with keys of rows from a part of each shard."""
        store = self._master
        columns = [store.schema.get_field_index(name) for name in store.key]
        shards = [i for i in range(store.shards) if store.mapped(i).rows]
        parts: list[list[pa.Array]] = []
        for shard in shards:
            rows = store.mapped(shard).rows
            some = self._random.integers(int(first * rows), max(int(last * rows), 1), distinct or tuples // len(shards))
            some = np.resize(some, tuples // len(shards))
            parts.append(store.mapped(shard).take(columns, some.astype(np.int64)))
        keys = [pa.concat_arrays([part[i] for part in parts]) for i in range(len(columns))]
        size = len(keys[0])
        payload = [pa.array(np.arange(size), t) for t in _PAYLOAD.types]
        shuffled = pa.array(self._random.permutation(size))
        names = [*store.key, *(f"{name}__calibration" for name in _PAYLOAD.names)]
        return pa.record_batch([column.take(shuffled) for column in (*keys, *payload)], names)

    def _join(self, algorithm: str, how: str = "inner", **options: Any) -> SemiStreamJoin:
        memory = max(4_000_000, 400 * self._tuples)
        return SemiStreamJoin(
            self._master, on=list(self._master.key), how=how, algorithm=algorithm, memory=memory, **options
        )

    # measurements

    def _waiting(self) -> None:
        """Tuples for rows of the first half of the wheel: the second half passes for nobody."""
        batch = self._stream(0, 0.5, self._tuples)
        b = min(self._master.rows // 8, _LONGEST_LOAD)
        self._one_turn(self._join("meshjoin", "anti", w=2**31, b=b), batch, "c_E")
        self._one_turn(self._join("meshjoin", "inner", w=2**31, b=b), batch, "match")

    def _one_turn(self, join: SemiStreamJoin, batch: pa.RecordBatch, name: str) -> None:
        join.bind(batch.schema)
        self._note("c_S", _timed(lambda: join.store.coder.codes(join.widened(_keys(join, batch)))) / len(batch))
        self._note("push", _timed(lambda: _run(join.push(batch))) / len(batch))
        rows, seconds, matches = {True: 0, False: 0}, {True: 0.0, False: 0.0}, 0
        for _ in range(join.k):
            passed, met = join.metrics.probes, join.metrics.waits.total
            taken = _timed(lambda: _run(join.step()))
            busy = join.metrics.waits.total > met
            rows[busy] += join.metrics.probes - passed
            seconds[busy] += taken
            matches += join.metrics.waits.total - met
        if rows[False]:
            self._note("c_H", seconds[False] / rows[False])
        self._note(name, max(0.0, seconds[True] - rows[True] * self._so_far("c_H")) / max(1, matches))

    def _so_far(self, name: str) -> float:
        return float(np.median(self._seen[name]))

    def _cache(self) -> None:
        """Few keys, until all of them are cached."""
        join = self._join("ssbj", w=2**31)
        batch = self._stream(0, 1, self._tuples, distinct=min(_HOT, self._master.rows // 100 + 1))
        join.bind(batch.schema)
        for _ in range(6):
            _run(join.push(batch))
            before = join.metrics.probes
            seconds = sum(_timed(lambda: _run(join.step())) for _ in range(2 * join.k))
            self._note("ssbj row", seconds / max(1, join.metrics.probes - before))
            if join.metrics.waiting == 0 and join.metrics.cache_hits > 0.95 * len(batch):
                break
        self._note("hit", _timed(lambda: _run(join.push(batch))) / len(batch))

    def _pages(self) -> None:
        batch = self._stream(0, 1, self._tuples)
        join = self._join("hybridjoin")
        join.bind(batch.schema)
        for _ in join.push(batch):
            continue
        before, matched = join.metrics.probes, join.metrics.matched
        seconds = _timed(lambda: _run(join.finish()))
        met = join.metrics.probes - before
        own = seconds - met * self._so_far("c_H") - (join.metrics.matched - matched) * self._so_far("match")
        self._note("page", max(0.0, own) / max(1, met / join.b))


def _keys(join: SemiStreamJoin, batch: pa.RecordBatch) -> list[pa.Array]:
    return [batch.column(name) for name in join.spec.stream_key]


def _run(batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        continue


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _spread(values: list[float]) -> float:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float((high - low) / 2 / middle) if middle else 0.0
