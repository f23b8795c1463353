"""Work with the disk while nothing comes in, and at the end: the interface of reactive policies, and an empty one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from millrace.adaptive.array_types import Batches
from millrace.adaptive.inputs.join_inputs import JoinInputs

Flush = Callable[[], Batches]
"""Writes some rows to disk, as the join's flush policy does."""


class ReactivePolicy(ABC):
    """Joins rows of which some are on disk.

    A policy is made with the inputs of the join; what it takes by keyword only is an option of the join.
    """

    stops_at_first_row = False
    """Whether it stops as soon as any row has come; else when ``max_new_arrivals`` rows wait."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is something to do while nothing comes in."""

    @abstractmethod
    def unit(self, flush: Flush) -> Batches:
        """Do the least work that can be done before arrivals are looked at again.

        A policy that needs memory of rows for it calls ``flush``.
        """

    def pause(self) -> None:
        """Give back memory of rows, because rows come in again."""

    @abstractmethod
    def clean_up(self) -> Batches:
        """Join everything that has not been joined, when all inputs have ended."""

    def state(self) -> dict[str, Any]:
        """Return what a snapshot keeps of the policy: plain values, for JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the state of a snapshot."""

    def check_invariants(self) -> None:
        """Assert that the bookkeeping is sound."""


class NoReactivePhase(ReactivePolicy):
    """No rows are ever on disk."""

    has_work = False

    def __init__(self, inputs: JoinInputs[Any]) -> None:
        pass

    def unit(self, flush: Flush) -> Batches:
        return iter(())

    def clean_up(self) -> Batches:
        return iter(())
