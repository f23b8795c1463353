"""Real sources on the real clock: each is read in its own thread into one bounded buffer for the consumer."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import pyarrow as pa

from millrace.adaptive.arrivals.events import (
    WAIT,
    Arrived,
    BatchInput,
    Ended,
    Event,
    Silent,
    batches_of,
    broken_off,
    check_inputs,
    checked_wait,
)
from millrace.core.budget import MemoryBudget
from millrace.core.clock import Clock, RealClock
from millrace.core.errors import BudgetExceededError, ConfigError, SchemaError, SourceError
from millrace.core.sizes import format_size, parse_size

LiveSource: TypeAlias = "BatchInput | Callable[[], BatchInput]"
"""An input to read record batches from, or a function that returns one."""

_GRACE = 2.0


class LiveArrivals:
    """Events of inputs that are read from real sources. Use as a context manager, or call :meth:`close`.

    Parameters
    ----------
    inputs
        For each name, an iterable of record batches, a table, or a function that returns one. Each input has a thread
        of its own, which reads it. A source that may block should have a method ``cancel()``, which is called from
        another thread and makes the source stop blocking; ``millrace.adaptive.arrivals.ipc_sources`` has such sources.
    buffer
        Maximum bytes of tuples that have arrived and have not been consumed yet, divided equally among the inputs. A
        source whose share is full is not read until there is room. Batches larger than the share are split.
    budget
        The budget in which the buffer is reserved, as ``"input buffer"``, while the arrivals are open.
    wait
        Seconds without a tuple after which all inputs count as silent.
    clock
        The clock that silence is measured with; the machine's clock by default.

    Notes
    -----
    The bytes of a batch count until the consumer takes the next event: while the consumer works on a batch, the batch
    is still in the buffer. A batch that waits for room in the buffer takes memory outside of it; there is at most one
    such batch per source.

    Tuples of one input stay in order; batches of different inputs are delivered in order of arrival. If a source fails,
    the tuples already read are delivered first; then a :class:`SourceError` is raised, and everything is closed.

    :meth:`close`, the end of a ``with``, an error, Ctrl-C while waiting, and garbage collection of the object all stop
    the threads. A source that neither returns nor can be cancelled is abandoned after two seconds and listed in
    ``abandoned``. Its thread does not delay the end of the process.

    Examples
    --------
    >>> with LiveArrivals({"left": pa.table({"k": [1, 2]}), "right": lambda: iter([])}) as arrivals:
    ...     sorted(type(event).__name__ for event in arrivals)
    ['Arrived', 'Ended', 'Ended']
    """

    def __init__(
        self,
        inputs: Mapping[str, LiveSource],
        *,
        buffer: str | int = "1MB",
        budget: MemoryBudget | None = None,
        wait: float = WAIT,
        clock: Clock | None = None,
    ) -> None:
        check_inputs(inputs)
        self.inputs = tuple(inputs)
        self.clock: Clock = clock or RealClock()
        self.wait = checked_wait(wait)
        nbytes = parse_size(buffer, subject="buffer")
        if nbytes < len(inputs):
            raise ConfigError(f"buffer: expected at least one byte for each of {len(inputs)} inputs; got {nbytes}")
        self.abandoned: tuple[str, ...] = ()
        self._reservation = (budget or MemoryBudget(nbytes)).reserve("input buffer", nbytes)
        self._buffer = _Buffer(self.inputs, nbytes // len(inputs), self.clock)
        self._readers = {name: _SourceReader(name, source, self._buffer) for name, source in inputs.items()}
        self._events = self._arrive()
        self._stop = weakref.finalize(self, _stop, self._buffer, self._readers)

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        return dict(self._buffer.schemas)

    @property
    def buffered(self) -> int:
        return self._buffer.tuples

    @property
    def most_buffered(self) -> int:
        return self._buffer.most_tuples

    @property
    def held_up(self) -> bool:
        return self._buffer.held_up > 0

    @property
    def nbytes(self) -> int:
        """Bytes in the buffer now, at most ``buffer``."""
        return self._buffer.nbytes

    @property
    def most_nbytes(self) -> int:
        return self._buffer.most_nbytes

    def spend(self, seconds: float) -> None:
        """Do nothing: a real clock advances by itself."""

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def __enter__(self) -> LiveArrivals:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads, close the sources, and release the buffer. Further calls do nothing."""
        self._events.close()
        self._end()

    def _end(self) -> None:
        if self._stop.alive:
            self.abandoned = self._stop() or ()
            self._reservation.release()

    def _arrive(self) -> Generator[Event, None, None]:
        buffer = self._buffer
        try:
            buffer.start()
            for reader in self._readers.values():
                reader.thread.start()
            left = len(self.inputs)
            while left:
                event = buffer.next_event(self.wait)
                if isinstance(event, SourceError):
                    raise event
                left -= isinstance(event, Ended)
                yield event
                buffer.forget(event)
        finally:
            self._end()


