"""The stateful part of ``join_streams`` without Spark, on a state of dictionaries: many cases in no time."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from test_carry_operator import FakeHandle

from millrace.core.errors import StateError
from millrace.spark.metrics.stream_join_metrics import stream_join_metrics
from millrace.spark.plans.band_buckets import BucketedBand
from millrace.spark.plans.pair_plan import SIDES, PairPlan
from millrace.spark.tasks.pack_rows import pack_pair_input
from millrace.spark.tasks.pair_join import PairJoin
from millrace.spark.tasks.pair_rows import PairRows
from millrace.spark.tasks.stream_join_operator import StreamJoinOperator
from millrace.spark.transport.batch_bytes import from_blob
from millrace.worker.row_files import read_rows

pytestmark = pytest.mark.sampled(4)

Matches = Callable[[Any, Any], bool]


def plan_of(
    left: pa.Schema, right: pa.Schema, keys: list[str], band: Any = None, shards: int = 3, memory: int = 1 << 20
) -> PairPlan:
    """Both sides have the same names for keys; the band is about column ``v``."""
    made = None if band is None else BucketedBand.of(band, left.field("v").type)
    return PairPlan(
        inputs=SIDES,
        schemas=(left.serialize().to_pybytes(), right.serialize().to_pybytes()),
        keys=tuple(tuple(side.get_field_index(key) for key in keys) for side in (left, right)),  # type: ignore[arg-type]
        key_types=pa.schema([left.field(key) for key in keys]).serialize().to_pybytes(),
        banded=None if band is None else (left.get_field_index("v"), right.get_field_index("v")),
        band=made,
        right_columns=(right.get_field_index("rid"),),
        names=tuple(range(shards)),
        memory=memory,
        sent=pa.schema([*left, right.field("rid")]).serialize().to_pybytes(),
    )


class World:
    """All shards of a join, with their states."""

    def __init__(self, plan: PairPlan) -> None:
        self.plan = plan
        self.states = {name: FakeHandle() for name in plan.names}
        self.numbers: Counter[str] = Counter()

    def micro_batch(self, left: list[pa.RecordBatch], right: list[pa.RecordBatch]) -> list[dict[str, Any]]:
        """What comes out when these come in."""
        sent = [
            batch
            for side, batches in enumerate((left, right))
            for batch in pack_pair_input(self.plan, side, iter(batches))
        ]
        table = pa.Table.from_batches(sent)
        out: list[dict[str, Any]] = []
        for name in sorted(set(table["__millrace_shard"].to_pylist())):
            rows = table.filter(pc.equal(table["__millrace_shard"], name)).to_pandas()
            operator = StreamJoinOperator(PairJoin(self.plan))
            operator.init(self.states[name])
            for given in operator.handleInputRows((name,), iter([rows]), None):
                line = given["__millrace"][0]
                if isinstance(line, str):
                    self.numbers.update(stream_join_metrics(SIDES).read(line))
                else:
                    out += as_rows(list(read_rows(iter([pa.RecordBatch.from_pandas(given)]))))
        return out


def as_rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def check(
    plan: PairPlan, left: list[pa.RecordBatch], right: list[pa.RecordBatch], like: Matches, seed: int = 0
) -> World:
    """Feed the batches in any order and grouping; after every micro-batch the output is the join of what has come."""
    dice = random.Random(seed)
    waiting = [(0, batch) for batch in left] + [(1, batch) for batch in right]
    dice.shuffle(waiting)
    world = World(plan)
    came: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
    got: list[dict[str, Any]] = []
    while waiting:
        now = [waiting.pop() for _ in range(min(len(waiting), dice.choice([1, 1, 2, 3])))]
        for side, batch in now:
            came[side].append(batch)
        got += world.micro_batch(*([batch for at, batch in now if at == side] for side in (0, 1)))
        expected = [{**a, "rid": b["rid"]} for a in as_rows(came[0]) for b in as_rows(came[1]) if like(a, b)]
        assert Counter(map(repr, got)) == Counter(map(repr, expected))
    assert got
    return world


def sides(columns: Callable[[np.random.Generator, int], dict[str, pa.Array]], batches: int = 6, rows: int = 25) -> Any:
    random = np.random.default_rng(3)
    return [
        [
            pa.record_batch({name: pa.array(np.arange(rows) + number * rows), **columns(random, rows)})
            for number in range(batches)
        ]
        for name in ("lid", "rid")
    ]


def nulled(values: Any, random: np.random.Generator, type_: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, type_, mask=random.random(len(values)) < 0.1)


@pytest.mark.parametrize("shards", [1, 4])
def test_one_key(shards: int) -> None:
    left, right = sides(lambda random, rows: {"k": nulled(random.integers(0, 30, rows), random)})
    plan = plan_of(left[0].schema, right[0].schema, ["k"], shards=shards)
    check(plan, left, right, lambda a, b: a["k"] is not None and a["k"] == b["k"])


def test_several_keys_whose_codes_are_hashes() -> None:
    def columns(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
        names = np.array(["a", "b", "ü", ""], object)
        return {
            "n": nulled(names[random.integers(0, 4, rows)], random),
            "k": nulled(random.integers(0, 5, rows), random),
        }

    left, right = sides(columns)
    plan = plan_of(left[0].schema, right[0].schema, ["n", "k"])
    check(plan, left, right, lambda a, b: None not in (a["n"], a["k"]) and (a["n"], a["k"]) == (b["n"], b["k"]))


def test_keys_that_share_a_code_do_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = sides(lambda random, rows: {"n": pa.array([f"name {x}" for x in random.integers(0, 30, rows)])})
    plan = plan_of(left[0].schema, right[0].schema, ["n"])
    real = plan.coder.codes
    monkeypatch.setattr(plan.coder, "codes", lambda columns: (real(columns)[0] % 3, None))
    check(plan, left, right, lambda a, b: a["n"] == b["n"])


@pytest.mark.parametrize("band", [(-3, 5), (0, 0), (2, 2), (-9, -4), (3, 11)])
@pytest.mark.parametrize("keys", [[], ["k"]])
def test_a_band_over_whole_numbers(band: tuple[int, int], keys: list[str]) -> None:
    def columns(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
        values = random.integers(-60, 60, rows)
        return {"v": nulled(values, random), "k": pa.array(random.integers(0, 2, rows))}

    left, right = sides(columns)

    def like(a: Any, b: Any) -> bool:
        near = None not in (a["v"], b["v"]) and band[0] <= b["v"] - a["v"] <= band[1]
        return near and all(a[key] == b[key] for key in keys)

    check(plan_of(left[0].schema, right[0].schema, keys, band), left, right, like)


def test_a_band_at_the_ends_of_64_bits() -> None:
    most, least = 2**63 - 1, -(2**63)
    values = [most, most - 1, most - 7, least, least + 1, least + 7, 0, -1]
    left, right = sides(
        lambda random, rows: {"v": pa.array(random.permutation(np.array(values, np.int64)))}, 3, len(values)
    )
    for band in [(-1, 1), (1, 6), (-7, -1), (0, 2**62), (-(2**62), 2**62)]:

        def like(a: Any, b: Any, low: int = band[0], high: int = band[1]) -> bool:
            return bool(low <= b["v"] - a["v"] <= high)

        check(plan_of(left[0].schema, right[0].schema, [], band), left, right, like)


@pytest.mark.parametrize("band", [(-0.1, 0.2), (0.0, 0.0), (0.3, 1e17), (-1e-300, 1e-300), (-1e308, 1e308)])
def test_a_band_over_doubles(band: tuple[float, float]) -> None:
    odd = [
        float("nan"),
        float("inf"),
        -float("inf"),
        -0.0,
        0.0,
        0.1,
        0.2,
        0.30000000000000004,
        1e16,
        1e17,
        -1e308,
        5e-324,
    ]

    def columns(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
        return {"v": nulled(np.concatenate([odd, random.integers(-9, 9, rows - len(odd)) / 10]), random)}

    left, right = sides(columns)

    def like(a: Any, b: Any) -> bool:
        return None not in (a["v"], b["v"]) and a["v"] + band[0] <= b["v"] <= a["v"] + band[1]

    check(plan_of(left[0].schema, right[0].schema, [], band), left, right, like)


def test_rounding_makes_no_crowds_of_copies() -> None:
    close = BucketedBand.of((1.1102230246251564e-16, 1.1102230246251568e-16), pa.float64())
    values = np.array([1.0, 1 - 2**-53, -1.0, 0.0, 1e300, 1e-300])
    assert len(close.copies(values)[0]) <= 4 * len(values)


@pytest.mark.parametrize("band", [None, (-2, 2)])
def test_many_chunks_are_merged_and_skipped(band: Any) -> None:
    def columns(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
        start = columns.calls = getattr(columns, "calls", 0) + 1  # type: ignore[attr-defined]
        return {"v": pa.array(start % 9 * 1_000 + random.integers(0, 2_000, rows)), "pad": pa.array(["x" * 40] * rows)}

    left, right = sides(columns, 9, 700)
    schemas = left[0].schema, right[0].schema
    plan = plan_of(*schemas, ["v"] if band is None else [], band, shards=2, memory=1 << 17)
    low, high = band or (0, 0)
    world = World(plan)
    got = []
    for pair in zip(left, reversed(right), strict=True):
        got += [(row["lid"], row["rid"]) for row in world.micro_batch([pair[0]], [pair[1]])]
    ours, theirs = (np.concatenate([batch.column("v").to_numpy() for batch in side]) for side in (left, right))
    apart = theirs[None, :] - ours[:, None]
    assert Counter(got) == Counter(
        zip(*map(np.ndarray.tolist, np.nonzero((low <= apart) & (apart <= high))), strict=True)
    )
    for handle in world.states.values():
        blobs = [blob for name in ("left", "right") for (blob,) in handle.states[name].map.values()]
        assert max(map(len, blobs)) < 2 * plan.chunk_bytes + 2_000
        assert len(blobs) > 20
        rows = [from_blob(blob) for blob in blobs]
        assert all((np.diff(batch.column(0).to_numpy()) >= 0).all() for batch in rows)
    assert world.numbers["chunks_skipped"] > world.numbers["chunks_read"] / 4
    assert world.numbers["rows_out"] == len(got)


def test_rows_that_cannot_match_are_not_kept() -> None:
    left, right = sides(lambda random, rows: {"k": pa.nulls(rows, pa.int64()), "v": pa.nulls(rows, pa.float64())}, 1)
    for keys, band in ((["k"], None), ([], (0, 1)), (["k"], (0, 1))):
        world = World(plan_of(left[0].schema, right[0].schema, keys, band))
        assert world.micro_batch(left, right) == []
        assert world.numbers["state_rows"] == world.numbers["left_in"] == 0


def test_wide_rows_travel_in_pieces() -> None:
    left, right = sides(lambda random, rows: {"k": pa.array([1] * rows), "pad": pa.array(["x" * 9_000] * rows)}, 1, 100)
    plan = plan_of(left[0].schema, right[0].schema, ["k"], shards=1, memory=1 << 20)
    blobs = [blob for batch in pack_pair_input(plan, 0, iter(left)) for blob in batch.column(2).to_pylist()]
    assert max(map(len, blobs)) < plan.block_bytes + 10_000
    assert len(World(plan).micro_batch(left, right)) == 10_000


def test_the_number_of_runs_stays_small() -> None:
    left, right = sides(lambda random, rows: {"k": pa.array(random.integers(0, 1_000, rows))}, 60, 5)
    world = World(plan_of(left[0].schema, right[0].schema, ["k"], shards=1))
    for batch in left:
        world.micro_batch([batch], [])
    assert len(world.states[0].states["left"].map) <= 10
    assert sum(len(from_blob(blob)) for (blob,) in world.states[0].states["left"].map.values()) == 300


def test_a_checkpoint_of_another_join_is_refused() -> None:
    left, right = sides(lambda random, rows: {"k": pa.array(random.integers(0, 9, rows))})
    world = World(plan_of(left[0].schema, right[0].schema, ["k"], shards=2))
    world.micro_batch(left[:1], [])
    other = World(plan_of(left[0].schema, right[0].schema, ["k"], shards=5))
    other.states.update(world.states)
    with pytest.raises(StateError, match="the checkpoint belongs to another join"):
        other.micro_batch([], right[1:2].copy())
    alone = right[0].filter(pa.array(plan_shards(other.plan, right[0]) == 4))
    with pytest.raises(StateError, match="the checkpoint belongs to another join"):
        other.micro_batch([], [alone])
    world.plan = plan_of(left[0].schema, right[0].schema, ["k"], shards=2, memory=1 << 22)
    assert world.micro_batch([], right[:1])


def plan_shards(plan: PairPlan, batch: pa.RecordBatch) -> Any:
    return plan.coder.shards(PairRows(plan).key_columns(batch, 1), plan.shards)


class OnDisk:
    """A map state in files, that looks how much memory is in use whenever it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most, self.nbytes = folder, 0, 0
        folder.mkdir()

    def look(self) -> None:
        self.most = max(self.most, pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0])

    def getValue(self, key: Any) -> Any:  # noqa: N802
        self.look()
        with self._open(key, "rb") as file:
            return (file.read(),)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self.look()
        with self._open(key, "wb") as file:
            file.write(value[0])
        self.nbytes += len(value[0])

    def removeKey(self, key: Any) -> None:  # noqa: N802
        self.nbytes -= len(self.getValue(key)[0])
        os.unlink(f"{self.folder}/{key[0]}")

    def _open(self, key: Any, mode: str) -> Any:
        return open(f"{self.folder}/{key[0]}", mode)  # a Path would be interned, and the table of those counted


