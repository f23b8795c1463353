"""How keys move into SSBJ's cache: the calls a protocol gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from millrace.master.wheel import Load
from millrace.rows.keyed import Codes

if TYPE_CHECKING:
    from millrace.semistream.balanced import BalancedCache


class Migration(ABC):
    """A protocol by which all master rows of a key, and never only some, get into the cache."""

    def __init__(self, cache: BalancedCache) -> None:
        self.cache = cache

    def admitted(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        """Tuples have entered the waiting room; ``counts`` is how many wait for the same key."""

    def begin_cycle(self, cycle: int) -> None:
        """The wheel begins a turn."""

    def begin_step(self) -> None:
        """A step begins."""

    def on_load(self, load: Load, among: npt.NDArray[np.int32]) -> None:
        """Master rows that passed the filter."""

    def on_match(self, load: Load, positions: npt.NDArray[np.int32]) -> None:
        """Master rows that matched waiting tuples."""

    @abstractmethod
    def watched(self) -> Codes:
        """Keys whose master rows must pass the filter."""
