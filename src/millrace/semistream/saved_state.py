"""Saves and restores the state of a join: its waiting tuples and the progress of each.

Waiting tuples and their progress are hard state: a snapshot must hold all of them. The cache is soft state: it refills,
and a saved cache is used only if it is still valid.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from millrace.core.errors import BudgetExceededError
from millrace.core.metrics import JoinMetrics
from millrace.core.sizes import format_size
from millrace.rows.arena import Slots
from millrace.semistream.loop import JoinLoop
from millrace.semistream.output.output_order import cut
from millrace.semistream.snapshot_format import Progress, Tally, WaitingChunk

RESTORE_FAILED = "restore failed half-way"
"""Reason why a join cannot continue after the tuples of a snapshot did not fit."""


def progress(loop: JoinLoop, kind: str, metrics: JoinMetrics) -> Progress:
    """Return the progress of a join; ``kind`` is text that names its algorithm, kind of join, keys and condition."""
    return Progress(loop.parts.store.manifest.snapshot, kind, loop.access.turned, loop.steps, metrics.lasting())


def waiting_chunks(loop: JoinLoop) -> list[WaitingChunk]:
    """Return the chunks of waiting tuples, oldest first, with a tally of the master rows that each tuple has met."""
    return [WaitingChunk(start, step, *rows_at(loop, slots)) for start, step, slots in loop.room.queue()]


def rows_at(loop: JoinLoop, slots: Slots) -> tuple[pa.RecordBatch, Tally]:
    """Return the columns of the waiting tuples at these slots, and their tallies of master rows met."""
    schema = loop.order.waiting_schema
    arrays = loop.room.rows.take(range(len(schema)), slots)
    return pa.RecordBatch.from_arrays(arrays, schema=schema), tally_at(loop, slots)


def tally_at(loop: JoinLoop, slots: Slots) -> Tally:
    """Return for each waiting tuple how many master rows with its key code it has met, and whether one matched."""
    tally: Tally = loop.room.rows.marks["tally"][slots]
    return tally


def resume(loop: JoinLoop, metrics: JoinMetrics, progress: Progress, chunks: Iterable[WaitingChunk]) -> None:
    """Continue from saved progress with the waiting tuples of ``chunks``; raise an error if they do not fit."""
    loop.access.resume(progress.turned)
    loop.resume(progress.step)
    metrics.go_on_from(progress.counts)
    room = loop.room
    for chunk in chunks:
        columns = cut(chunk.rows, 0, len(chunk.rows))
        if not room.fits(columns):
            room.rows.trim()  # slots may have been reserved ahead
        if not room.fits(columns):
            total = format_size(loop.parts.budget.total)
            raise BudgetExceededError(f"restore: the waiting tuples do not fit in {total} of memory")
        codes = loop.order.codes_of(columns)
        room.admit(codes, columns, chunk.start, chunk.step)
        loop.access.on_admit(codes)
        room.rows.marks["tally"][room.chunks[-1].slots] = chunk.tally
    loop.access.on_resume(loop.steps - room.chunks[0].step if room.chunks else 0)


def cache_identity(loop: JoinLoop, algorithm: str, ordered: bool) -> str:
    """Return text that identifies master, algorithm and cached columns; a cache saved with other text is not loaded."""
    manifest, binding = loop.parts.store.manifest, loop.parts.binding
    shards = ",".join(shard.data.path for shard in manifest.shards)
    rows = " numbered" if ordered else ""
    return f"{manifest.snapshot} {shards} {algorithm} {binding.single} {binding.cached_columns}{rows}"
