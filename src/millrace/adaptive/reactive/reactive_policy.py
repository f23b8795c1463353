"""The interface of reactive policies, which join rows on disk while inputs are silent and at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from millrace.adaptive.array_types import Batches
from millrace.adaptive.inputs.join_inputs import JoinInputs

Flush = Callable[[], Batches]
"""A function that calls the join's flush policy: it writes some rows to disk, and yields output batches."""


class ReactivePolicy(ABC):
    """Joins pairs or combinations of rows of which at least one is on disk.

    A policy is created with the inputs of the join. Its keyword-only arguments are options of the join.
    """

    stops_at_first_row = False
    """Whether the policy stops as soon as any row waits, not only when more than ``max_new_arrivals`` rows wait."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is disk work to do while no rows arrive."""

    @abstractmethod
    def unit(self, flush: Flush) -> Batches:
        """Do one unit of work, the least that can be done between two checks for new rows, and yield output batches.

        A policy calls ``flush`` if it needs memory that rows occupy.
        """

    def pause(self) -> None:
        """Release memory that was reserved for blocks, because new rows are about to be processed."""

    @abstractmethod
    def clean_up(self) -> Batches:
        """Join all rows that have not been joined with each other yet, after all inputs have ended."""

    def state(self) -> dict[str, Any]:
        """Return the policy's state for a snapshot, as plain values for JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the policy's state from a snapshot."""

    def check_invariants(self) -> None:
        """Assert that the policy's bookkeeping is consistent."""


class NoReactivePhase(ReactivePolicy):
    """The reactive policy of algorithms that never have rows on disk: it does nothing."""

    has_work = False

    def __init__(self, inputs: JoinInputs[Any]) -> None:
        pass

    def unit(self, flush: Flush) -> Batches:
        return iter(())

    def clean_up(self) -> Batches:
        return iter(())
