"""The interface of migrations, which collect all master rows of a key until SSBJ's cache can answer its tuples."""

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
    """A way to collect the master rows of a key in the cache until all are there.

    From then on, the key is complete, and the cache can answer its tuples.

    Parameters
    ----------
    growth
        Function that returns the bytes by which the cache may grow in one turn of the wheel.
    """

    def __init__(self, groups: CollectedGroups, inequality: CacheInequality, growth: Callable[[], int]) -> None:
        self.groups, self.inequality, self.growth = groups, inequality, growth
        self.context = groups.context

    def on_admit(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        """Take note of tuples that have entered the waiting room; ``counts`` is how many wait for each key."""

    def begin_cycle(self, cycle: int) -> None:
        """Begin turn number ``cycle`` of the wheel (one scan of the master)."""

    def begin_step(self) -> None:
        """Prepare for a step, before any master rows are loaded."""

    def on_match(self, load: Load, met: FoundCodes) -> None:
        """Take note of the rows of a load that matched waiting tuples."""

    def on_load(self, load: Load) -> None:
        """Take note of a load that all waiting tuples have met."""

    def end_step(self) -> None:
        """Finish a step, before the tuples that have met every master row leave."""

    def cancel(self) -> None:
        """Stop collecting: forget all keys being collected, because their groups are about to be discarded."""

    def collecting(self) -> Codes:
        """Return the keys whose rows are being collected."""
        return np.empty(0, np.int64)
