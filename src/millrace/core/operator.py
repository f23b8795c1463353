"""The life cycle of a stream operator, the same for every algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import pyarrow as pa

from millrace.core.errors import BudgetExceededError, StateError
from millrace.core.metrics import JoinMetrics


class OneCallAtATime:
    """A base class that allows one call at a time: each call's output must be read to its end before the next call."""

    _called = "join"
    """The name of the object in error messages."""
    _busy = False
    _broken = ""
    """The reason why the object cannot continue; empty if it can."""

    def _guarded(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Begin a call and return its batches, which must be read to their end before the next call."""
        self._check_sound()
        if self._busy:
            raise StateError(
                "the batches of the last call have not been read to their end; read them before the next call"
            )
        self._busy = True
        return self._given_out(work)

    def _given_out(self, work: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from work
        except BudgetExceededError:
            self._busy = False  # what was taken in so far is intact
            raise
        except GeneratorExit:
            self._broken = "the output of a call was not read to its end"
            raise
        except BaseException as error:
            self._broken = f"a call failed with {type(error).__name__}"
            raise
        self._busy = False

    def _check_sound(self) -> None:
        if self._broken:
            raise StateError(f"this {self._called} cannot go on: {self._broken}. Make a new {self._called}")

    def _stop_for_good(self, why: str) -> None:
        """Refuse all further calls, with ``why`` as the reason in their errors."""
        self._broken = why

    def _check_between_calls(self, doing: str) -> None:
        """Raise an error that names ``doing`` if the batches of a call have not been read to their end."""
        self._check_sound()
        if self._busy:
            raise StateError(f"{doing}: the batches of the last call have not been read to their end; read them first")


class StreamOperator(OneCallAtATime, ABC):
    """An operator that takes in record batches and yields record batches.

    Call ``push``, ``step`` and ``idle`` as often as wanted, in any order, then ``finish`` once::

        push(batch)*  step()*  idle()*  …  finish()

    Each returns an iterator of output batches of bounded size, which must be read to its end before the next call.
    Between calls ``snapshot`` returns the state of the operator. After ``restore`` with this state, a new operator with
    the same arguments continues where the first operator stopped.
    """

    @abstractmethod
    def push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take in a batch of stream tuples and yield output batches."""

    @abstractmethod
    def step(self) -> Iterator[pa.RecordBatch]:
        """Take one step: read the next master rows and join the waiting tuples with them."""

    @abstractmethod
    def idle(self) -> Iterator[pa.RecordBatch]:
        """Use a pause in the input to join waiting tuples. Some operators do nothing."""

    @abstractmethod
    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the stream: join all tuples that still wait."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """Return the state of the operator as bytes, from which another operator can continue."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Continue from a snapshot that :meth:`snapshot` returned."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in use now, never more than the budget."""

    @property
    @abstractmethod
    def metrics(self) -> JoinMetrics:
        """Metrics of the operator so far."""

    @abstractmethod
    def check_invariants(self) -> None:
        """Assert that the invariants of all data structures hold; for tests."""

    def run(self, stream: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a whole stream: push every batch, then finish."""
        for batch in stream:
            yield from self.push(batch)
        yield from self.finish()
