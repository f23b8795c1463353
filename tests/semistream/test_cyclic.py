"""How long tuples wait while the master passes by in turns: never longer than ``k`` says, also after b has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr

TUPLE = pa.record_batch({"key": [-1]})


def joined(store: mr.MasterStore, b: int, per_step: int | None = None) -> mr.SemiStreamJoin:
    """Return a join that makes one load a step, or so many."""
    options: dict[str, Any] = {} if per_step is None else {"l": per_step}
    algorithm = "meshjoin" if per_step is None else "r-meshjoin"
    join = mr.SemiStreamJoin(
        store, "key", "anti", algorithm=algorithm, memory="60kB", b=b, leave_early=False, **options
    )
    join.bind(TUPLE.schema)
    return join


def built(path: Path, rows: int, shards: int = 1) -> mr.MasterStore:
    return mr.MasterStore.build(pa.table({"key": range(rows)}), path / "s", "key", shards=shards)


def played(join: mr.SemiStreamJoin, calls: str, per_step: int | None = None) -> mr.SemiStreamJoin:
    """Make the calls, one after the other, then steps until no tuple waits; return the join it ends with."""
    for call in calls.split():
        name, _, b = call.partition("=")
        if name == "push":
            list(join.push(TUPLE))
        elif name == "step":
            list(join.step())
        elif name == "retune":
            join.retune(b=int(b))
        else:
            state = join.snapshot()
            join = joined(join.store, int(b), per_step)
            join.restore(state)
    for _ in range(100):
        if not join.metrics.waiting:
            break
        list(join.step())
    assert join.metrics.waiting == 0
    return join


@pytest.mark.parametrize(
    ("rows", "shards", "per_step", "b", "calls", "most"),
    [
        # b changes while no tuple waits, and the wheel is between two places of the grid: one load more than a turn has
        (13, 1, None, 7, "retune=7 step retune=2 push step", 8),
        (7, 1, 1, 6, "retune=3 push step", 3),
        # tuples that came with the old b cut loads of the new grid in two, for those too that come with the new
        (12, 1, None, 4, "step push step retune=10", 4),
        (11, 1, None, 3, "push step push step step push step retune=5 retune=2 push step push step", 8),
        # they enter on the new grid only
        (6, 1, None, 5, "push step retune=4 push step", 2),
        (9, 2, 3, 2, "retune=4 push step", 1),
        (14, 2, 2, 8, "push step retune=5", 1),
        # a step of several loads ends where the grid of steps does
        (6, 1, 3, 1, "retune=1 push step", 2),
        (10, 1, 2, 2, "step step step retune=6 push step push step push step push step", 1),
        (14, 2, 2, 3, "step step step push step retune=4", 2),
        (7, 1, 2, 1, "push step", 4),
        # the loads of earlier shards count, also a last one that is shorter than the others
        (9, 2, 3, 6, "push step step", 1),
        (14, 3, 3, 6, "push step step push step", 1),
        # a join with another b goes on where the wheel was, with tuples of the old grid
        (6, 1, None, 4, "step restore=5 push step push step", 3),
        (7, 1, None, 1, "step push step step restore=3 restore=6", 5),
        (5, 1, 1, 1, "push step restore=2", 4),
        (7, 1, 1, 2, "push step restore=5", 3),
        (8, 1, 1, 5, "step push step restore=8", 2),
        # the places are on the new grid by chance, but the tuple has waited longer than a turn of it
        (7, 2, 1, 1, "push step step step restore=6 push step push step push step", 4),
        # so it has here, although it has not waited for a whole turn
        (8, 3, None, 2, "push step step restore=8", 4),
    ],
)
def test_no_tuple_waits_longer_than_k_says(
    rows: int, shards: int, per_step: int | None, b: int, calls: str, most: int, tmp_path: Path
) -> None:
    join = played(joined(built(tmp_path, rows, shards), b, per_step), calls, per_step)
    assert join.metrics.waits.most == most
    assert most <= join.k, "a tuple waited longer than the join says that any can"
    join.check_invariants()


def test_k_is_that_of_the_two_loads_however_often_b_has_changed(tmp_path: Path) -> None:
    """A change is over two turns later: what k says then does not grow with every further one."""
    join = joined(built(tmp_path, 12), 4)
    for number in range(6):
        join.retune(b=(3, 4)[number % 2])
        for _ in range(12):
            list(join.push(TUPLE))
            list(join.step())
        assert join.metrics.waiting
    assert join.k == 3 + 4 + 1


def test_k_does_not_count_loads_that_no_tuple_has_waited_for(tmp_path: Path) -> None:
    join = joined(built(tmp_path, 12), 4)
    for b in (3, 4, 3, 4, 3):
        join.retune(b=b)
    assert join.k == 4 + 1
    list(join.push(TUPLE))
    join.retune(b=12)
    assert join.k == 4 + 1 + 1 + 1


def test_k_covers_the_waits_of_the_past(tmp_path: Path) -> None:
    join = played(joined(built(tmp_path, 12), 1), "push step")
    assert join.metrics.waits.most == 12
    join.retune(b=12)
    assert join.k == 12


def test_k_is_the_steps_of_a_turn_not_its_loads(tmp_path: Path) -> None:
    assert joined(built(tmp_path, 12), 2, 3).k == 2
