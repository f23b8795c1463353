"""StreamJoin beyond plain integers: keys of other types, bands, errors, and what must not be forgotten."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.adaptive.flush.buckets import choose_pair
from millrace.adaptive.flush.regions import ThreeRegions
from millrace.adaptive.inputs.joined_history import JoinedHistory, LogicalClock
from millrace.adaptive.inputs.pair_inputs import PairInputs
from millrace.adaptive.pair.pair_algorithms import ALGORITHMS
from millrace.core.errors import BudgetExceededError, BudgetTooSmallError, ConfigError, SchemaError, StateError
from millrace.rows.key_codes import KeyCoder


def run(join: mr.StreamJoin, left: pa.RecordBatch, right: pa.RecordBatch, rows: int = 17) -> Counter[tuple[Any, ...]]:
    """Push both inputs in turns, with an idle call now and then; the numbers of the rows that came out."""
    out: list[pa.RecordBatch] = []
    for at in range(0, max(len(left), len(right)), rows):
        out += join.push("left", left.slice(at, rows))
        out += join.push("right", right.slice(at, rows))
        if at % 3 == 0:
            out += join.idle()
        assert join.nbytes <= join.budget.total
    out += join.finish()
    return Counter((row["l"], row["r"]) for batch in out for row in batch.to_pylist())


def inputs(left: pa.Array, right: pa.Array) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return (
        pa.record_batch({"k": left, "l": pa.array(range(len(left)))}),
        pa.record_batch({"k": right, "r": pa.array(range(len(right)))}),
    )


def pairs(left: list[Any], right: list[Any], belongs: Callable[[Any, Any], bool]) -> Counter[tuple[int, int]]:
    return Counter(
        (i, j)
        for i, a in enumerate(left)
        for j, b in enumerate(right)
        if a is not None and b is not None and belongs(a, b)
    )


def random_keys(kind: str, count: int, seed: int) -> list[Any]:
    numbers = np.random.default_rng(seed).integers(0, 30, count).tolist()
    make: dict[str, Callable[[int], Any]] = {
        "string": lambda n: f"key {n}",
        "float": lambda n: -0.0 if n == 0 and seed % 2 else n / 8 - 1.5,
        "decimal": lambda n: Decimal(n) / 4,
        "date": lambda n: date(2020, 1, 1) + timedelta(days=n),
        "int": lambda n: n - 15,
    }
    return [None if n == 7 else make[kind](n) for n in numbers]


TYPES = {"string": pa.string(), "float": pa.float64(), "decimal": pa.decimal128(9, 2), "date": pa.date32()}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("algorithm", ["diner", "xjoin"])
def test_keys_of_other_types(kind: str, algorithm: str) -> None:
    left, right = random_keys(kind, 250, 2), random_keys(kind, 270, 3)
    batches = inputs(pa.array(left, TYPES[kind]), pa.array(right, TYPES[kind]))
    join = mr.StreamJoin(on="k", algorithm=algorithm, memory=17_000 if algorithm == "diner" else 30_000)
    assert run(join, *batches) == pairs(left, right, lambda a, b: bool(a == b))
    assert join.metrics.spilled_rows


@pytest.mark.parametrize(
    ("kind", "band"),
    [
        ("float", (-0.1, 0.25)),
        ("float", (-math.inf, -2.0)),
        ("decimal", (Decimal("-0.3"), 0.5)),
        ("date", (timedelta(days=-1), timedelta(hours=30))),
    ],
)
@pytest.mark.parametrize("algorithm", ["diner", "pmj"])
def test_bands_of_other_types(kind: str, band: tuple[Any, Any], algorithm: str) -> None:
    left, right = random_keys(kind, 150, 4), random_keys(kind, 130, 5)
    batches = inputs(pa.array(left, TYPES[kind]), pa.array(right, TYPES[kind]))
    join = mr.StreamJoin(on="k", algorithm=algorithm, memory=16_000, band=band, suffix="_r")
    low, high = (Decimal(str(edge)) for edge in band) if kind == "decimal" else band
    assert run(join, *batches) == pairs(left, right, lambda a, b: bool(low <= b - a <= high))


def test_composite_keys_and_hashes_that_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal codes are not enough where codes are hashes."""
    left = pa.record_batch({"a": [1, 1, 2, None] * 20, "b": ["x", "y", "x", "x"] * 20, "l": range(80)})
    right = pa.record_batch({"a": pa.array([1, 2, 2] * 20, pa.int32()), "b": ["x", "x", "y"] * 20, "r": range(60)})
    kinds = [list(zip(batch["a"].to_pylist(), batch["b"].to_pylist(), strict=True)) for batch in (left, right)]
    truth = pairs(kinds[0], kinds[1], lambda a, b: None not in a and a == b)
    for clash in (False, True):
        if clash:
            monkeypatch.setattr(KeyCoder, "_hash", lambda self, columns: np.zeros(len(columns[0].array), np.int64))
        for algorithm in ("diner", "hmj"):
            assert run(mr.StreamJoin(on=["a", "b"], algorithm=algorithm, memory=27_000), left, right) == truth


