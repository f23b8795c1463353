"""Output of tuples in the order in which they came, with master rows given by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from millrace.rows.columns import Indices
from millrace.semistream.output.output_columns import Batches, OutputRows
from millrace.semistream.output.parts import JoinParts
from millrace.semistream.row_numbers import NO_ROW
from millrace.semistream.stream_keys import Flags

Pieces = Iterator[tuple[Indices, Indices]]
"""Pairs of a tuple and a master row, several at a time, as two arrays: ascending places of tuples, and row numbers."""


def emit_in_sequence(
    parts: JoinParts, matched: Flags, pieces: Pieces, stream: Callable[[Indices], OutputRows]
) -> Batches:
    """Yield the output of tuples that leave, in the order in which they came.

    ``pieces`` yields pairs of a tuple's place and the number of a master row that matches. ``matched`` flags the tuples
    that have a match already; the flags of the tuples in ``pieces`` are set too.
    ``stream`` returns the stream's side of the output for tuples at given places.
    """
    output, how = parts.output, parts.spec.how
    done = 0
    for tuples, numbers in pieces:
        if not len(tuples):
            continue
        matched[tuples] = True
        if how == "left":
            stop = int(tuples[-1]) + 1
            unmatched = done + np.flatnonzero(~matched[done:stop])
            tuples, numbers = _with_unmatched(tuples, numbers, unmatched)
            done = stop
        if parts.spec.emits_master:
            master = parts.numbered.output_rows(output.master_columns, numbers)
            yield from output.emit(len(tuples), stream(tuples), master)
    if how in ("left", "anti"):
        unmatched = done + np.flatnonzero(~matched[done:])
        yield from output.emit(len(unmatched), stream(unmatched), None)
    elif how == "semi":
        tuples = np.flatnonzero(matched)
        yield from output.emit(len(tuples), stream(tuples), None)
    parts.metrics.matched += int(matched.sum())
    parts.metrics.unmatched += int((~matched).sum())


def _with_unmatched(tuples: Indices, numbers: Indices, unmatched: Indices) -> tuple[Indices, Indices]:
    """Return the tuples and row numbers of all pairs in order, with :data:`NO_ROW` for each unmatched tuple."""
    if not len(unmatched):
        return tuples, numbers
    tuples = np.concatenate([tuples, unmatched])
    order = np.argsort(tuples, kind="stable")
    return tuples[order], np.concatenate([numbers, np.full(len(unmatched), NO_ROW)])[order]
