"""Events of several inputs that arrive over time: rows have arrived, all inputs are silent, or an input has ended.

A consumer reads the events of any :class:`Arrivals` in one loop::

    for event in arrivals:
        match event:
            case Arrived(input, batch): ...   # the arriving phase
            case Silent(): ...                # the reactive phase, until arrivals.buffered is large enough
            case Ended(input): ...

:class:`ScheduledArrivals` delivers tuples at given times on a virtual clock, so a run can be repeated exactly;
``millrace.adaptive.arrivals.live`` reads real sources on the real clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.clock import Clock, RealClock, VirtualClock
from millrace.core.errors import ConfigError, SchemaError, SourceError

BatchInput: TypeAlias = "Iterable[pa.RecordBatch] | pa.Table | pa.RecordBatch"
"""An input of a join: a table, a record batch, or an iterable of record batches."""

WAIT = 0.025
"""Seconds without a tuple after which all inputs count as silent, as in the DINER paper."""


@dataclass(frozen=True)
class Arrived:
    """The event that tuples of one input have arrived; they are in order of arrival."""

    input: str
    batch: pa.RecordBatch


@dataclass(frozen=True)
class Silent:
    """The event that no tuple has arrived for the wait time. Each silence is reported once."""


@dataclass(frozen=True)
class Ended:
    """The event that an input has ended, after all of its tuples."""

    input: str


Event: TypeAlias = Arrived | Silent | Ended


class Arrivals(Protocol):
    """An iterator over the events of several inputs; it can be read once."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        ...

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """Schemas known so far, by input. The schema of an input is known once its first tuples have arrived."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock that gives the times at which tuples arrive."""
        ...

    @property
    def buffered(self) -> int:
        """Number of tuples that have arrived, but have not been delivered in an event yet."""
        ...

    @property
    def most_buffered(self) -> int:
        """Largest number of buffered tuples observed so far."""
        ...

    @property
    def held_up(self) -> bool:
        """Whether a source cannot continue until tuples are taken out of the buffer."""
        ...

    def __iter__(self) -> Iterator[Event]: ...

    def __next__(self) -> Event: ...

    def spend(self, seconds: float) -> None:
        """Advance a virtual clock by the seconds that the consumer's work takes; do nothing if the clock is real."""
        ...

    def close(self) -> None:
        """Stop reading the inputs. Further calls do nothing."""
        ...


class InTurns:
    """Inputs that are fully available, read in turns, one batch at a time, without waiting.

    Parameters
    ----------
    inputs
        For each name, an iterable of record batches, a record batch, or an object with a ``to_batches()`` method.
    clock
        The clock that the consumer measures time with; by default the machine's clock.

    Examples
    --------
    >>> batch = pa.record_batch({"k": [1, 2]})
    >>> [(type(event).__name__, event.input) for event in InTurns({"left": [batch, batch], "right": [batch]})]
    [('Arrived', 'left'), ('Arrived', 'right'), ('Arrived', 'left'), ('Ended', 'right'), ('Ended', 'left')]
    """

    buffered = most_buffered = 0
    held_up = False

    def __init__(self, inputs: Mapping[str, BatchInput], *, clock: Clock | None = None) -> None:
        check_inputs(inputs)
        self.inputs = tuple(inputs)
        self.clock: Clock = clock or RealClock()
        self.schemas: dict[str, pa.Schema] = {}
        self._events = self._arrive({name: iter(batches_of(name, given)) for name, given in inputs.items()})

    def spend(self, seconds: float) -> None:
        """Do nothing: tuples do not arrive at given times, so no clock has to be advanced."""

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        self._events.close()

    def _arrive(self, left: dict[str, Iterator[pa.RecordBatch]]) -> Generator[Event, None, None]:
        tuples, batches = dict.fromkeys(left, 0), dict.fromkeys(left, 0)
        while left:
            for name in list(left):
                try:
                    batch = next(left[name], None)
                except Exception as error:
                    raise broken_off(name, tuples[name], batches[name], error) from error
                if batch is None:
                    del left[name]
                    yield Ended(name)
                    continue
                if not isinstance(batch, pa.RecordBatch):
                    raise SchemaError(f"{name}: expected record batches; got {type(batch).__name__}")
                self.schemas.setdefault(name, batch.schema)
                yield Arrived(name, batch)
                tuples[name] += batch.num_rows
                batches[name] += 1


