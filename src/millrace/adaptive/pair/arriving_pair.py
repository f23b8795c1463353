"""The arriving phase: a piece of one input meets the other side's rows in memory, then takes its own place there.

::

    piece ──► probe the other side ──► pairs out ──► room? ──no──► flush (policy) ──┐
                                                       │ yes   ◄────────────────────┘
                                                       ▼
                                                  own side's memory

Rows of one input do not meet each other, so taking them piece by piece finds the same pairs as one at a time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.adaptive.flush.flush_policy import Flushing
from millrace.adaptive.memory.pair_output import Batches, BatchSource
from millrace.adaptive.memory.side import Side
from millrace.adaptive.memory.sorted_rows import JOINED, Bits, Codes, Order
from millrace.adaptive.memory_split import Sizes
from millrace.adaptive.pair.pair_algorithms import Algorithm
from millrace.adaptive.pair.pair_state import Machinery
from millrace.core.errors import BudgetExceededError
from millrace.core.sizes import format_size
from millrace.kernels import bands
from millrace.kernels.radix_sort import order_of
from millrace.rows.arena import Arena

_BLOCKS = 6
"""Buffers that have to take the longest row, when it is longer than a block."""


class Arriving:
    """Takes rows in."""

    def __init__(self, machinery: Machinery, flushing: Flushing, algorithm: Algorithm, sizes: Sizes) -> None:
        self._m, self._flushing, self._sizes = machinery, flushing, sizes
        self._probes = algorithm.probes

    def take(self, number: int, batch: pa.RecordBatch) -> Batches:
        """Take in a batch of one side, piece by piece."""
        at = 0
        while at < len(batch):
            rows = self._fitting(number, batch, at)
            yield from self._piece(number, batch.slice(at, rows))
            at += rows

    def _fitting(self, number: int, batch: pa.RecordBatch, at: int) -> int:
        """How many of the next rows take no more than a sixteenth of the memory; at least one."""
        most = self._sizes.total // 16
        fixed = self._m.sides[number].memory.slot_bytes + 16
        rows = max(1, min(len(batch) - at, self._sizes.piece, most // fixed))
        rows = -(-(len(batch) - at) // -(-(len(batch) - at) // rows))  # pieces alike, not a small one at the end
        while rows > 1 and Arena.heap_bytes_of(batch.slice(at, rows).columns) + rows * fixed > most:
            rows //= 2
        return rows

    def _piece(self, number: int, piece: pa.RecordBatch) -> Batches:
        m, side = self._m, self._m.sides[number]
        m.metrics.rows_in[side.name] += len(piece)
        columns = [piece.column(i) for i in m.matching.key_columns(number)]
        codes, valid = m.matching.codes(columns)
        if valid is not None:
            yield from self._lonely(side, piece.filter(pa.array(~valid)))
            piece, codes = piece.filter(pa.array(valid)), codes[valid]
        if not len(piece):
            return
        order = order_of(codes)
        codes = codes[order]
        heap = Arena.heap_bytes_of(piece.columns)
        self._check_fits(side, len(piece), heap)
        bits = np.zeros(len(piece), np.uint8)
        if self._probes:
            arrival = m.clock.ticks(len(piece))
            yield from self._probe(side, piece, codes, order, bits)
        yield from self._make_room(side, codes, heap)
        if not self._probes:  # who leaves to make room has not met them
            arrival = m.clock.ticks(len(piece))
        stamps = np.arange(arrival, arrival + len(piece), dtype=np.int64)
        side.memory.insert(codes, order, piece.columns, stamps, bits)
        side.arrived += len(piece)
        side.came += m.partitions.counts(codes)
        self._flushing.arrived(number, codes)
        self._flushing.settle()

    def _lonely(self, side: Side, rows: pa.RecordBatch) -> Batches:
        """Rows that cannot have a partner."""
        m = self._m
        m.metrics.null_keys += len(rows)
        if not len(rows) or not m.keeps[side.number]:
            return
        if m.output is None:
            side.disk.keep(rows)
        else:
            source = BatchSource(rows, np.zeros(len(rows), np.uint8))
            yield from m.output.alone(side.number, source, np.arange(len(rows), dtype=np.int32))

    def _probe(self, side: Side, piece: pa.RecordBatch, codes: Codes, order: Order, bits: Bits) -> Batches:
        """Meet the other side's rows in memory."""
        m, other = self._m, self._m.sides[1 - side.number]
        if not len(other.memory):
            return
        source = BatchSource(piece, bits)
        by_row = np.empty(len(codes), np.int64)
        by_row[order] = codes
        for found in other.memory.matches(*m.matching.ranges(side.number, codes), m.work):
            rows = order[found.rows].astype(np.int32)
            met = m.meet(side.number, source, rows, codes[found.rows], other.source, found.slots, found.keys)
            yield from m.put_out(side.number, source, met.rows, other.source, met.slots)
            bands.set_bits(bits, met.rows, JOINED)
            bands.set_bits(other.memory.bits, met.slots, JOINED)
            self._flushing.matched(side.number, by_row[met.rows], met)

    # room

    def _check_fits(self, side: Side, rows: int, heap: int) -> None:
        """One row may be longer than any memory can hold: that is known before it meets anybody."""
        least = side.memory.least_bytes(side.schema, rows, side.memory.width) + heap
        fixed = sum(self._m.budget.parts().get(part, 0) for part in ("transfer", "work", "directory", "input buffer"))
        most = self._sizes.total - fixed - 2 * self._sizes.width * 16
        if (rows == 1 and heap > self._sizes.block and not self._widen(heap)) or least > most:
            transfer = self._m.transfer.nbytes
            enough = self._sizes.total - most + max(0, _BLOCKS * heap - transfer) + 2 * least
            raise BudgetExceededError(
                f"{side.name}: a row of {format_size(heap)} does not fit into "
                f"{format_size(self._sizes.total)} of memory; for rows of that size it takes about "
                f"{format_size(enough)}"
            )

    def _widen(self, heap: int) -> bool:
        """A row longer than a block: buffers for blocks have to take it."""
        wanted = _BLOCKS * heap
        return wanted <= self._m.transfer.nbytes or self._m.transfer.try_resize(wanted)

    def _make_room(self, side: Side, codes: Codes, heap: int) -> Batches:
        """Flush until there is room for rows of these codes."""
        m, other = self._m, self._m.sides[1 - side.number]
        needed = len(codes) * side.memory.slot_bytes + heap
        while not side.memory.make_room(codes, heap):
            if other.memory.idle_bytes > max(needed, other.memory.nbytes // 16):
                other.memory.pack()
            elif len(side.memory) or len(other.memory):
                yield from self._flushing.flush()
            elif side.memory.idle_bytes or other.memory.idle_bytes:
                side.memory.pack()
                other.memory.pack()
            else:
                raise BudgetExceededError(
                    f"{side.name}: {len(codes):,} rows of {format_size(needed)} do not fit into "
                    f"{format_size(m.budget.total)} of memory beside buffers and {m.metrics.flushes:,} flushed blocks"
                )
