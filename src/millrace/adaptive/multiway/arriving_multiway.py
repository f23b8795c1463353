"""The arriving phase of several inputs: a piece of one meets the rows of all others in memory, then takes its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millrace.adaptive.flush.miner_regions import RegionsOfAll
from millrace.adaptive.memory.pair_output import Batches
from millrace.adaptive.memory.row_places import Loose, Place
from millrace.adaptive.memory.sorted_rows import JOINED
from millrace.adaptive.memory_split import Sizes
from millrace.adaptive.multiway.relations import Relation, Several
from millrace.adaptive.pair.arriving_pair import Arriving
from millrace.adaptive.pair.pair_algorithms import Algorithm
from millrace.core.errors import BudgetExceededError
from millrace.core.sizes import format_size
from millrace.kernels import bands
from millrace.rows.arena import Arena


class TakingIn(Arriving):
    """Takes rows of several inputs in."""

    _m: Several

    def __init__(self, machinery: Several, flushing: Any, algorithm: Algorithm, sizes: Sizes) -> None:
        super().__init__(machinery, flushing, algorithm, sizes)
        self._m = machinery

    def _piece(self, number: int, piece: pa.RecordBatch) -> Batches:
        m, relation = self._m, self._m.sides[number]
        m.metrics.rows_in[relation.name] += len(piece)
        codes, valid = m.codes_of(number, piece)
        if valid is not None:
            m.metrics.null_keys += int(len(valid) - valid.sum())
            piece, codes = piece.filter(pa.array(valid)), codes[:, valid]
        if not len(piece):
            return
        heap = Arena.heap_bytes_of(piece.columns)
        self._check_fits(relation, len(piece), heap)
        arrival = m.clock.ticks(len(piece))
        stamps = np.arange(arrival, arrival + len(piece), dtype=np.int64)
        place = Loose(piece, codes)
        yield from self._meet(relation, place)
        ascending = [np.sort(each) for each in codes]
        yield from self._room(relation, ascending, heap)
        relation.memory.put(codes, piece.columns, stamps, place.source.bits)
        relation.arrived += len(piece)
        relation.came += m.partitions.counts(ascending[0])
        self._flushing.arrived(number, ascending[0])
        self._flushing.settle()

    def _meet(self, relation: Relation, own: Loose) -> Batches:
        """Combinations of new rows with rows of all other inputs in memory."""
        m = self._m
        if not all(len(each.memory) for each in m.sides if each is not relation):
            return
        places: list[Place] = [own if each is relation else each.place for each in m.sides]
        rows = np.arange(len(own), dtype=np.int32)
        for found in m.combinations(places, relation.number, rows, m.steps_from(relation.number), counted=True):
            yield from m.put(places, found)
            for place, each in zip(places, found, strict=True):
                bands.set_bits(place.source.bits, each, JOINED)
            if isinstance(self._flushing, RegionsOfAll):
                self._flushing.credit(places, found)

    def _widen(self, heap: int) -> bool:
        """A row longer than a block: buffers for blocks have to take it, if need be in the place of other rows."""
        m = self._m
        wanted = (2 + 2 * len(m.sides)) * heap
        held = sum(relation.memory.nbytes for relation in m.sides)
        if wanted + 2 * heap > m.transfer.nbytes + m.budget.available + held:
            return False
        while wanted > m.transfer.nbytes and not m.transfer.try_resize(wanted):
            if not any(len(relation.memory) for relation in m.sides):
                return False
            for _ in self._flushing.flush():
                pass
            for relation in m.sides:
                relation.memory.pack()
        return True

    def _room(self, relation: Relation, codes: list[Any], heap: int) -> Batches:
        """Flush until there is room for rows of these codes."""
        m = self._m
        needed = len(codes[0]) * relation.memory.slot_bytes + heap
        while not relation.memory.make_rooms(codes, heap):
            others = [each.memory for each in m.sides if each is not relation]
            loose = [each for each in others if each.idle_bytes > max(needed, each.nbytes // 16)]
            if loose:
                loose[0].pack()
            elif any(len(each.memory) for each in m.sides):
                yield from self._flushing.flush()
            elif any(each.memory.idle_bytes for each in m.sides):
                for each in m.sides:
                    each.memory.pack()
            else:
                raise BudgetExceededError(
                    f"{relation.name}: {len(codes[0]):,} rows of {format_size(needed)} do not fit into "
                    f"{format_size(m.budget.total)} of memory beside buffers and {m.metrics.flushes:,} flushed blocks"
                )