@pytest.mark.parametrize("band", [None, (-2, 2)])
def test_memory_does_not_grow_with_the_state(tmp_path: Path, band: Any) -> None:
    memory, rows = 1 << 20, 1_000
    random = np.random.default_rng(5)

    def batch(name: str) -> pa.RecordBatch:
        pad = pa.array([f"{x:0100}" for x in range(rows)])
        return pa.record_batch({name: np.arange(rows), "v": random.integers(0, 1_000_000, rows), "pad": pad})

    plan = plan_of(batch("lid").schema, batch("rid").schema, [] if band else ["v"], band, shards=1, memory=memory)
    world = World(plan)
    state = {name: OnDisk(tmp_path / name) for name in ("left", "right")}
    world.states[0].states.update(state)  # type: ignore[arg-type]
    before = pa.total_allocated_bytes()
    for _ in range(24):
        world.micro_batch([batch("lid")], [batch("rid")])
    tracemalloc.start()  # everything is compiled now
    try:
        for _ in range(4):
            world.micro_batch([batch("lid")], [batch("rid")])
    finally:
        tracemalloc.stop()
    assert sum(side.nbytes for side in state.values()) > 6 * memory
    most = max(side.most for side in state.values()) - before
    arriving = 6 * batch("lid").nbytes  # both sides, as they came, packed, and in pandas
    assert most < memory + arriving, f"{most} bytes"
