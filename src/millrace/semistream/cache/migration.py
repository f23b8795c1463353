"""How keys move into SSBJ's cache: the calls a protocol gets."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from millrace.master.read.wheel import Load
from millrace.rows.code_filter import FoundCodes
from millrace.rows.keyed_rows import Codes
from millrace.semistream.cache.collected_groups import CollectedGroups
from millrace.semistream.cache.inequality import CacheInequality


class Migration(ABC):
    """A protocol by which all master rows of a key, and never only some, get into the cache.

    Parameters
    ----------
    growth
        Returns the bytes by which the cache may grow in a turn.
    """

    def __init__(self, groups: CollectedGroups, inequality: CacheInequality, growth: Callable[[], int]) -> None:
        self.groups, self.inequality, self.growth = groups, inequality, growth
        self.context = groups.context

    def admitted(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        """Tuples have entered the waiting room; ``counts`` is how many wait for the same key."""

    def begin_cycle(self, cycle: int) -> None:
        """The wheel begins a turn."""

    def begin_step(self) -> None:
        """A step begins."""

    def on_match(self, load: Load, met: FoundCodes) -> None:
        """Master rows that matched waiting tuples."""

    def on_load(self, load: Load) -> None:
        """A load has passed."""

    def end_step(self) -> None:
        """A step ends; tuples that have met all of the master are still here."""

    def settle(self) -> None:
        """Forget every key that is on its way into the cache: its groups are about to be discarded."""

    def collecting(self) -> Codes:
        """Return the keys whose rows are being collected."""
        return np.empty(0, np.int64)
