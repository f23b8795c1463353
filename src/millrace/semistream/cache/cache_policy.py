"""The interface of cache policies, which decide which keys are cached, so that their tuples need not wait."""

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
    """Policy that decides which keys are cached. The loop calls, in this order::

    look_up      for every piece of a pushed batch, to find the tuples that can be answered at once
    on_admit     for the other tuples, when they begin to wait
    begin_cycle  at the first step of every period, such as a full scan of the master
    begin_step   at every step, before master rows are loaded
    on_match     with the master rows of a load that matched waiting tuples
    on_load      when a load has met all waiting tuples
    end_step     at the end of a step, before tuples that have met every master row leave
    on_absent    with the keys of tuples that have met every master row, if no row has the key
    free_memory  when one tuple does not fit into the empty waiting room (called by the output order)

    A policy counts ``admitted_keys`` and ``evicted_keys`` in ``context.metrics``. Only the keys evicted when ``auto``
    switches to another algorithm are counted by ``SemiStreamJoin``.
    """

    rows: KeyedRows | None = None
    """The cached master rows, with row numbers in the mark ``row`` if output is ordered; None if no rows are cached."""
    marks: ClassVar[Mapping[str, npt.DTypeLike] | None] = None
    """Names and types of the fields (marks) kept beside every cached row; None if the policy caches no rows."""
    dead_share = 0.0
    """Bytes that strings and binary values of removed rows may still take, as a share of those of cached rows."""

    @abstractmethod
    def look_up(self, codes: Codes) -> Slots:
        """Return for each key code the newest slot of its cached rows, or ``ABSENT``, or ``MISS``.

        ``ABSENT`` means that the master is known to have no row with the code, ``MISS`` that the cache has no answer.
        """

    def on_admit(self, codes: Codes, counts: npt.NDArray[np.int32]) -> None:
        """Take note of the key codes of tuples that wait now; ``counts`` is how many tuples wait for each code."""

    def begin_cycle(self, cycle: int) -> None:
        """Begin a period, such as a full scan of the master; ``cycle`` is the number of the period, counted from 1."""

    def begin_step(self) -> None:
        """Prepare for a step, before any master rows are loaded."""

    def on_match(self, load: Load, met: FoundCodes) -> None:
        """Take note of the rows of a load that matched waiting tuples."""

    def on_load(self, load: Load) -> None:
        """Take note of a load that all waiting tuples have met."""

    def end_step(self) -> None:
        """Finish a step; tuples that have met every master row have not left yet."""

    def on_absent(self, codes: Codes) -> None:
        """Take note of key codes that no master row has: tuples with these codes have left unmatched."""

    def free_memory(self) -> None:
        """Empty the cache: the last resort, when one tuple does not fit into the empty waiting room."""

    def save_to(self, path: PathOrBuffer, identity: str) -> bool:
        """Write the cache and its ``identity`` to a file; return False if the cache cannot be saved."""
        return False

    def load_from(self, path: PathOrBuffer, identity: str) -> bool:
        """Fill the cache from a file with the same ``identity``; return False if the file is missing or not valid."""
        return False

    @property
    def reserve(self) -> int:
        """Bytes that the waiting room should leave free for the cache to grow into."""
        return 0

    @property
    def whole_bytes(self) -> float | None:
        """Bytes that the cache needs to hold the whole master, so that no tuple waits; None if it cannot hold it."""
        return None

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes if self.rows is not None else 0

    def check_invariants(self) -> None:
        """Assert that the cache's invariants hold; for tests."""


def note_rows(context: JoinContext, rows: KeyedRows, slots: Slots, shard: int, numbers: Indices) -> None:
    """Set the mark ``row`` of cached rows to their row numbers in the master, if output is ordered.

    ``slots`` are the rows' slots in the cache; ``numbers`` are their row numbers within the shard.
    """
    if context.numbered is not None:
        rows.marks["row"][slots] = context.numbered.of(shard, numbers)


ROW_MARK: Mapping[str, npt.DTypeLike] = {"row": np.int64}
"""The extra field of a cached row that holds its row number in the master; :func:`note_rows` fills it in."""


def row_mark(context: JoinContext) -> Mapping[str, npt.DTypeLike]:
    """Return :data:`ROW_MARK` if output is ordered; else an empty map, because rows do not need their numbers."""
    return {} if context.numbered is None else ROW_MARK


class NoCache(Cache):
    """Caches nothing: every look-up is a miss."""

    def __init__(self, context: JoinContext, access: Access) -> None:
        pass

    def look_up(self, codes: Codes) -> Slots:
        return np.full(len(codes), MISS, np.int32)
