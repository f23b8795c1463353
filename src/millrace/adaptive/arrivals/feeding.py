"""Feeding a join: which phase runs, as events of the inputs come.

::

                  Arrived ─► take in ◄──────────────────────────────┐
    arrivals ──►  Silent  ─► units of work with the disk            │ enough has come, or a source waits for room
                  Ended   ─► one input less                         │
                     └─ all  ─► all the rest                 ───────┘

On the real clock sources go on while the join works. On a virtual one :class:`Costs` give the time that work takes, so
that a run can be repeated exactly, and arrivals wait for work as they do in reality.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from millrace.adaptive.adaptive_metrics import AdaptiveMetrics
from millrace.adaptive.array_types import Batches
from millrace.adaptive.arrivals.events import Arrivals, Arrived, Ended, InTurns, Silent
from millrace.adaptive.arrivals.live import LiveArrivals
from millrace.adaptive.word_list import in_words
from millrace.core.budget import MemoryBudget
from millrace.core.clock import Clock
from millrace.core.errors import ConfigError, SchemaError, SourceError


@dataclass(frozen=True)
class WorkDone:
    """Work that a join has done since it was made, as far as it takes time on a virtual clock."""

    rows: int
    """Rows that were taken in."""
    results: int
    """Rows of the result."""
    blocks_read: int
    blocks_written: int


class FedJoin(Protocol):
    """A join that can be fed with arrivals."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        ...

    @property
    def metrics(self) -> AdaptiveMetrics:
        """Counts so far."""
        ...

    @property
    def work(self) -> bool:
        """Whether :meth:`idle` has something to do."""
        ...

    @property
    def waiting_limit(self) -> int:
        """Most rows that may wait while the join works with the disk."""
        ...

    @property
    def budget(self) -> MemoryBudget:
        """The budget, which holds rows that wait, too."""
        ...

    @property
    def input_buffer(self) -> int:
        """Bytes of the budget for rows that wait."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock that silence is measured with."""
        ...

    @property
    def wait_threshold(self) -> float:
        """Seconds without a row after which all inputs count as silent."""
        ...

    @property
    def work_done(self) -> WorkDone:
        """Work done so far."""
        ...

    def bind(self, **schemas: pa.Schema | None) -> pa.Schema | None:
        """Set the columns of some inputs."""
        ...

    def push(self, side: str, batch: pa.RecordBatch) -> Batches:
        """Take in rows of one input."""
        ...

    def idle(self) -> Batches:
        """Do a unit of work with the disk."""
        ...

    def end(self, side: str) -> Batches:
        """End one input."""
        ...

    def finish(self) -> Batches:
        """Yield the rest of the result."""
        ...

    def abandon(self) -> Batches:
        """Yield the rest of the result of the rows that have come."""
        ...


@dataclass(frozen=True)
class Costs:
    """Seconds that work takes on a virtual clock. On the real clock they are not used.

    The defaults are those of a disk and a processor of about 2008, with blocks of 10 kB that are read and written in
    the order of the file for the most part; inputs of the experiments have a row every millisecond.
    """

    row: float = 10e-6
    """For a row that is taken in: finding its partners, and storing it."""
    result: float = 1e-6
    """For a row of the result."""
    read: float = 1e-3
    """For a block that is read from disk."""
    write: float = 1e-3
    """For a block that is written to disk."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name}: expected seconds of at least 0; got {value!r}")


def checked_inputs(names: Sequence[str], inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs in the order of the join, after checking that all are given and each can be read."""
    if any(name not in inputs for name in names):
        raise ConfigError(f"run: expected the inputs {', '.join(names)}; got {', '.join(inputs) or 'none'}")
    for name in names:
        given = inputs[name]
        if not (callable(given) or isinstance(given, Iterable) or at_rest(given)):
            raise SchemaError(f"{name}: expected record batches, a table, a reader or a source; got {given!r}")
    return {name: inputs[name] for name in names}


def schemas_of(inputs: dict[str, Any]) -> dict[str, pa.Schema]:
    """Return the schemas of the inputs that have one."""
    schemas = {side: getattr(given, "schema", None) for side, given in inputs.items()}
    return {side: schema for side, schema in schemas.items() if isinstance(schema, pa.Schema)}


def at_rest(given: Any) -> bool:
    """Return whether an input is there as a whole, so that reading it never waits."""
    return isinstance(given, Sequence | pa.RecordBatch) or hasattr(given, "to_batches")


def arrivals_of(join: FedJoin, inputs: dict[str, Any]) -> Arrivals:
    """Return the arrivals of inputs: read in turns if all are at rest, else each in a thread of its own."""
    if all(at_rest(given) for given in inputs.values()):
        return InTurns(inputs, clock=join.clock)
    return LiveArrivals(
        inputs,
        buffer=max(len(inputs), join.input_buffer),
        budget=join.budget,
        wait=join.wait_threshold,
        clock=join.clock,
    )


class Feeding:
    """One run of a join over arrivals.

    Parameters
    ----------
    arrivals
        Events of the inputs of the join.
    costs
        How long work takes, for arrivals on a virtual clock.
    """

    def __init__(self, join: FedJoin, arrivals: Arrivals, costs: Costs) -> None:
        if sorted(arrivals.inputs) != sorted(join.inputs):
            raise ConfigError(
                f"arrivals: expected inputs named {in_words(join.inputs)}; got {', '.join(arrivals.inputs)}"
            )
        self._join, self._arrivals, self._costs = join, arrivals, costs
        self._metrics = join.metrics
        self._begin = arrivals.clock.now()
        self._done = join.work_done

    def run(self) -> Batches:
        """Yield the whole result. If a source breaks off, the results of all rows that came come before the error."""
        join = self._join
        try:
            yield from self.online()
        except SourceError:
            yield from self._timed(join.abandon())
            raise
        self._metrics.end_online(self._now())
        yield from self._timed(join.finish())

    def online(self) -> Batches:
        """Yield what comes out until all inputs have ended."""
        join, arrivals = self._join, self._arrivals
        for event in arrivals:
            match event:
                case Arrived(name, batch):
                    yield from self._timed(join.push(name, batch))
                case Silent():
                    yield from self._react()
                case Ended(name):
                    schema = arrivals.schemas.get(name)
                    if schema is not None:
                        join.bind(**{name: schema})
                    yield from self._timed(join.end(name))

    def _react(self) -> Batches:
        """Work with the disk, unit by unit, until enough rows have come."""
        join, arrivals = self._join, self._arrivals
        while join.work and arrivals.buffered <= join.waiting_limit and not arrivals.held_up:
            yield from self._timed(join.idle())
            self._metrics.count_waiting(arrivals.buffered)

    # time

    def _now(self) -> float:
        return self._arrivals.clock.now() - self._begin

    def _timed(self, work: Batches) -> Iterator[pa.RecordBatch]:
        """Yield batches, and note when each is ready."""
        for batch in work:
            self._spend()
            self._metrics.note(self._now())
            yield batch
        self._spend()

    def _spend(self) -> None:
        """Advance a virtual clock by the work done since the last call."""
        done, before, costs = self._join.work_done, self._done, self._costs
        self._done = done
        seconds = (
            (done.rows - before.rows) * costs.row
            + (done.results - before.results) * costs.result
            + (done.blocks_read - before.blocks_read) * costs.read
            + (done.blocks_written - before.blocks_written) * costs.write
        )
        if seconds:
            self._arrivals.spend(seconds)
