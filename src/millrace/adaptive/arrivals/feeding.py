"""What a join does while its inputs come: the phases, as arrivals tell them.

::

                  Arrived ─► take in ◄──────────────────────────────┐
    arrivals ──►  Silent  ─► a unit with what is on disk, and again │ enough has come, or a source waits for room
                  Ended   ─► one input less                         │
                     └─ all  ─► all the rest                 ───────┘

On the real clock work takes its time by itself, and sources go on meanwhile. On a virtual one :class:`Costs` say how
long it takes, so that a run can be repeated exactly and still has work and arrivals compete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.adaptive.arrivals.events import Arrivals, Arrived, Ended, InTurns, Silent
from millrace.adaptive.arrivals.live import LiveArrivals
from millrace.adaptive.explain_adaptive import listed
from millrace.adaptive.memory.pair_output import Batches
from millrace.core.errors import ConfigError, SchemaError, SourceError

if TYPE_CHECKING:
    from millrace.adaptive.lifecycle import AdaptiveJoin

BUFFER_SHARE = 16
"""The part of the budget that rows have which came and wait for their turn: a sixteenth."""


@dataclass(frozen=True)
class Costs:
    """Seconds that work takes on a virtual clock. None is taken on the real one.

    The defaults are those of a disk and a processor of about 2008, with blocks of 10 kB that are read and written in
    the order of the file for the most part; inputs of the experiments have a row every millisecond.
    """

    row: float = 10e-6
    """For a row that is taken in: find its partners, give it its place."""
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
    """The inputs of a join in its order: all of them are there, and each can be read."""
    if any(name not in inputs for name in names):
        raise ConfigError(f"run: expected the inputs {', '.join(names)}; got {', '.join(inputs) or 'none'}")
    for name in names:
        given = inputs[name]
        if not (callable(given) or isinstance(given, Iterable) or at_rest(given)):
            raise SchemaError(f"{name}: expected record batches, a table, a reader or a source; got {given!r}")
    return {name: inputs[name] for name in names}


def schemas_of(inputs: dict[str, Any]) -> dict[str, pa.Schema]:
    """Schemas of the inputs that know them."""
    schemas = {side: getattr(given, "schema", None) for side, given in inputs.items()}
    return {side: schema for side, schema in schemas.items() if isinstance(schema, pa.Schema)}


def at_rest(given: Any) -> bool:
    """Whether an input is there as a whole, so that nobody ever waits for it."""
    return isinstance(given, Sequence | pa.RecordBatch) or hasattr(given, "to_batches")


def arrivals_of(join: AdaptiveJoin, inputs: dict[str, Any]) -> Arrivals:
    """Inputs at rest are read in turns; if one is not, each has a thread of its own and a share of the budget."""
    if all(at_rest(given) for given in inputs.values()):
        return InTurns(inputs, clock=join.clock)
    return LiveArrivals(
        inputs,
        buffer=max(len(inputs), join.budget.total // BUFFER_SHARE),
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

    def __init__(self, join: AdaptiveJoin, arrivals: Arrivals, costs: Costs) -> None:
        if sorted(arrivals.inputs) != sorted(join.inputs):
            raise ConfigError(
                f"arrivals: expected inputs named {listed(join.inputs)}; got {', '.join(arrivals.inputs)}"
            )
        self._join, self._arrivals, self._costs = join, arrivals, costs
        self._metrics = join.metrics
        self._begin = arrivals.clock.now()
        self._done = self._counts()

    def run(self) -> Batches:
        """The whole result. If a source breaks off, all results of the rows that came come before the error."""
        join = self._join
        try:
            yield from self.online()
        except SourceError:
            yield from self._timed(join.abandon())
            raise
        self._metrics.online_seconds = self._now()
        yield from self._timed(join.finish())

    def online(self) -> Batches:
        """What comes out until all inputs have ended."""
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
        """Use the silence, unit by unit."""
        join, arrivals = self._join, self._arrivals
        most = 0 if join.reactive.hurried else join.max_new_arrivals
        while join.work and arrivals.buffered <= most and not arrivals.held_up:
            yield from self._timed(join.idle())
            self._metrics.look(arrivals.buffered)

    # time

    def _now(self) -> float:
        return self._arrivals.clock.now() - self._begin

    def _timed(self, work: Batches) -> Iterator[pa.RecordBatch]:
        """Batches at the time they are ready."""
        for batch in work:
            self._spend()
            self._metrics.note(self._now())
            yield batch
        self._spend()

    def _spend(self) -> None:
        """Tell the arrivals of the work since the last time."""
        done, costs = self._counts(), self._costs
        rows, results, read, written = (now - then for now, then in zip(done, self._done, strict=True))
        self._done = done
        seconds = rows * costs.row + results * costs.result + read * costs.read + written * costs.write
        if seconds:
            self._arrivals.spend(seconds)

    def _counts(self) -> tuple[int, int, int, int]:
        m = self._metrics
        area = self._join.area
        return sum(m.rows_in.values()), m.rows_out, area.blocks_read, area.blocks_written
