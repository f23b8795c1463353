"""Measure a join in its steady state, on the device model's virtual clock or on the machine's own clock.

In a *saturated* run a tuple is always available, so the rate is the highest possible. In a *paced* run tuples arrive
evenly at a given rate and wait in a buffer until the join takes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from millrace.core.clock import Clock, RealClock
from millrace.semistream.join import SemiStreamJoin

ROOMS = 3
"""Default number of measured periods; a period is a waiting room full of tuples, or a turn of the wheel."""
LOOKED_UP = 100_000
"""Default number of measured tuples for algorithms in which tuples do not wait."""


class WorkClock:
    """A clock, by default the machine's, that stands still while the next batch of the stream is generated."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self._away = 0.0

    def now(self) -> float:
        return self._clock.now() - self._away

    def outside(self, stream: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a stream; making them takes no time on this clock."""
        left = self._clock.now()
        for batch in stream:
            self._away += self._clock.now() - left
            yield batch
            left = self._clock.now()


@dataclass(frozen=True)
class _Counters:
    """The counters of a join at one moment, and the time of the clock in seconds."""

    seconds: float
    tuples: int
    hits: int
    steps: int
    seeks: int
    nbytes: int

    @classmethod
    def of(cls, join: SemiStreamJoin, clock: Clock) -> _Counters:
        m = join.metrics
        return cls(clock.now(), m.tuples_in, m.cache_hits, m.steps, m.seeks, m.bytes_read)


def saturated(
    join: SemiStreamJoin,
    stream: Iterable[pa.RecordBatch],
    settle: int,
    rooms: int = ROOMS,
    looked_up: int = LOOKED_UP,
    *,
    clock: Clock | None = None,
    least_seconds: float = 0.0,
) -> dict[str, float]:
    """Push batches for ``settle`` periods, then measure for ``rooms`` more periods and at least ``least_seconds``.

    A period is a turn of the wheel or as many tuples as fill the waiting room. In joins in which no tuple waits, three
    periods are ``looked_up`` tuples. The default clock is the device's.
    The figures returned, such as ``rate`` in tuples per second, are averages over the measured periods.
    """
    clock = clock or join.device.clock
    mark: _Counters | None = None
    tuple_seconds, before = 0.0, 0.0
    for batch in stream:
        waiting = join.metrics.waiting
        _push(join, batch)
        periods = _periods(join, looked_up)
        if mark is None:
            if periods >= settle:
                mark, before = _Counters.of(join, clock), clock.now()
            continue
        tuple_seconds += waiting * (clock.now() - before)
        before = clock.now()
        if periods >= settle + rooms and before - mark.seconds >= least_seconds:
            break
    assert mark is not None, "the stream ended before the join had settled"
    return _between(join, mark, clock, tuple_seconds)


def paced(
    join: SemiStreamJoin,
    stream: Iterator[pa.RecordBatch],
    rate: float,
    settle: int,
    rooms: int = ROOMS,
    tuples: int = 2_000_000,
) -> dict[str, float]:
    """Measure like :func:`saturated`, but with ``rate`` tuples arriving per second, and at most ``tuples`` in all.

    ``waiting_time`` is how many seconds a tuple stays in the buffer on average before the join takes it in: until the
    end of the step during which it arrived, or longer where the waiting room is full.
    """
    clock = join.device.clock
    began = clock.now()
    mark: _Counters | None = None
    taken, waited, counted = 0, 0.0, 0
    tuple_seconds, before = 0.0, began
    rest = next(stream)
    join.bind(rest.schema)
    while True:
        arrived = int((clock.now() - began) * rate) - taken
        while arrived > 0:
            part = rest.slice(0, arrived)
            rest = rest.slice(len(part)) if len(part) < len(rest) else next(stream)
            now = clock.now() - began
            if mark is not None:  # tuple i arrived after (i + 1) / rate seconds
                waited += len(part) * now - ((taken + 1 + taken + len(part)) / 2) * len(part) / rate
                counted += len(part)
            taken += len(part)
            arrived -= len(part)
            _push(join, part)
        waiting = join.metrics.waiting
        if waiting:
            for _ in join.step():
                continue
        else:
            clock.advance(max(0.0, began + (taken + 1) / rate - clock.now()) + 1e-9)
        if mark is not None:
            tuple_seconds += waiting * (clock.now() - before)
        before = clock.now()
        periods = _periods(join, LOOKED_UP)
        if mark is None and (periods >= settle or taken >= tuples * settle // (settle + rooms)):
            mark = _Counters.of(join, clock)
        if mark is not None and counted and (periods >= settle + rooms or taken >= tuples):
            break
    return _between(join, mark, clock, tuple_seconds) | {"waiting_time": max(0.0, waited / counted)}


def _push(join: SemiStreamJoin, batch: pa.RecordBatch) -> None:
    for _ in join.push(batch):
        continue


def _periods(join: SemiStreamJoin, looked_up: int) -> float:
    m = join.metrics
    return m.cycles if join.waits else m.tuples_in / looked_up * ROOMS


def _between(join: SemiStreamJoin, mark: _Counters, clock: Clock, tuple_seconds: float) -> dict[str, float]:
    now = _Counters.of(join, clock)
    seconds, tuples = max(now.seconds - mark.seconds, 1e-9), max(1, now.tuples - mark.tuples)
    steps = now.steps - mark.steps
    return {
        "rate": (now.tuples - mark.tuples) / seconds,
        "hits": (now.hits - mark.hits) / tuples,
        "c_loop": seconds / max(1, steps),
        "processing_time": tuple_seconds / tuples,  # Little's law: tuple-seconds in the join / tuples
        "seeks": (now.seeks - mark.seeks) / tuples,
        "bytes_read": (now.nbytes - mark.nbytes) / tuples,
        "memory": float(join.budget.total),
    }