def test_the_ends_of_int64() -> None:
    ends = [-(2**63), -(2**63) + 1, 0, 2**63 - 2, 2**63 - 1]
    batches = inputs(pa.array(ends), pa.array(ends))
    for low, high in ((0, 1), (-1, 0), (-(2**62), 2**62), (2**63 - 1, 2**63 - 1), (2**63 - 1, math.inf)):
        join = mr.StreamJoin(on="k", memory=16_000, band=(low, high), suffix="_r")
        truth = Counter((i, j) for i, a in enumerate(ends) for j, b in enumerate(ends) if low <= b - a <= high)
        assert run(join, *batches, rows=1) == truth


def test_a_band_of_nothing_is_equality() -> None:
    left, right = random_keys("int", 200, 6), random_keys("int", 200, 7)
    batches = inputs(pa.array(left), pa.array(right))
    equal = run(mr.StreamJoin(on="k", memory=16_000), *batches)
    assert run(mr.StreamJoin(on="k", memory=16_000, band=(0, 0), suffix="_r"), *batches) == equal


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_the_same_run_twice(algorithm: str) -> None:
    batches = inputs(pa.array(random_keys("int", 400, 8)), pa.array(random_keys("int", 400, 9)))

    def once() -> tuple[list[Any], dict[str, Any]]:
        join = mr.StreamJoin(on="k", algorithm=algorithm, memory=60_000 if algorithm == "shj" else 30_000)
        out = [*join.push("left", batches[0]), *join.push("right", batches[1]), *join.idle(), *join.finish()]
        return [row for batch in out for row in batch.to_pylist()], join.metrics.as_dict()

    assert once() == once()


@pytest.mark.parametrize("algorithm", ["diner", "hmj", "pmj"])
def test_rows_longer_than_a_block(algorithm: str) -> None:
    left, right = random_keys("int", 120, 14), random_keys("int", 120, 15)
    batches = inputs(pa.array(left), pa.array(right))
    texts = pa.array(["x" * (5000 if i % 10 == 0 else i) for i in range(120)])
    wide = pa.RecordBatch.from_arrays([*batches[0].columns, texts], names=["k", "l", "text"])
    join = mr.StreamJoin(on="k", algorithm=algorithm, memory=120_000, block=512)
    assert run(join, wide, batches[1]) == pairs(left, right, lambda a, b: bool(a == b))
    with pytest.raises(BudgetExceededError, match=r"a row of 1\.0 MB"):
        list(
            mr.StreamJoin(on="k", memory=120_000).push("left", wide.slice(0, 1).set_column(2, "text", [["x" * 10**6]]))
        )


def test_nobody_goes_on_after_rows_had_no_room() -> None:
    left, _ = inputs(pa.array(range(2000)), pa.array([1]))
    join = mr.StreamJoin(on="k", algorithm="shj", memory=20_000)
    with pytest.raises(BudgetExceededError, match="such as diner"):
        list(join.push("left", left))
    with pytest.raises(StateError, match="ran out of memory"):
        join.finish()


def test_hmj_vector() -> None:
    left, right = np.array([(4, 12), (11, 13), (13, 10), (6, 4), (25, 2)]).T
    assert [choose_pair(left, right, a, b) for a, b in ((10, 0.25), (10, 0.10), (1, 0.10))] == [1, 2, 4]


def test_run_reads_in_turns_and_removes_its_files(tmp_path: Path) -> None:
    batches = inputs(pa.array(random_keys("int", 300, 10)), pa.array(random_keys("int", 300, 11)))
    join = mr.StreamJoin(on="k", memory=16_000, spill=tmp_path)
    tables = [pa.Table.from_batches([batch.slice(at, 50) for at in range(0, 300, 50)]) for batch in batches]
    out = list(join.run(left=tables[0], right=tables[1]))
    assert join.metrics.spilled_rows
    assert sum(len(batch) for batch in out) == join.metrics.rows_out
    assert join.metrics.rows_arriving < join.metrics.rows_out
    assert not list(tmp_path.iterdir())
    join.close()


