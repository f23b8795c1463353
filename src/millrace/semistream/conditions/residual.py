"""Tests conditions on pairs of rows that were found by key or by search, some pairs at a time to bound the memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from millrace.core.budget import MemoryBudget
from millrace.master.read.mapped_rows import MappedRows
from millrace.rows.arena import Slots
from millrace.rows.columns import Indices, bytes_pieces, item_of, shape_of
from millrace.rows.keyed_rows import KeyedRows
from millrace.semistream.conditions.condition import Condition
from millrace.semistream.conditions.measures import Flags

_LEAST_PAIRS = 16
_MOST_PAIRS = 65_536
_SHARE = 1 / 25
_FLAGS = 16  # bytes per pair besides its values
_VARIABLE = {"bits": 1, "bytes": 12, "opaque": 64}

Columns = Callable[[slice], list[pa.Array]]


class Residual:
    """Tests a condition on pairs of rows that were found by key or by search.

    Parameters
    ----------
    condition
        The condition that has to hold.
    cached
        Places of the cached columns in the master; the condition's columns are among them.
    """

    def __init__(
        self, condition: Condition, stream: pa.Schema, master: pa.Schema, cached: list[int], budget: MemoryBudget
    ) -> None:
        self.condition = condition
        self._stream = [stream.get_field_index(name) for name in dict.fromkeys(condition.stream)]
        self._master = [master.get_field_index(name) for name in dict.fromkeys(condition.master)]
        self._cached = [cached.index(column) for column in self._master]
        self._schemas = [pa.schema([stream.field(i) for i in self._stream])]
        self._schemas += [pa.schema([master.field(i) for i in self._master])]
        self._pair_bytes = self.least_bytes(condition, stream, master) // _LEAST_PAIRS
        share = min(_MOST_PAIRS * self._pair_bytes, int(_SHARE * budget.total))
        self._bytes = max(_LEAST_PAIRS * self._pair_bytes, share)
        budget.reserve("condition", self._bytes)

    @staticmethod
    def least_bytes(condition: Condition, stream: pa.Schema, master: pa.Schema) -> int:
        """Return the bytes needed to test a few pairs at a time.

        The bytes hold the values of the condition's columns, the same values converted to numbers, and flags.
        """
        types = [stream.field(name).type for name in condition.stream]
        types += [master.field(name).type for name in condition.master]
        widths = [_VARIABLE.get(shape_of(t)) or item_of(t).itemsize for t in types]
        return _LEAST_PAIRS * (sum(width + 8 for width in widths) + _FLAGS)

    # pairs, by where their rows are

    def of_waiting(self, rows: KeyedRows, slots: Slots, mapped: MappedRows, numbers: Indices) -> Flags:
        """Return which pairs of a waiting tuple and a master row on disk meet the condition."""
        return self._test(
            len(slots),
            rows.longest(self._stream) + mapped.longest(self._master),
            lambda piece: rows.take(self._stream, slots[piece]),
            lambda piece: mapped.take(self._master, numbers[piece]),
        )

    def of_pushed(self, batch: pa.RecordBatch, rows: Indices, mapped: MappedRows, numbers: Indices) -> Flags:
        """Return which pairs of a pushed tuple and a master row on disk meet the condition."""
        return self._test(
            len(rows),
            self._longest(batch) + mapped.longest(self._master),
            lambda piece: self._pushed(batch, rows[piece]),
            lambda piece: mapped.take(self._master, numbers[piece]),
        )

    def of_cached(self, batch: pa.RecordBatch, rows: Indices, cache: KeyedRows, slots: Slots) -> Flags:
        """Return which pairs of a pushed tuple and a cached master row meet the condition."""
        return self._test(
            len(rows),
            self._longest(batch) + cache.longest(self._cached),
            lambda piece: self._pushed(batch, rows[piece]),
            lambda piece: cache.take(self._cached, slots[piece]),
        )

    def _pushed(self, batch: pa.RecordBatch, rows: Indices) -> list[pa.Array]:
        chosen = pa.array(rows)
        return [batch.column(i).take(chosen) for i in self._stream]

    def _longest(self, batch: pa.RecordBatch) -> int:
        columns = (batch.column(i) for i in self._stream)
        return sum(int(bytes_pieces(c)[2].max(initial=0)) for c in columns if shape_of(c.type) == "bytes")

    def _test(self, count: int, longest: int, stream_columns: Columns, master_columns: Columns) -> Flags:
        """Test ``count`` pairs, as many at a time as surely fit in the reserved memory; return which ones pass.

        ``longest`` is an upper bound of the bytes that the strings and binary values of a pair take.
        """
        most = max(1, self._bytes // (self._pair_bytes + longest))
        flags = np.empty(count, np.bool_)
        for start in range(0, count, most):
            piece = slice(start, min(start + most, count))
            stream, master = (
                pa.RecordBatch.from_arrays(arrays, schema=schema)
                for arrays, schema in zip((stream_columns(piece), master_columns(piece)), self._schemas, strict=True)
            )
            flags[piece] = self.condition.holds(stream, master)
        return flags
