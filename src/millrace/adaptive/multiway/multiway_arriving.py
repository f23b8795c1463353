"""The arriving phase of a join of several inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.adaptive.array_types import Batches, Codes
from millrace.adaptive.arriving_phase import ArrivingPhase
from millrace.adaptive.flush.flush_policy import FlushPolicy
from millrace.adaptive.inputs.coded_rows import ArrivedRows, CodedRows
from millrace.adaptive.inputs.multiway_inputs import MultiwayInputs, Relation
from millrace.adaptive.memory.indexed_rows import IndexedRows
from millrace.adaptive.memory.key_ordered_rows import JOINED
from millrace.adaptive.memory_split import MemorySplit
from millrace.kernels import bands
from millrace.rows.arena import Arena


class MultiwayArrivingPhase(ArrivingPhase[IndexedRows]):
    """Processes new rows of several inputs: joins them with the rows in memory, then stores them."""

    def __init__(self, inputs: MultiwayInputs, flushing: FlushPolicy, split: MemorySplit) -> None:
        super().__init__(inputs, split)
        self._inputs, self._flushing = inputs, flushing

    def _piece(self, number: int, piece: pa.RecordBatch) -> Batches:
        inputs, relation = self._inputs, self._inputs.sides[number]
        inputs.metrics.count_input(relation.name, len(piece))
        codes, valid = inputs.codes_of(number, piece)
        if valid is not None:
            inputs.metrics.count_null_keys(int(len(valid) - valid.sum()))
            piece, codes = piece.filter(pa.array(valid)), codes[:, valid]
        if not len(piece):
            return
        heap = Arena.heap_bytes_of(piece.columns)
        self._check_fits(relation, len(piece), heap)
        arrival = inputs.clock.ticks(len(piece))
        stamps = np.arange(arrival, arrival + len(piece), dtype=np.int64)
        rows = ArrivedRows(piece, codes)
        yield from self._probe(relation, rows)
        ascending = [np.sort(each) for each in codes]
        yield from self._make_room(relation, ascending, heap)
        relation.memory.put(codes, piece.columns, stamps, rows.source.bits)
        relation.count_arrived(len(piece), inputs.partitions.counts(ascending[0]))
        self._flushing.arrived(number, ascending[0])
        self._flushing.stored()

    def _probe(self, relation: Relation, own: ArrivedRows) -> Batches:
        """Join new rows with rows of all other inputs in memory."""
        inputs = self._inputs
        if not all(len(each.memory) for each in inputs.sides if each is not relation):
            return
        parts: list[CodedRows] = [*inputs.in_memory]
        parts[relation.number] = own
        rows = np.arange(len(own), dtype=np.int32)
        steps = inputs.steps_from(relation.number)
        for found in inputs.combinations(parts, relation.number, rows, steps, counted=True):
            yield from inputs.emit(parts, found)
            for part, each in zip(parts, found, strict=True):
                bands.set_bits(part.source.bits, each, JOINED)
            self._flushing.combined(parts, found)

    # room

    def _widen_buffers(self, heap: int) -> bool:
        """Grow the buffers for a row with ``heap`` bytes of strings; return False if the budget is too small.

        Rows in memory are flushed if the buffers need their room.
        """
        inputs, buffers = self._inputs, self._inputs.buffers
        wanted = (2 + 2 * len(inputs.sides)) * heap
        held = sum(relation.memory.nbytes for relation in inputs.sides)
        if wanted + 2 * heap > buffers.nbytes + inputs.budget.available + held:
            return False
        while wanted > buffers.nbytes and not buffers.try_resize(wanted):
            if not inputs.any_in_memory:
                return False
            for _ in self._flushing.flush():
                pass
            inputs.pack()
        return True

    def _make_room(self, relation: Relation, codes: Sequence[Codes], heap: int) -> Batches:
        """Flush rows until new rows with these codes and ``heap`` bytes of strings fit; yield output of the flushes."""
        inputs = self._inputs
        needed = len(codes[0]) * relation.memory.slot_bytes + heap
        while not relation.memory.make_rooms(codes, heap):
            others = [each.memory for each in inputs.sides if each is not relation]
            loose = [each for each in others if each.idle_bytes > max(needed, each.nbytes // 16)]
            if loose:
                loose[0].pack()
            elif inputs.any_in_memory:
                yield from self._flushing.flush()
            elif any(each.memory.idle_bytes for each in inputs.sides):
                inputs.pack()
            else:
                raise self._no_room(relation, len(codes[0]), needed)
