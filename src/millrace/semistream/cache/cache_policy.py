"""The interface of cache policies: they answer stream tuples before they have to wait and learn from those that did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from millrace.kernels.groups import MISS
from millrace.master.read.wheel import Load
from millrace.rows.arena import Slots
from millrace.rows.code_filter import FoundCodes
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes, KeyedRows
from millrace.rows.keyed_rows_file import PathOrBuffer
from millrace.semistream.access.access_policy import Access
from millrace.semistream.context import JoinContext


class Cache(ABC):
    """Policy of the cache phase. The loop calls, in this order::

    look_up      for every piece of a pushed batch: which tuples can be answered at once
    on_admit     for the other tuples, which now wait
    begin_cycle  at the first step of every turn of the wheel
    begin_step   at every step, before the load
    on_match     master rows of a load that matched waiting tuples
    on_load      the load has met all waiting tuples
    end_step     the step is over; tuples whose turn ends with it have not left yet
    on_absent    keys of tuples that have met every master row and matched none
    """

    rows: KeyedRows | None = None
    """The cached master rows, with their numbers in the mark ``row`` if they are noted."""
    marks: ClassVar[Mapping[str, npt.DTypeLike] | None] = None
    """Marks that the policy keeps of every cached row, by name; None if it caches no rows."""
    dead_share = 0.0
    """Bytes of removed rows for every byte of strings and binary of cached ones."""

    @abstractmethod
    def look_up(self, codes: Codes) -> Slots:
        """Return for each code the newest slot of its group of master rows, ``ABSENT`` (surely no row) or ``MISS``."""

    def on_admit(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        """Take note of the codes of tuples that wait now; ``counts`` is how many tuples wait for the same code."""

    def begin_cycle(self, cycle: int) -> None:
        """Begin turn number ``cycle`` of the wheel, counted from 1."""

    def begin_step(self) -> None:
        """Begin a step."""

    def on_match(self, load: Load, met: FoundCodes) -> None:
        """Take note of master rows that matched waiting tuples."""

    def on_load(self, load: Load) -> None:
        """Take note of a load that has passed."""

    def end_step(self) -> None:
        """End a step; tuples that have met all of the master have not left yet."""

    def on_absent(self, codes: Codes) -> None:
        """Take note of the codes of tuples that left after a whole turn without a row that has their code."""

    def free_memory(self) -> None:
        """Free all memory that can be freed, because not one tuple can wait beside the cache."""

    def save_to(self, path: PathOrBuffer, identity: str) -> bool:
        """Write the cache to a file; return False if it cannot be saved."""
        return False

    def load_from(self, path: PathOrBuffer, identity: str) -> bool:
        """Read what an earlier cache with the same identity has written; return False if it cannot be trusted."""
        return False

    @property
    def reserve(self) -> int:
        """Bytes that the waiting room should leave free for the cache to grow into."""
        return 0

    @property
    def whole_bytes(self) -> float | None:
        """Bytes with which the whole master is cached, so that no tuple waits; None if that never happens."""
        return None

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes if self.rows is not None else 0

    def check_invariants(self) -> None:
        """Assert that the cache is sound; for tests."""


def note_rows(context: JoinContext, rows: KeyedRows, slots: Slots, shard: int, numbers: Indices) -> None:
    """Write the numbers of cached rows, rows of this shard, into their mark, where output is ordered."""
    if context.numbered is not None:
        rows.marks["row"][slots] = context.numbered.of(shard, numbers)


ROW_MARK: Mapping[str, npt.DTypeLike] = {"row": np.int64}
"""The mark in which :func:`note_rows` writes."""


def row_mark(context: JoinContext) -> Mapping[str, npt.DTypeLike]:
    """Return the mark that :func:`note_rows` needs, where output is ordered."""
    return {} if context.numbered is None else ROW_MARK


class NoCache(Cache):
    """Caches nothing: every tuple waits."""

    def __init__(self, context: JoinContext, access: Access) -> None:
        pass

    def look_up(self, codes: Codes) -> Slots:
        return np.full(len(codes), MISS, np.int32)
