"""The loop that feeds a join with the events of its inputs. The events decide which phase of the join runs.

::

                  Arrived ─► process the rows ◄──────┐
    arrivals ──►  Silent  ─► units of disk work ─────┘ enough rows wait, or a source waits for room
                  Ended   ─► one input less
                     └─ all ended ─► the rest of the result

On the real clock, rows arrive while the join works. On a virtual clock, :class:`Costs` says how long the join's work
takes and thus which rows arrive meanwhile, so that a run can be repeated exactly.
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
    """Counts of the work that a join has done since it was created; :class:`Costs` says how long each kind takes."""

    rows: int
    """Input rows processed."""
    results: int
    """Result rows that have been output."""
    blocks_read: int
    blocks_written: int


class FedJoin(Protocol):
    """The interface of a join that :class:`Feeding` can drive."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        ...

    @property
    def metrics(self) -> AdaptiveMetrics:
        """Metrics so far."""
        ...

    @property
    def work(self) -> bool:
        """Whether rows on disk are left for :meth:`idle` to join."""
        ...

    @property
    def waiting_limit(self) -> int:
        """Maximum number of rows that may wait to be processed; when more wait, the join interrupts its disk work."""
        ...

    @property
    def budget(self) -> MemoryBudget:
        """The memory budget, which also covers rows that wait to be processed."""
        ...

    @property
    def input_buffer(self) -> int:
        """Bytes of the budget for rows that have arrived and wait to be processed."""
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
        """Set the schemas of some inputs, by name; return the output schema, or None if it is not known yet."""
        ...

    def push(self, side: str, batch: pa.RecordBatch) -> Batches:
        """Process new rows of one input, and yield output batches."""
        ...

    def idle(self) -> Batches:
        """Do one unit of disk work, and yield output batches."""
        ...

    def end(self, side: str) -> Batches:
        """Mark one input as ended."""
        ...

    def finish(self) -> Batches:
        """Yield the rest of the result."""
        ...

    def abandon(self) -> Batches:
        """Yield the remaining results of the rows received so far, after an input has failed."""
        ...


@dataclass(frozen=True)
class Costs:
    """Seconds that each kind of work takes on a virtual clock. They are not used on the real clock.

    The defaults match a disk and a processor of about 2008, and blocks of 10 kB that are read and written mostly in
    file order. In the experiments, an input delivers a row every millisecond.
    """

    row: float = 10e-6
    """Seconds to process an input row: finding its matches and storing it."""
    result: float = 1e-6
    """Seconds to output a row."""
    read: float = 1e-3
    """Seconds to read a block from disk."""
    write: float = 1e-3
    """Seconds to write a block to disk."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"costs: {name}: expected a finite number of seconds of at least 0; got {value!r}")


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
    """Return the schemas of the inputs that have a ``schema`` attribute, by input name."""
    schemas = {side: getattr(given, "schema", None) for side, given in inputs.items()}
    return {side: schema for side, schema in schemas.items() if isinstance(schema, pa.Schema)}


def at_rest(given: Any) -> bool:
    """Return whether an input is fully available, so that reading it never waits."""
    return isinstance(given, Sequence | pa.RecordBatch) or hasattr(given, "to_batches")


def arrivals_of(join: FedJoin, inputs: dict[str, Any]) -> Arrivals:
    """Return the events of inputs, which are read in turns if all are fully available, else each in its own thread."""
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
    """One run of a join over the events of its inputs.

    Parameters
    ----------
    arrivals
        Events of the inputs of the join.
    costs
        Seconds that each kind of work takes; only used if ``arrivals`` has a virtual clock.
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
        """Yield the whole result. If a source fails, yield the results of all rows received, then raise its error."""
        join = self._join
        try:
            yield from self.online()
        except SourceError:
            yield from self._timed(join.abandon())
            raise
        self._metrics.end_online(self._now())
        yield from self._timed(join.finish())

    def online(self) -> Batches:
        """Yield output batches until all inputs have ended."""
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
        """Do disk work, one unit at a time, until none is left or input needs attention.

        Input needs attention when more than ``waiting_limit`` rows are in the buffer, or when a source is blocked
        because the buffer is full.
        """
        join, arrivals = self._join, self._arrivals
        while join.work and arrivals.buffered <= join.waiting_limit and not arrivals.held_up:
            yield from self._timed(join.idle())
            self._metrics.count_waiting(arrivals.buffered)

    # time

    def _now(self) -> float:
        return self._arrivals.clock.now() - self._begin

    def _timed(self, work: Batches) -> Iterator[pa.RecordBatch]:
        """Yield batches, and record in the metrics when each is ready."""
        for batch in work:
            self._spend()
            self._metrics.note(self._now())
            yield batch
        self._spend()

    def _spend(self) -> None:
        """Advance a virtual clock by the seconds that the work since the last call takes."""
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
