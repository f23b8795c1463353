"""Rows in order of their codes, and every pair of them that matches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.kernels.index_ranges import expand, narrow
from millrace.spark.plans.pair_plan import LEFT, RIGHT, MeetingPlan
from millrace.spark.plans.stream_join_plan import SortedRows

Places = npt.NDArray[np.int32]
Codes = npt.NDArray[np.int64]
_MOST_PAIRS = 65_536


def matches(plan: MeetingPlan, left: SortedRows, right: SortedRows) -> Iterator[pa.RecordBatch]:
    """Output rows, in batches of a fraction of the memory. The side with fewer rows looks its partners up."""
    left, right = _facing(left, right), _facing(right, left)
    if not len(left.rows) or not len(right.rows):
        return
    turned = len(left.rows) > len(right.rows)
    few, many = (right, left) if turned else (left, right)
    starts, stops = ranges(few.codes, many.codes)
    if few.spans is not None and many.spans is not None:
        narrow(*many.spans, *few.spans, starts, stops)
    ordered = np.arange(len(many.rows), dtype=np.int32)
    for found in pairs(starts, stops, ordered, at_once(plan.block_bytes, left.rows, right.rows)):
        picked = reversed(found) if turned else found
        lefts, rights = (side.rows.take(pa.array(rows)) for side, rows in zip((left, right), picked, strict=True))
        if not plan.coder.exact:
            same = plan.coder.equal(plan.key_columns(lefts, LEFT, 1), plan.key_columns(rights, RIGHT, 1))
            if not same.all():
                lefts, rights = lefts.filter(pa.array(same)), rights.filter(pa.array(same))
        if len(lefts):
            yield plan.joined(lefts, rights)


def ranges(few: Codes, many: Codes) -> tuple[Codes, Codes]:
    """For each of the few codes, from where to where the many, which are sorted, have the same."""
    starts, stops = (np.searchsorted(many, few, side).astype(np.int64) for side in ("left", "right"))
    return starts, stops


def pairs(starts: Codes, stops: Codes, ordered: Places, most: int) -> Iterator[tuple[Places, Places]]:
    """Every row with all places in its range, so many at a time; places are looked up in ``ordered``."""
    cursor = np.array([0, -1], np.int64)
    ours, theirs = np.empty(most, np.int32), np.empty(most, np.int32)
    while cursor[0] < len(starts):
        made = expand(starts, stops, ordered, cursor, ours, theirs)
        if made:
            yield ours[:made], theirs[:made]


def at_once(nbytes: int, *rows: pa.RecordBatch) -> int:
    """How many rows made of one of each have so many bytes."""
    width: int = sum(each.nbytes // len(each) + 1 for each in rows)
    return max(1, min(_MOST_PAIRS, nbytes // width))


def _facing(these: SortedRows, those: SortedRows) -> SortedRows:
    """The rows whose codes are not beyond those of the others."""
    if not len(these.codes) or not len(those.codes):
        return these.cut(0, 0)
    start = int(np.searchsorted(these.codes, those.codes[0], "left"))
    stop = int(np.searchsorted(these.codes, those.codes[-1], "right"))
    return these.cut(start, stop)