class _Buffer:
    """Tuples on their way from the reader threads to the consumer, guarded by one lock."""

    def __init__(self, inputs: tuple[str, ...], share: int, clock: Clock) -> None:
        self.share = share
        self.schemas: dict[str, pa.Schema] = {}
        self.tuples = self.most_tuples = self.nbytes = self.most_nbytes = 0
        self.held_up = 0
        """Number of readers that wait for room."""
        self.stopped = False
        self.last_arrival = 0.0
        self._clock = clock
        self._held = dict.fromkeys(inputs, 0)
        self._queue: deque[Arrived | Ended | SourceError] = deque()
        self._changed = threading.Condition()
        self._silence_reported = False

    # readers

    def start(self) -> None:
        """Set the time of the last arrival to now, so that the time without arrivals is measured from here."""
        self.last_arrival = self._clock.now()

    def put(self, name: str, piece: pa.RecordBatch, nbytes: int) -> bool:
        """Add tuples as soon as there is room for them; return False if the buffer has been stopped."""
        with self._changed:
            self.held_up += 1
            self._changed.wait_for(lambda: self.stopped or self._held[name] + nbytes <= self.share)
            self.held_up -= 1
            if self.stopped:
                return False
            self._held[name] += nbytes
            self.nbytes += nbytes
            self.most_nbytes = max(self.most_nbytes, self.nbytes)
            self.tuples += piece.num_rows
            self.most_tuples = max(self.most_tuples, self.tuples)
            self.last_arrival = self._clock.now()
            self._silence_reported = False
            self._queue.append(Arrived(name, piece))
            self._changed.notify_all()
        return True

    def put_end(self, end: Ended | SourceError) -> None:
        """Add the end of an input, or its failure."""
        with self._changed:
            self._queue.append(end)
            self._changed.notify_all()

    # the consumer

    def next_event(self, wait: float) -> Event | SourceError:
        """Wait for the next event, and return it."""
        with self._changed:
            while not self._queue:
                left = None if self._silence_reported else self.last_arrival + wait - self._clock.now()
                if left is not None and left <= 0:
                    self._silence_reported = True
                    return Silent()
                self._changed.wait(left)
            event = self._queue.popleft()
            if isinstance(event, Arrived):
                self.tuples -= event.batch.num_rows
            return event

    def forget(self, event: Event) -> None:
        """Free the bytes of an event, once the consumer is done with it."""
        if isinstance(event, Arrived):
            with self._changed:
                nbytes = _nbytes(event.batch)
                self._held[event.input] -= nbytes
                self.nbytes -= nbytes
                self._changed.notify_all()

    def stop(self) -> None:
        """Drop all tuples, and make readers stop."""
        with self._changed:
            self.stopped = True
            self._queue.clear()
            self._changed.notify_all()


class _SourceReader:
    """A thread that reads one source. It does not refer to the ``LiveArrivals``, so they can be garbage collected."""

    def __init__(self, name: str, source: LiveSource, buffer: _Buffer) -> None:
        self.name = name
        self.source = source
        self.tuples = self.batches = 0
        self._buffer = buffer
        self._opened: Any = None
        self.thread = threading.Thread(target=self._read, name=f"millrace-{name}", daemon=True)

    def cancel(self) -> None:
        """Call the source's ``cancel`` method, if any, so that it stops blocking. Called from another thread."""
        for source in (self.source, self._opened):
            cancel = getattr(source, "cancel", None)
            if callable(cancel):
                with suppress(Exception):
                    cancel()

    def _read(self) -> None:
        end: Ended | SourceError = Ended(self.name)
        try:
            self._opened = self.source() if callable(self.source) else self.source
            batches = iter(batches_of(self.name, self._opened))
            try:
                for batch in batches:
                    if not self._put(batch):
                        break
            finally:
                close = getattr(batches, "close", None)
                if callable(close):
                    close()
        except BaseException as error:  # any error is raised again in the consumer
            end = broken_off(self.name, self.tuples, self.batches, error)
            end.__cause__ = error
        self._buffer.put_end(end)

    def _put(self, batch: object) -> bool:
        if not isinstance(batch, pa.RecordBatch):
            raise SchemaError(f"expected record batches; got {type(batch).__name__}")
        schema = self._buffer.schemas.setdefault(self.name, batch.schema)
        if not batch.schema.equals(schema):
            raise SchemaError(f"expected batches with columns {_columns_of(schema)}; got {_columns_of(batch.schema)}")
        for piece in _pieces(batch, self._buffer.share):
            if not self._buffer.put(self.name, piece, _nbytes(piece)):
                return False
            self.tuples += piece.num_rows
        self.batches += 1
        return not self._buffer.stopped


def _stop(buffer: _Buffer, readers: dict[str, _SourceReader]) -> tuple[str, ...]:
    """Stop all readers, and return the names of those that did not stop."""
    buffer.stop()
    here = threading.current_thread()
    started = [reader for reader in readers.values() if reader.thread.is_alive() and reader.thread is not here]
    for reader in started:
        reader.cancel()
    deadline = time.monotonic() + _GRACE
    for reader in started:
        reader.thread.join(max(0.0, deadline - time.monotonic()))
    return tuple(reader.name for reader in started if reader.thread.is_alive())


def _pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of at most ``most`` bytes; yield nothing if it is empty."""
    if batch.num_rows == 0:
        return
    nbytes = _nbytes(batch)
    if nbytes <= most:
        yield batch
        return
    if batch.num_rows == 1:
        raise BudgetExceededError(
            f"a tuple of {format_size(nbytes)} does not fit into the input's share of the buffer, {format_size(most)}; "
            "set a larger buffer=, or in a StreamJoin a larger memory="
        )
    rows = math.ceil(batch.num_rows / math.ceil(nbytes / most))
    for start in range(0, batch.num_rows, rows):
        yield from _pieces(batch.slice(start, rows), most)


def _nbytes(batch: pa.RecordBatch) -> int:
    """Return the bytes to count for a batch: at least one for every tuple, even if no column takes memory."""
    nbytes: int = batch.nbytes
    return max(nbytes, int(batch.num_rows))


def _columns_of(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)