def test_diner_hands_over_after_one_block() -> None:
    """Input waits for the join of one block with a chunk that is in memory already, however much is on disk."""
    left, right = inputs(pa.array(np.arange(3000) % 700), pa.array(np.arange(3000) % 900))
    join = mr.StreamJoin(on="k", memory=60_000, block=1000, max_outer_blocks=3)
    for at in range(0, 3000, 100):
        list(join.push("left", left.slice(at, 100)))
        list(join.push("right", right.slice(at, 100)))
    largest = max(block.nbytes for side in join.engine.inputs.sides for block in side.disk.partitions[0])
    reads = []
    while join.work:
        before = join.metrics.bytes_read
        list(join.idle())
        reads.append(join.metrics.bytes_read - before)
        join.check_invariants()
    assert len(reads) > 20
    directory = 2 * 64 * 60  # a page of entries now and then
    assert max(reads) <= 4 * largest + directory
    assert list(join.idle()) == []


def test_diner_counts_what_regions_have_earned() -> None:
    """Joins of the regions, added up, are the pairs since the last flush, and regions hold all rows."""
    left, right = inputs(pa.array(np.arange(900) % 50), pa.array(np.arange(900) % 40))
    join = mr.StreamJoin(on="k", memory=40_000)
    policy = join.engine.flushing
    assert isinstance(policy, ThreeRegions)
    for at in range(0, 900, 10):
        for side, batch in (("left", left), ("right", right)):
            flushes, joins = join.metrics.flushes, [int(regions.joins.sum()) for regions in policy.regions]
            pairs_found = sum(len(out) for out in join.push(side, batch.slice(at, 10)))
            for number, regions in enumerate(policy.regions):
                codes = join.engine.inputs.sides[number].memory.entries()[0]
                if regions.divided:
                    counted = [int((codes <= regions.lower).sum()), 0, int((codes >= regions.upper).sum())]
                    counted[1] = len(codes) - sum(counted)
                    assert regions.rows_in(join.engine.inputs.sides[number].memory) == counted
                if join.metrics.flushes == flushes:
                    assert int(regions.joins.sum()) == joins[number] + pairs_found
    assert join.metrics.flushes > 20


# what must fail where a rule is left out


def spilled(algorithm: str, memory: int = 22_000) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[int, int]]]:
    left, right = random_keys("int", 260, 12), random_keys("int", 260, 13)
    join = mr.StreamJoin(on="k", algorithm=algorithm, memory=memory)
    return run(join, *inputs(pa.array(left), pa.array(right))), pairs(left, right, lambda a, b: bool(a == b))


def test_without_the_memory_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairInputs, "spill_rest", lambda self: None)
    got, truth = spilled("diner")
    assert got < truth


def test_without_probe_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JoinedHistory, "add_run", lambda self, side, until, when: None)
    got, truth = spilled("xjoin", 28_000)
    assert got > truth


def test_a_row_that_came_after_a_flush_has_not_met_who_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogicalClock, "tick", lambda self: 2**62)  # as if nobody left before the end
    got, truth = spilled("diner")
    assert got < truth


# errors


def test_what_cannot_work() -> None:
    left, right = inputs(pa.array([1]), pa.array([2]))
    with pytest.raises(ConfigError, match="expected one of"):
        mr.StreamJoin(on="k", algorithm="nested")
    with pytest.raises(ConfigError, match="how"):
        mr.StreamJoin(on="k", how="outer")
    with pytest.raises(ConfigError, match="cannot join on a band; use one of shj, pmj, diner"):
        mr.StreamJoin(on="k", algorithm="xjoin", band=(0, 1))
    with pytest.raises(ConfigError, match="one key column"):
        mr.StreamJoin(on=["k", "l"], band=(0, 1))
    with pytest.raises(BudgetTooSmallError, match="the least is"):
        mr.StreamJoin(on="k", memory=1000)
    with pytest.raises(ConfigError, match="unknown option"):
        mr.StreamJoin(on="k", fan_in=3)
    with pytest.raises(SchemaError, match="no key column 'q'"):
        list(mr.StreamJoin(on="q").push("left", left))
    with pytest.raises(SchemaError, match="suffix='_right'"):
        mr.StreamJoin(on="k", band=(0, 1)).bind(left=left.schema, right=right.schema)
    with pytest.raises(SchemaError, match="cast one of them"):
        mr.StreamJoin(on="k").bind(left=left.schema, right=pa.schema([("k", pa.string())]))
    with pytest.raises(SchemaError, match="numbers, dates or times"):
        mr.StreamJoin(on="k", band=(0, 1)).bind(left=pa.schema([("k", pa.string())]))
    with pytest.raises(ConfigError, match="timedelta"):
        mr.StreamJoin(on="k", band=(0, 1)).bind(left=pa.schema([("k", pa.date32())]))


