"""A snapshot between two units of work on disk: what has been joined is known again, and which rows have a partner."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.adaptive.join import StreamJoin

_ROWS = 400
_OPTIONS: dict[str, dict[str, Any]] = {
    "diner": {"max_outer_blocks": 3},
    "hmj": {"fan_in": 2},
    "rpj": {"fan_in": 2},
    "xjoin": {},
}
_RANDOM = np.random.default_rng(6)
_KEYS = {"left": _RANDOM.integers(0, 150, _ROWS), "right": _RANDOM.integers(75, 225, _ROWS)}


def rows(side: str, start: int, stop: int) -> pa.RecordBatch:
    return pa.record_batch({"k": _KEYS[side][start:stop], side[0]: np.arange(start, stop)})


def truth(how: str) -> Counter[tuple[Any, ...]]:
    i, j = (each.tolist() for each in np.nonzero(_KEYS["left"][:, None] == _KEYS["right"]))
    if how == "semi":
        return Counter((row,) for row in set(i))
    if how == "anti":
        return Counter((row,) for row in set(range(_ROWS)) - set(i))
    alone = [(row, None) for row in set(range(_ROWS)) - set(i)], [(None, row) for row in set(range(_ROWS)) - set(j)]
    return Counter(chain(zip(i, j, strict=True), *alone))


def found(out: list[pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    names = [name for name in ("l", "r") if name in out[0].schema.names]
    return Counter(row for batch in out for row in zip(*(batch[name].to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("how", ["full", "semi", "anti"])
@pytest.mark.parametrize("algorithm", _OPTIONS)
def test_a_restart_between_units_changes_no_row(algorithm: str, how: str) -> None:
    def fresh() -> StreamJoin:
        return StreamJoin("k", algorithm, how=how, memory=26_000, block=600, **_OPTIONS[algorithm])

    join = fresh()
    out: list[pa.RecordBatch] = []
    for start in range(0, _ROWS, 40):
        for side in ("left", "right"):
            out += join.push(side, rows(side, start, start + 40))
    expected = truth(how)
    units = 0
    while join.work:
        out += join.idle()
        units += 1
        if algorithm in ("hmj", "rpj") and units % 4:
            continue  # their units are many and small
        again = fresh()
        again.restore(join.snapshot())
        again.check_invariants()
        assert found([*out, *again.finish()]) == expected, f"after {units} units"
        again.close()
    assert units > 1
    assert how == "anti" or join.metrics.rows_reactive
    assert found([*out, *join.finish()]) == expected
    assert join._area.blocks == 0, "nothing stays on disk"


@pytest.mark.parametrize("how", ["full", "semi", "anti"])
@pytest.mark.parametrize("interrupted", [False, True])
def test_work_on_disk_changes_no_row_whether_or_not_input_interrupts_it(interrupted: bool, how: str) -> None:
    """Blocks that are in memory meanwhile go when rows come in; which of their rows have a partner stays known."""
    join = StreamJoin("k", how=how, memory=26_000, block=600, max_outer_blocks=3)
    out: list[pa.RecordBatch] = []
    for start in range(0, _ROWS, 40):
        for side in ("left", "right"):
            out += join.push(side, rows(side, start, start + 40))
    units = 0
    while join.work:
        out += join.idle()
        units += 1
        if interrupted:
            out += join.push("left", rows("left", 0, 0))
    assert units > 10
    assert found([*out, *join.finish()]) == truth(how)
