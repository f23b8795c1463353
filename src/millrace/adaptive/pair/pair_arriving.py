"""The arriving phase of a join of two inputs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.adaptive.array_types import Batches, Bits, Codes, Order
from millrace.adaptive.arriving_phase import ArrivingPhase
from millrace.adaptive.flush.flush_policy import FlushPolicy
from millrace.adaptive.inputs.pair_inputs import PairInputs, PairSide
from millrace.adaptive.memory.key_ordered_rows import JOINED, KeyOrderedRows
from millrace.adaptive.memory.row_sources import BatchRows
from millrace.adaptive.memory_split import LONG_ROW_BUFFERS, MemorySplit
from millrace.kernels import bands
from millrace.kernels.radix_sort import order_of
from millrace.rows.arena import Arena


class PairArrivingPhase(ArrivingPhase[KeyOrderedRows]):
    """Processes new rows of two inputs: joins them with the rows in memory, then stores them.

    Parameters
    ----------
    probes
        Whether new rows are joined with the other side's rows in memory before they are stored.
    """

    def __init__(self, inputs: PairInputs, flushing: FlushPolicy, split: MemorySplit, probes: bool) -> None:
        super().__init__(inputs, split)
        self._inputs, self._flushing, self._probes = inputs, flushing, probes

    def _piece(self, number: int, piece: pa.RecordBatch) -> Batches:
        inputs, side = self._inputs, self._inputs.sides[number]
        inputs.metrics.count_input(side.name, len(piece))
        columns = [piece.column(i) for i in inputs.matching.key_columns(number)]
        codes, valid = inputs.matching.codes(columns)
        if valid is not None:
            yield from self._null_keys(side, piece.filter(pa.array(~valid)))
            piece, codes = piece.filter(pa.array(valid)), codes[valid]
        if not len(piece):
            return
        order = order_of(codes)
        codes = codes[order]
        heap = Arena.heap_bytes_of(piece.columns)
        self._check_fits(side, len(piece), heap)
        bits = np.zeros(len(piece), np.uint8)
        if self._probes:
            arrival = inputs.clock.ticks(len(piece))
            yield from self._probe(side, piece, codes, order, bits)
        yield from self._make_room(side, codes, heap)
        if not self._probes:  # rows flushed to make room have not been joined with the new ones
            arrival = inputs.clock.ticks(len(piece))
        stamps = np.arange(arrival, arrival + len(piece), dtype=np.int64)
        side.memory.insert(codes, order, piece.columns, stamps, bits)
        side.count_arrived(len(piece), inputs.partitions.counts(codes))
        self._flushing.arrived(number, codes)
        self._flushing.stored()

    def _null_keys(self, side: PairSide, rows: pa.RecordBatch) -> Batches:
        """Emit rows with a null key if the join outputs unmatched rows of their side.

        While the output columns are not known, the rows are stored on disk.
        """
        inputs = self._inputs
        inputs.metrics.count_null_keys(len(rows))
        if not len(rows) or not inputs.keeps[side.number]:
            return
        if inputs.output is None:
            side.disk.write_null_keys(rows)
        else:
            source = BatchRows(rows, np.zeros(len(rows), np.uint8))
            yield from inputs.output.unmatched(side.number, source, np.arange(len(rows), dtype=np.int32))

    def _probe(self, side: PairSide, piece: pa.RecordBatch, codes: Codes, order: Order, bits: Bits) -> Batches:
        """Join new rows with the other side's rows in memory."""
        inputs, other = self._inputs, self._inputs.sides[1 - side.number]
        if not len(other.memory):
            return
        source = BatchRows(piece, bits)
        by_row = np.empty(len(codes), np.int64)
        by_row[order] = codes
        for found in other.memory.matches(*inputs.matching.ranges(side.number, codes), inputs.workspace):
            rows = order[found.rows].astype(np.int32)
            pairs = inputs.verified(side.number, source, rows, codes[found.rows], other.source, found.slots, found.keys)
            yield from inputs.emit(side.number, source, pairs.rows, other.source, pairs.slots)
            bands.set_bits(bits, pairs.rows, JOINED)
            bands.set_bits(other.memory.bits, pairs.slots, JOINED)
            self._flushing.matched(side.number, by_row[pairs.rows], pairs)

    # room

    def _widen_buffers(self, heap: int) -> bool:
        buffers, wanted = self._inputs.buffers, LONG_ROW_BUFFERS * heap
        return wanted <= buffers.nbytes or buffers.try_resize(wanted)

    def _make_room(self, side: PairSide, codes: Codes, heap: int) -> Batches:
        """Flush rows until new rows with these codes and ``heap`` bytes of strings fit; yield output of the flushes."""
        other = self._inputs.sides[1 - side.number]
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
                raise self._no_room(side, len(codes), needed)
