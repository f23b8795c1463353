"""Sorted rows of the left and of the right, and every pair of them that matches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millrace.kernels.ranges import expand, narrow
from millrace.spark.meeting_plan import LEFT, RIGHT, MeetingPlan, SortedRows

_MOST_PAIRS = 65_536


def matches(plan: MeetingPlan, left: SortedRows, right: SortedRows) -> Iterator[pa.RecordBatch]:
    """Output rows, in batches of a fraction of the memory. The side with fewer rows looks its partners up."""
    left, right = _facing(left, right), _facing(right, left)
    if not len(left.rows) or not len(right.rows):
        return
    turned = len(left.rows) > len(right.rows)
    few, many = (right, left) if turned else (left, right)
    starts = np.searchsorted(many.codes, few.codes, "left").astype(np.int64)
    stops = np.searchsorted(many.codes, few.codes, "right").astype(np.int64)
    if few.spans is not None and many.spans is not None:
        narrow(*many.spans, *few.spans, starts, stops)
    most = _pairs_at_once(plan, left, right)
    ordered = np.arange(len(many.rows), dtype=np.int32)
    cursor = np.array([0, -1], np.int64)
    ours, theirs = np.empty(most, np.int32), np.empty(most, np.int32)
    while cursor[0] < len(starts):
        made = expand(starts, stops, ordered, cursor, ours, theirs)
        if not made:
            continue
        pairs = (theirs, ours) if turned else (ours, theirs)
        lefts, rights = (side.rows.take(pa.array(rows[:made])) for side, rows in zip((left, right), pairs, strict=True))
        if not plan.coder.exact:
            same = plan.coder.equal(plan.key_columns(lefts, LEFT, 1), plan.key_columns(rights, RIGHT, 1))
            if not same.all():
                lefts, rights = lefts.filter(pa.array(same)), rights.filter(pa.array(same))
        if len(lefts):
            yield plan.joined(lefts, rights)


def _facing(these: SortedRows, those: SortedRows) -> SortedRows:
    """The rows whose codes are not beyond those of the others."""
    if not len(these.codes) or not len(those.codes):
        return these.cut(0, 0)
    start = int(np.searchsorted(these.codes, those.codes[0], "left"))
    stop = int(np.searchsorted(these.codes, those.codes[-1], "right"))
    return these.cut(start, stop)


def _pairs_at_once(plan: MeetingPlan, left: SortedRows, right: SortedRows) -> int:
    width: int = sum(side.rows.nbytes // len(side.rows) + 1 for side in (left, right))
    return max(1, min(_MOST_PAIRS, plan.block_bytes // width))