class ScheduledArrivals:
    """Inputs whose tuples arrive at given times on a virtual clock.

    Parameters
    ----------
    inputs
        For each name, a pair: the rows of the input, and their times of arrival in seconds, in ascending order.
    wait
        Seconds without a tuple after which all inputs count as silent.
    batch_rows
        Maximum number of tuples that are delivered at a time. They are delivered as one batch per input, the input with
        the earliest tuple first. With 1, tuples are delivered one by one, in order of arrival.
    linger
        Seconds to wait for more tuples once one has arrived, less than ``wait``; with 0, tuples are delivered at once.
    clock
        The clock by which tuples arrive; a new one if not given.

    Notes
    -----
    The clock advances by the seconds that the consumer reports with :meth:`spend`. When no tuple has arrived, it
    advances to the next arrival or the end of the wait. Tuples that arrive while the consumer works are buffered
    without bound; ``buffered`` and ``most_buffered`` count them. Silence is measured from the last arrival: if the
    consumer took longer than the wait, and no tuple has arrived, the next event is ``Silent``. An input ends with its
    last tuple.

    Examples
    --------
    >>> table = pa.table({"k": [1, 2, 3]})
    >>> arrivals = ScheduledArrivals({"left": (table, [0.0, 0.01, 1.0]), "right": (table.slice(0, 1), [0.01])})
    >>> for event in arrivals:
    ...     print(f"{arrivals.clock.now():.3f}", type(event).__name__, vars(event).get("input", "-"))
    0.000 Arrived left
    0.010 Arrived left
    0.010 Arrived right
    0.010 Ended right
    0.035 Silent -
    1.000 Arrived left
    1.000 Ended left
    """

    def __init__(
        self,
        inputs: Mapping[str, tuple[pa.Table | pa.RecordBatch, npt.ArrayLike]],
        *,
        wait: float = WAIT,
        batch_rows: int = 1000,
        linger: float = 0.0,
        clock: VirtualClock | None = None,
    ) -> None:
        check_inputs(inputs)
        self.wait = checked_wait(wait)
        if batch_rows < 1:
            raise ConfigError(f"batch_rows: expected at least 1; got {batch_rows}")
        if not 0 <= linger < self.wait:
            raise ConfigError(f"linger: expected at least 0 and less than wait, which is {wait} seconds; got {linger}")
        self.batch_rows = batch_rows
        self.linger = linger
        self.clock = clock or VirtualClock()
        self.most_buffered = 0
        self.held_up = False
        self.inputs = tuple(inputs)
        self._rows = {name: _one_batch(rows) for name, (rows, _) in inputs.items()}
        times = [_checked_times(name, times, self._rows[name].num_rows) for name, (_, times) in inputs.items()]
        of_input = np.repeat(np.arange(len(times), dtype=np.int16), [len(each) for each in times])
        whole = np.concatenate(times)
        order = np.argsort(whole, kind="stable")
        self._times = whole[order]
        self._of_input = of_input[order]
        self._given = 0
        self._events = self._arrive()

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        return {name: rows.schema for name, rows in self._rows.items()}

    @property
    def buffered(self) -> int:
        there = int(np.searchsorted(self._times, self.clock.now(), "right")) - self._given
        self.most_buffered = max(self.most_buffered, there)
        return there

    def spend(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        self._events.close()

    def _arrive(self) -> Generator[Event, None, None]:
        for name, rows in self._rows.items():
            if rows.num_rows == 0:
                yield Ended(name)
        silent = False
        while self._given < len(self._times):
            coming = float(self._times[self._given])
            if coming <= self.clock.now():
                yield from self._give_out(min(self.buffered, self.batch_rows))
                silent = False
                continue
            before = float(self._times[self._given - 1]) if self._given else 0.0
            end_of_wait = max(self.clock.now(), before + self.wait)
            if coming <= end_of_wait or silent:
                self._sleep_until(coming)
                if self.linger:
                    last = min(self._given + self.batch_rows, len(self._times)) - 1
                    self._sleep_until(min(coming + self.linger, float(self._times[last])))
            else:
                self._sleep_until(end_of_wait)
                silent = True
                yield Silent()

    def _give_out(self, count: int) -> Iterator[Event]:
        """Yield the next ``count`` tuples as one batch per input, and the end of each input that has no more tuples."""
        taken = self._of_input[self._given : self._given + count].tolist()
        for number in dict.fromkeys(taken):  # the input with the earliest tuple first
            name = self.inputs[number]
            rows = self._rows[name]
            piece = taken.count(number)
            self._rows[name] = rows.slice(piece)
            self._given += piece
            yield Arrived(name, rows.slice(0, piece))
            if piece == rows.num_rows:
                yield Ended(name)

    def _sleep_until(self, moment: float) -> None:
        # Adding the difference may give a time just before the moment, because of rounding.
        while self.clock.now() < moment:
            self.clock.advance(max(moment - self.clock.now(), float(np.spacing(moment))))


def batches_of(name: str, given: Any) -> Iterable[pa.RecordBatch]:
    """Return the record batches of an input."""
    if isinstance(given, pa.RecordBatch):
        return [given]
    if hasattr(given, "to_batches"):
        given = given.to_batches()
    if not isinstance(given, Iterable):
        raise SchemaError(f"{name}: expected record batches, a table, a reader or a dataset; got {given!r}")
    return given


def broken_off(name: str, tuples: int, batches: int, error: BaseException) -> SourceError:
    """Return the error for an input that has failed; it says how much was read from the input, and why it failed."""
    why = str(error) or type(error).__name__
    message = f"input {name!r} failed after {tuples} tuples in {batches} batches: {why}"
    return SourceError(message, name, tuples, batches)


def check_inputs(inputs: Mapping[str, object]) -> None:
    """Check that there is at least one input, and that every name is a string."""
    if not inputs or not all(isinstance(name, str) for name in inputs):
        raise ConfigError(f"inputs: expected at least one input, and a string as the name of each; got {list(inputs)}")


def checked_wait(wait: float) -> float:
    if not 0 < wait < float("inf"):
        raise ConfigError(f"wait: expected a finite number of seconds above 0; got {wait!r}")
    return wait


def _one_batch(rows: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    batches = rows.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ConfigError(
            f"inputs: expected tables that fit into one record batch; got {rows.num_rows:,} rows, with a column "
            "of more than 2 GB; cast that column to a large type, such as large_string"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], rows.schema)


def _checked_times(name: str, times: npt.ArrayLike, rows: int) -> npt.NDArray[np.float64]:
    array = np.asarray(times, np.float64)
    if array.shape != (rows,):
        raise ConfigError(
            f"input {name!r}: expected {rows} times of arrival, one for each row; got an array of shape {array.shape}"
        )
    if rows and not (array[0] >= 0 and np.isfinite(array[-1]) and (np.diff(array) >= 0).all()):
        raise ConfigError(
            f"input {name!r}: expected finite times of arrival of at least 0, in ascending order; "
            f"got {rows} times, the first {array[0]:g} and the last {array[-1]:g}"
        )
    return array
