"""Finds every pair of matching rows of two inputs whose rows are sorted by key code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.kernels.index_ranges import expand, narrow
from millrace.spark.plans.pair_plan import LEFT, RIGHT
from millrace.spark.state.keyed_runs import RunRows
from millrace.spark.tasks.pair_rows import PairRows

Places = npt.NDArray[np.int32]
Codes = npt.NDArray[np.int64]
_MOST_PAIRS = 65_536


def matches(layout: PairRows, left: RunRows, right: RunRows) -> Iterator[pa.RecordBatch]:
    """Yield the output rows of all matching pairs, in small batches. The smaller side is looked up in the larger."""
    left, right = _overlap(left, right), _overlap(right, left)
    if not len(left.rows) or not len(right.rows):
        return
    plan = layout.plan
    swapped = len(left.rows) > len(right.rows)
    few, many = (right, left) if swapped else (left, right)
    starts, stops = code_ranges(few.codes, many.codes)
    if few.spans is not None and many.spans is not None:
        narrow(*many.spans, *few.spans, starts, stops)
    ordered = np.arange(len(many.rows), dtype=np.int32)
    for found in pairs(starts, stops, ordered, pairs_in(plan.block_bytes, left.rows, right.rows)):
        picked = reversed(found) if swapped else found
        lefts, rights = (side.rows.take(pa.array(rows)) for side, rows in zip((left, right), picked, strict=True))
        if not plan.coder.exact:
            same = plan.coder.equal(layout.key_columns(lefts, LEFT, 1), layout.key_columns(rights, RIGHT, 1))
            if not same.all():
                lefts, rights = lefts.filter(pa.array(same)), rights.filter(pa.array(same))
        if len(lefts):
            yield layout.joined(lefts, rights)


def code_ranges(few: Codes, many: Codes) -> tuple[Codes, Codes]:
    """Return, for each code in ``few``, where the equal codes in the sorted array ``many`` start and where they end."""
    starts, stops = (np.searchsorted(many, few, side).astype(np.int64) for side in ("left", "right"))
    return starts, stops


def pairs(starts: Codes, stops: Codes, ordered: Places, most: int) -> Iterator[tuple[Places, Places]]:
    """Yield pairs of rows of two inputs as two arrays of row numbers, with at most ``most`` pairs at a time.

    Row i of the first input is paired with the rows ``ordered[starts[i]:stops[i]]`` of the second. The next pairs
    overwrite the arrays.
    """
    cursor = np.array([0, -1], np.int64)
    ours, theirs = np.empty(most, np.int32), np.empty(most, np.int32)
    while cursor[0] < len(starts):
        count = expand(starts, stops, ordered, cursor, ours, theirs)
        if count:
            yield ours[:count], theirs[:count]


def pairs_in(nbytes: int, *rows: pa.RecordBatch) -> int:
    """Return how many combinations of one row per batch fit into ``nbytes`` bytes, at least 1 and at most 65,536."""
    width: int = sum(each.nbytes // len(each) + 1 for each in rows)
    return max(1, min(_MOST_PAIRS, nbytes // width))


def _overlap(rows: RunRows, others: RunRows) -> RunRows:
    """Return the rows whose codes are within the range of the others' codes."""
    if not len(rows.codes) or not len(others.codes):
        return rows.cut(0, 0)
    start = int(np.searchsorted(rows.codes, others.codes[0], "left"))
    stop = int(np.searchsorted(rows.codes, others.codes[-1], "right"))
    return rows.cut(start, stop)
