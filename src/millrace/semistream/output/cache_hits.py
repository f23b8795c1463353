"""Output of tuples that the cache answers: they are joined with cached rows after these have been verified."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millrace.core.errors import StateError
from millrace.kernels import multimap
from millrace.kernels.groups import MISS
from millrace.rows.arena import Slots
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes, KeyedRows
from millrace.semistream.output.output_columns import Batches, as_indices
from millrace.semistream.output.parts import JoinParts

PIECE = 65_536
"""Largest number of rows or index pairs that are handled at a time, and of tuples in a piece of a pushed batch."""


class CacheHits:
    """Joins pushed tuples with cached rows."""

    def __init__(self, parts: JoinParts) -> None:
        self._parts = parts
        how = parts.spec.how
        one_row_decides = parts.residual is None and (parts.binding.single or how in ("semi", "anti"))
        self._slot_is_match = one_row_decides and parts.store.coder.exact

    @property
    def rows(self) -> KeyedRows:
        """The cached master rows; only for a cache that holds rows."""
        rows = self._parts.cache.rows
        assert rows is not None
        return rows

    def look_up(self, codes: Codes) -> Slots:
        """Return the cache slot of each key code, or ``MISS``; raise an error if the policy returns something else."""
        cache = self._parts.cache
        found = cache.look_up(codes)
        if not isinstance(found, np.ndarray) or found.shape != codes.shape or found.dtype.kind != "i":
            got = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
            raise StateError(
                f"{type(cache).__name__}.look_up: expected an array of one slot for each of {len(codes)} key codes; "
                f"got {got}"
            )
        return found

    def answer(self, batch: pa.RecordBatch, found: Slots) -> Batches:
        """Yield the output of the tuples of a batch that the cache answers, with or without a match; skip misses.

        ``found`` is what :meth:`look_up` returned for the batch.
        """
        parts, output = self._parts, self._parts.output
        how, matched = parts.spec.how, found >= 0
        if not self._slot_is_match:
            matched = np.zeros(len(found), np.bool_)
            for rows, slots in self.pairs(batch, found):
                matched[rows] = True
                if parts.spec.emits_master:
                    yield from output.emit(len(rows), output.pushed(batch, rows), output.cached(self.rows, slots))
        elif parts.spec.emits_master:
            rows = np.flatnonzero(matched)
            if len(rows):
                yield from output.emit(len(rows), output.pushed(batch, rows), output.cached(self.rows, found[rows]))
        if how == "semi":
            rows = np.flatnonzero(matched)
            yield from output.emit(len(rows), output.pushed(batch, rows), None)
        unmatched = np.flatnonzero((found != MISS) & ~matched)
        parts.metrics.matched += int(matched.sum())
        parts.metrics.unmatched += len(unmatched)
        if how in ("left", "anti"):
            yield from output.emit(len(unmatched), output.pushed(batch, unmatched), None)

    def pairs(self, batch: pa.RecordBatch, found: Slots) -> Iterator[tuple[Indices, Slots]]:
        """Yield verified pairs of a pushed row and the slot of a matching cached row, in pieces of bounded size."""
        parts, cached = self._parts, self._parts.cache.rows
        if cached is None:
            return
        keys = parts.binding.keys
        cursor = np.array([0, -1], np.int64)
        rows, slots = np.empty(PIECE, np.int32), np.empty(PIECE, np.int32)
        while cursor[0] < len(found):
            made = multimap.expand(cached.map, found, cursor, rows, slots)
            left, right = as_indices(rows[:made]), slots[:made]
            if not keys.exact:
                same = keys.same(keys.of(batch, left), cached.take(parts.binding.cached_keys, right))
                left, right = left[same], right[same]
            if parts.residual is not None:
                passed = parts.residual.of_cached(batch, left, cached, right)
                left, right = left[passed], right[passed]
            if len(left):
                yield left, right
