"""What a cache policy is: it answers stream tuples before they have to wait, and learns from those that did."""

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

    look_up      for every piece of a pushed batch: who can be answered at once
    admitted     for those who could not and now wait
    begin_cycle  at the first step of every turn of the wheel
    begin_step   at every step, before the load
    on_match     master rows of a load that matched waiting tuples
    on_load      the load has met everyone who waits
    end_step     the step is over, but nobody whose turn ends with it has left yet
    on_absent    keys that have met every master row and matched none
    """

    rows: KeyedRows | None = None
    """The master rows; with a mark ``row`` for their numbers, if these are noted."""
    marks: ClassVar[Mapping[str, npt.DTypeLike] | None] = None
    """What the policy notes of every cached row, by name; None where it caches no rows."""
    dead_share = 0.0
    """Bytes of rows that are gone, for every byte of strings and binary of those that are there."""

    @abstractmethod
    def look_up(self, codes: Codes) -> Slots:
        """For each code the newest slot of its group of master rows, ``ABSENT`` (surely no row) or ``MISS``."""

    def admitted(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        """These codes wait now; ``counts`` is how many tuples wait for the same code."""

    def begin_cycle(self, cycle: int) -> None:
        """The wheel starts its turn number ``cycle``, counted from 1."""

    def begin_step(self) -> None:
        """A step begins."""

    def on_match(self, load: Load, met: FoundCodes) -> None:
        """Master rows that matched waiting tuples."""

    def on_load(self, load: Load) -> None:
        """A load has passed."""

    def end_step(self) -> None:
        """A step ends; who has met all of the master is still here."""

    def on_absent(self, codes: Codes) -> None:
        """Codes of tuples that left after a whole cycle without meeting a row of theirs."""

    def give_way(self) -> None:
        """Give back all memory that can be given back: not one tuple can wait beside the cache."""

    def keep(self, path: PathOrBuffer, identity: str) -> bool:
        """Write what has been learned to a file; False if there is nothing that can be kept."""
        return False

    def recall(self, path: PathOrBuffer, identity: str) -> bool:
        """Take over what an earlier cache with the same identity has kept; False if that cannot be trusted."""
        return False

    @property
    def reserve(self) -> int:
        """Bytes that the waiting room should leave free for the cache to grow into."""
        return 0

    @property
    def whole_bytes(self) -> float | None:
        """What it takes to have all of the master here, where nobody waits then; None if it never comes to that."""
        return None

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes if self.rows is not None else 0

    def check_invariants(self) -> None:
        """Assert that the cache is sound; for tests."""


def note_rows(context: JoinContext, rows: KeyedRows, slots: Slots, shard: int, numbers: Indices) -> None:
    """Cached rows are these rows of a shard; noted where output is ordered."""
    if context.numbered is not None:
        rows.marks["row"][slots] = context.numbered.of(shard, numbers)


ROW_MARK: Mapping[str, npt.DTypeLike] = {"row": np.int64}
"""The mark in which :func:`note_rows` writes."""


def row_mark(context: JoinContext) -> Mapping[str, npt.DTypeLike]:
    """Return the mark that :func:`note_rows` needs, where output is ordered."""
    return {} if context.numbered is None else ROW_MARK


class NoCache(Cache):
    """Nobody is answered early: every tuple waits for its cycle."""

    def __init__(self, context: JoinContext, access: Access) -> None:
        pass

    def look_up(self, codes: Codes) -> Slots:
        return np.full(len(codes), MISS, np.int32)