def test_the_life_cycle() -> None:
    left, right = inputs(pa.array([1, 2]), pa.array([2, 3]))
    join = mr.StreamJoin(on="k", memory="1MB")
    with pytest.raises(ConfigError, match="'left', 'right'"):
        join.push("middle", left)
    unread = join.push("left", left)
    with pytest.raises(StateError):
        join.push("right", right)
    assert list(unread) == []
    assert list(join.end("left")) == []
    with pytest.raises(StateError, match="has ended"):
        join.push("left", left)
    assert [len(batch) for batch in join.push("right", right)] == [1]
    other = mr.StreamJoin(on="k", memory="1MB", algorithm="xjoin")
    with pytest.raises(StateError, match="the snapshot was taken from diner"):
        other.restore(join.snapshot())
    with pytest.raises(StateError, match="checksum"):
        mr.StreamJoin(on="k", memory="1MB").restore(join.snapshot()[:-1] + b"?")
    assert "diner" in join.explain()
    assert list(join.finish()) == []
    with pytest.raises(StateError):
        join.finish()


def test_an_input_that_never_came() -> None:
    left, right = inputs(pa.array([1, None]), pa.array([2]))
    assert list(mr.StreamJoin(on="k").run(left=[left], right=[])) == []
    with pytest.raises(SchemaError, match="bind"):
        list(mr.StreamJoin(on="k", how="left").run(left=[left], right=[]))
    join = mr.StreamJoin(on="k", how="left")
    join.bind(right=right.schema)
    assert [row["r"] for batch in join.run(left=[left], right=[]) for row in batch.to_pylist()] == [None, None]


def test_rows_leave_memory_for_the_blocks_that_are_kept_and_may_come_back() -> None:
    keys = np.arange(4000) * 7 % 1000
    left = pa.record_batch({"k": keys, "l": ["x" * 80] * 4000})
    right = pa.record_batch({"k": keys[::-1].copy(), "r": ["y" * 80] * 4000})
    join = mr.StreamJoin(on="k", memory=100_000, block=1000, max_outer_blocks=19)
    rows = 0
    for at in range(0, 4000, 50):
        for side, batch in (("left", left), ("right", right)):
            rows += sum(len(b) for b in join.push(side, batch.slice(at, 50)))
        if at % 1000 == 0 and at:
            own = join.engine.inputs.buffers.nbytes
            for _ in range(3):
                rows += sum(len(b) for b in join.idle())
                join.check_invariants()
            assert join.engine.inputs.buffers.nbytes > own, "room for 19 blocks, each of them twice"
            again = mr.StreamJoin(on="k", memory=100_000, block=1000, max_outer_blocks=19)
            again.restore(join.snapshot())
            assert again.engine.inputs.buffers.nbytes == own, "what is borrowed is not kept"
            again.check_invariants()
            join.close()
            join = again
            rows += sum(len(b) for b in join.push("left", left.slice(0, 0)))
            assert join.engine.inputs.buffers.nbytes == own
    rows += sum(len(b) for b in join.finish())
    assert rows == 16 * 1000


@pytest.mark.parametrize("block", [None, 300, 10_000])
@pytest.mark.parametrize("algorithm", [name for name, one in ALGORITHMS.items() if one.spills and name != "mjoin"])
def test_the_least_memory_that_is_named_will_do(algorithm: str, block: int | None) -> None:
    left = pa.table({"id": [i % 150 for i in range(300)], "l": ["x" * 20] * 300})
    right = pa.table({"id": [i % 200 for i in range(300)], "r": ["y" * 20] * 300})
    with pytest.raises(BudgetTooSmallError, match="and more once the columns of left and right are known"):
        mr.StreamJoin(on="id", algorithm=algorithm, memory=1, block=block)
    with pytest.raises(BudgetTooSmallError) as error:
        mr.StreamJoin(on="id", algorithm=algorithm, memory=_start(algorithm, block), block=block).bind(
            left=left.schema, right=right.schema
        )
    assert "more once" not in str(error.value)
    join = mr.StreamJoin(on="id", algorithm=algorithm, memory=error.value.minimum, block=block)
    found = sum(map(len, join.run(left=left, right=right)))
    assert found == sum(a == b for a in left["id"].to_pylist() for b in right["id"].to_pylist())


def _start(algorithm: str, block: int | None) -> int:
    """The least memory while no columns are known."""
    with pytest.raises(BudgetTooSmallError) as error:
        mr.StreamJoin(on="id", algorithm=algorithm, memory=1, block=block)
    return error.value.minimum


def test_rows_that_are_too_large_say_what_they_take() -> None:
    keys = [f"{i}" + "z" * 100_000 for i in range(6)]
    tables = {"left": pa.table({"id": keys, "l": range(6)}), "right": pa.table({"id": keys[3:], "r": range(3)})}
    with pytest.raises(BudgetExceededError, match="a join of rows of that size needs about 8") as error:
        list(mr.StreamJoin(on="id", memory="500kB").run(**tables))
    assert "0 kB" in str(error.value)
    assert sum(map(len, mr.StreamJoin(on="id", memory="900kB").run(**tables))) == 3
