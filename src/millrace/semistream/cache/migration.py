"""How keys move into SSBJ's cache: the calls a protocol gets."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from millrace.master.read.wheel import Load
from millrace.rows.code_filter import Met
from millrace.rows.keyed_rows import Codes

if TYPE_CHECKING:
    from millrace.semistream.cache.balanced import BalancedCache


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

    def on_match(self, load: Load, met: Met) -> None:
        """Master rows that matched waiting tuples."""

    def on_load(self, load: Load) -> None:
        """A load has passed."""

    def end_step(self) -> None:
        """A step ends; who has met all of the master is still here."""

    def settle(self) -> None:
        """Forget every key that is on its way into the cache: its groups are about to be discarded."""

    def collecting(self) -> Codes:
        """Keys whose rows are being collected."""
        return np.empty(0, np.int64)
