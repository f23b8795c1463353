"""Output of algorithms in which no tuple waits: master rows are found through the index as soon as tuples arrive."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes
from millrace.semistream.intake import ArrivedTuples
from millrace.semistream.output.cache_hits import PIECE
from millrace.semistream.output.in_sequence import Pieces, emit_in_sequence
from millrace.semistream.output.output_columns import Batches
from millrace.semistream.output.parts import JoinParts


class IndexAnswers:
    """Joins pushed tuples with the master rows that the access policy finds through the index."""

    def __init__(self, parts: JoinParts) -> None:
        self._parts = parts

    def answer(self, arrived: ArrivedTuples, misses: Indices) -> Batches:
        """Yield the output of the tuples that the cache did not answer, in any order."""
        parts, output, keys = self._parts, self._parts.output, self._parts.binding.keys
        how, batch = parts.spec.how, arrived.batch
        all_miss = len(misses) == len(arrived.codes)
        matched = np.zeros(len(misses), np.bool_)
        for shard, places, rows in parts.access.rows_of(arrived.codes if all_miss else arrived.codes[misses], PIECE):
            mapped = parts.store.mapped(shard)
            tuples = places if all_miss else misses[places]
            if not keys.exact:
                same = keys.same(keys.of(batch, tuples), mapped.take(keys.master_columns, rows))
                places, tuples, rows = places[same], tuples[same], rows[same]
            if parts.residual is not None:
                passed = parts.residual.of_pushed(batch, tuples, mapped, rows)
                places, tuples, rows = places[passed], tuples[passed], rows[passed]
            matched[places] = True
            if parts.spec.emits_master:
                yield from output.emit(len(rows), output.pushed(batch, tuples), output.mapped(mapped, rows))
        parts.metrics.matched += int(matched.sum())
        parts.metrics.unmatched += int((~matched).sum())
        if how == "semi":
            yield from output.emit(int(matched.sum()), output.pushed(batch, misses[matched]), None)
        elif how in ("left", "anti"):
            yield from output.emit(int((~matched).sum()), output.pushed(batch, misses[~matched]), None)

    def answer_in_sequence(self, arrived: ArrivedTuples) -> Batches:
        """Yield the output of all pushed tuples, in the order in which they came."""
        codes, valid = arrived.codes, arrived.valid
        known = np.arange(len(codes)) if valid is None else np.flatnonzero(valid)
        pieces = self._pieces(arrived.batch, codes[known], known)
        stream = partial(self._parts.output.pushed, arrived.batch)
        yield from emit_in_sequence(self._parts, np.zeros(len(codes), np.bool_), pieces, stream)

    def _pieces(self, batch: pa.RecordBatch, codes: Codes, known: Indices) -> Pieces:
        """Yield places of tuples, ascending, with numbers of their master rows, about :data:`PIECE` rows at a time.

        ``known`` are the places of the tuples whose key is not null, ``codes`` their key codes.
        """
        store, keys = self._parts.store, self._parts.binding.keys
        counts = np.ones(len(codes), np.int64)
        if not store.unique:
            counts = self._parts.access.row_counts(codes)
        ends, at = np.cumsum(counts), 0
        while at < len(codes):
            before = int(ends[at - 1]) if at else 0
            stop = max(at + 1, int(np.searchsorted(ends, before + PIECE, side="right")))
            pieces = self._found(batch, codes[at:stop], known[at:stop])
            for tuples, numbers in pieces if stop == at + 1 else _merged(pieces):
                if not keys.exact:
                    master_keys = self._parts.numbered.take(keys.master_columns, numbers)
                    same = keys.same(keys.of(batch, tuples), master_keys)
                    tuples, numbers = tuples[same], numbers[same]
                yield tuples, numbers
            at = stop

    def _found(self, batch: pa.RecordBatch, codes: Codes, known: Indices) -> Pieces:
        """Look key codes up in the index, shard by shard.

        ``known`` holds, for each code, its tuple's position in ``batch``. Yield the positions of tuples and the numbers
        of the master rows found for them.
        """
        parts = self._parts
        for shard, places, rows in parts.access.rows_of(codes, PIECE):
            if parts.residual is not None:
                passed = parts.residual.of_pushed(batch, known[places], parts.store.mapped(shard), rows)
                places, rows = places[passed], rows[passed]
            yield known[places], parts.numbered.of(shard, rows)


def _merged(pieces: Pieces) -> Pieces:
    """Yield pieces of several shards as one, in the order of the tuples."""
    every = list(pieces)
    if not every:
        return
    tuples = np.concatenate([tuples for tuples, _ in every])
    numbers = np.concatenate([numbers for _, numbers in every])
    order = np.argsort(tuples, kind="stable")
    yield tuples[order], numbers[order]
