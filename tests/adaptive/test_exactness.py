"""Every algorithm gives exactly the join, whatever the schedule, the budget and the block."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adaptive.join import StreamJoin
from millrace.adaptive.pair.pair_algorithms import ALGORITHMS
from millrace.core.errors import BudgetExceededError, BudgetTooSmallError
from millrace.testing.strategies import examples

pytestmark = pytest.mark.sampled(4)

LEFT = pa.schema([("k", pa.int64()), ("l", pa.int32()), ("text", pa.string())])
RIGHT = pa.schema([("k", pa.int64()), ("r", pa.int32())])
SPILLING = [name for name, algorithm in ALGORITHMS.items() if algorithm.spills]
ORDERED = [name for name, algorithm in ALGORITHMS.items() if algorithm.ordered]


def rows_of(seed: int, count: int, domain: int, nulls: bool, skewed: bool) -> list[int | None]:
    random = np.random.default_rng(seed)
    keys = random.integers(0, domain, count)
    if skewed:
        keys[random.random(count) < 0.7] = domain // 2
    return [None if nulls and random.random() < 0.1 else int(key) for key in keys]


def left_batch(keys: list[int | None], start: int) -> pa.RecordBatch:
    texts = [None if i % 7 == 0 else "x" * (i % 23) for i in range(start, start + len(keys))]
    numbers = pa.array(range(start, start + len(keys)), pa.int32())
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), numbers, pa.array(texts, pa.string())], schema=LEFT)


def right_batch(keys: list[int | None], start: int) -> pa.RecordBatch:
    numbers = pa.array(range(start, start + len(keys)), pa.int32())
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), numbers], schema=RIGHT)


def expected(
    left: list[int | None], right: list[int | None], how: str, band: tuple[int, int] | None
) -> Counter[tuple[Any, ...]]:
    """Numbers of the rows that belong together, by looking at every pair."""
    low, high = band or (0, 0)
    pairs = [
        (i, j)
        for (i, a), (j, b) in itertools.product(enumerate(left), enumerate(right))
        if a is not None and b is not None and low <= b - a <= high
    ]
    lefts, rights = {i for i, _ in pairs}, {j for _, j in pairs}
    if how == "semi":
        return Counter((i,) for i in lefts)
    if how == "anti":
        return Counter((i,) for i in range(len(left)) if i not in lefts)
    rows: list[tuple[Any, ...]] = [*pairs]
    if how in ("left", "full"):
        rows += [(i, None) for i in range(len(left)) if i not in lefts]
    if how in ("right", "full"):
        rows += [(None, j) for j in range(len(right)) if j not in rights]
    return Counter(rows)


@dataclass(frozen=True)
class Case:
    seed: int
    left: int
    right: int
    domain: int
    nulls: bool
    skewed: bool
    extra: int
    steps: tuple[tuple[str, int], ...]
    output_rows: int

    def inputs(self) -> tuple[list[int | None], list[int | None]]:
        return (
            rows_of(self.seed, self.left, self.domain, self.nulls, self.skewed),
            rows_of(self.seed + 1, self.right, self.domain, self.nulls, self.skewed),
        )


steps = st.lists(
    st.tuples(st.sampled_from(["left", "right", "left", "right", "idle", "keep"]), st.integers(0, 60)),
    min_size=1,
    max_size=30,
).map(tuple)
cases = st.builds(
    Case,
    seed=st.integers(0, 2**16),
    left=st.integers(0, 150),
    right=st.integers(0, 150),
    domain=st.sampled_from([1, 6, 60, 400]),
    nulls=st.booleans(),
    skewed=st.booleans(),
    extra=st.sampled_from([0, 0, 1000, 4000, 12_000, 100_000]),
    steps=steps,
    output_rows=st.sampled_from([100, 65_536]),
)


def least_memory(algorithm: str, **options: Any) -> int:
    with pytest.raises(BudgetTooSmallError) as error:
        StreamJoin(on="k", algorithm=algorithm, memory=1, **options).bind(left=LEFT, right=RIGHT)
    guess: int = error.value.minimum
    while True:
        try:
            StreamJoin(on="k", algorithm=algorithm, memory=guess, **options).bind(left=LEFT, right=RIGHT)
            return guess
        except BudgetTooSmallError as again:
            guess = again.minimum


def joined(case: Case, algorithm: str, how: str = "inner", band: tuple[int, int] | None = None) -> StreamJoin:
    """Run a case, checking the join after every call, and compare."""
    options: dict[str, Any] = {"how": how, "band": band, "suffix": "_r", "output_rows": case.output_rows}
    memory = least_memory(algorithm, how=how, band=band, suffix="_r") + case.extra
    left, right = case.inputs()

    def fresh() -> StreamJoin:
        join = StreamJoin(on="k", algorithm=algorithm, memory=memory, **options)
        join.bind(left=LEFT, right=RIGHT)
        return join

    join = fresh()
    out: list[pa.RecordBatch] = []
    done = {"left": 0, "right": 0}
    rest = (("left", len(left)), ("right", len(right)))
    for what, rows in (*case.steps, *rest):
        if what in done:
            keys, start = (left, right)[what == "right"], done[what]
            batch = (left_batch, right_batch)[what == "right"](keys[start : start + rows], start)
            done[what] += len(batch)
            out += join.push(what, batch)
        elif what == "idle":
            out += join.idle()
        else:
            state = join.snapshot()
            join.close()
            join = StreamJoin(on="k", algorithm=algorithm, memory=memory, **options)
            join.restore(state)
        assert join.nbytes <= memory
        join.check_invariants()
    out += join.end("left" if case.seed % 2 else "right")
    out += join.finish()
    assert all(0 < len(batch) <= case.output_rows for batch in out)
    names = ["l"] if how in ("semi", "anti") else ["l", "r"]
    got = Counter(row for batch in out for row in zip(*(batch[name].to_pylist() for name in names), strict=True))
    assert got == expected(left, right, how, band)
    assert join.metrics.rows_out == sum(got.values())
    assert join.metrics.on_disk == join.metrics.in_memory == 0
    return join


@pytest.mark.parametrize("algorithm", SPILLING)
@examples(12)
@given(case=cases, how=st.sampled_from(["inner", "inner", "left", "right", "full", "semi", "anti"]))
def test_equal_keys(algorithm: str, case: Case, how: str) -> None:
    joined(case, algorithm, how)


@pytest.mark.parametrize("algorithm", [name for name in ORDERED if name in SPILLING])
@examples(10)
@given(
    case=cases, how=st.sampled_from(["inner", "full", "anti"]), ends=st.tuples(st.integers(-9, 9), st.integers(0, 9))
)
def test_bands(algorithm: str, case: Case, how: str, ends: tuple[int, int]) -> None:
    joined(case, algorithm, how, (ends[0], ends[0] + ends[1]))


@examples(8)
@given(case=cases, how=st.sampled_from(["inner", "full"]))
def test_symmetric(case: Case, how: str) -> None:
    join = joined(replace(case, extra=200_000), "shj", how)
    assert join.metrics.bytes_written == 0


def test_symmetric_needs_memory() -> None:
    join = StreamJoin(on="k", algorithm="shj", memory=least_memory("shj"))
    with pytest.raises(BudgetExceededError, match="such as diner"):
        list(join.push("left", left_batch(list(range(500)), 0)))
