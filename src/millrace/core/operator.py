"""The life of a stream operator, the same for every algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import pyarrow as pa

from millrace.core.errors import BudgetExceededError, StateError
from millrace.core.metrics import JoinMetrics


class OneCallAtATime:
    """Lets one call work at a time: a call works while its batches are read, and the next has to wait for its end."""

    _called = "join"
    """What its errors call it."""
    _busy = False
    _broken = ""
    """Why it cannot go on, if it cannot."""

    def _guarded(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Begin one call of the life cycle; its batches must be read to the end before the next."""
        self._check_sound()
        if self._busy:
            raise StateError(
                "the batches of the last call have not been read to their end: a call does its work while they are read"
            )
        self._busy = True
        return self._given_out(work)

    def _given_out(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from work
        except BudgetExceededError:
            self._busy = False  # everything taken in so far is sound
            raise
        except GeneratorExit:
            self._broken = "its output was not read to the end of a call"
            raise
        except BaseException as error:
            self._broken = f"a call of it failed with {type(error).__name__}"
            raise
        self._busy = False

    def _check_sound(self) -> None:
        if self._broken:
            raise StateError(f"this {self._called} cannot go on: {self._broken}. Make a new one")

    def _stop_for_good(self, why: str) -> None:
        """Refuse all further calls, for this reason."""
        self._broken = why

    def _check_between_calls(self, doing: str) -> None:
        """Raise if a call is still running: what follows has to wait for its end."""
        self._check_sound()
        if self._busy:
            raise StateError(f"{doing} in the middle of a call: read its batches to the end first")


class StreamOperator(OneCallAtATime, ABC):
    """An operator that takes in record batches and yields record batches.

    The order of calls is ``push`` and ``step`` and ``idle`` as often as wanted, then ``finish`` once::

        push(batch)*  step()*  idle()*  …  finish()

    Each returns an iterator of output batches of bounded size, which must be read to its end before the next call.
    Between calls ``snapshot`` returns all that has to survive; ``restore`` on a fresh operator with the same arguments
    goes on as if nothing had happened.
    """

    @abstractmethod
    def push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take in stream tuples."""

    @abstractmethod
    def step(self) -> Iterator[pa.RecordBatch]:
        """Run one disk phase."""

    @abstractmethod
    def idle(self) -> Iterator[pa.RecordBatch]:
        """Work on tuples that wait while no input is there, or do nothing."""

    @abstractmethod
    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the stream: answer all tuples that still wait."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """Return all state that has to survive."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Go on from a snapshot."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in use now, never more than the budget."""

    @property
    @abstractmethod
    def metrics(self) -> JoinMetrics:
        """Counts so far."""

    @abstractmethod
    def check_invariants(self) -> None:
        """Assert that every structure is sound; for tests."""

    def run(self, stream: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a whole stream: push every batch, then finish."""
        for batch in stream:
            yield from self.push(batch)
        yield from self.finish()
