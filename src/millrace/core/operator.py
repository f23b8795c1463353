"""The life of a stream operator, the same for every algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import pyarrow as pa

from millrace.core.metrics import JoinMetrics


class StreamOperator(ABC):
    """An operator that is fed record batches and yields record batches.

    The order of calls is ``push`` and ``step`` and ``idle`` as often as wanted, then ``finish`` once::

        push(batch)*  step()*  idle()*  …  finish()

    Each returns an iterator of output batches of bounded size, which must be read to its end before the next call.
    Between calls ``snapshot`` gives all that has to survive; ``restore`` on a fresh operator with the same arguments
    goes on as if nothing had happened.
    """

    @abstractmethod
    def push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take in stream tuples."""

    @abstractmethod
    def step(self) -> Iterator[pa.RecordBatch]:
        """One disk phase."""

    @abstractmethod
    def idle(self) -> Iterator[pa.RecordBatch]:
        """No input is there: do something useful for who is waiting, or nothing."""

    @abstractmethod
    def finish(self) -> Iterator[pa.RecordBatch]:
        """The stream has ended: answer everyone who still waits."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """All state that has to survive."""

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
