"""Several streams in the cells of a grid without Spark, on a state of dictionaries: many cases in no time."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_carry_operator import FakeHandle
from test_pair_join import OnDisk

from millrace.adaptive.conditions.join_tree import JoinTree
from millrace.core.errors import SchemaError, StateError
from millrace.spark.metrics.stream_join_metrics import stream_join_metrics
from millrace.spark.plans.hypercube_plan import HypercubePlan
from millrace.spark.streams.hypercube_parts import grid_parts
from millrace.spark.streams.named_inputs import hypercube_plan
from millrace.spark.tasks.hypercube_join import HypercubeJoin
from millrace.spark.tasks.pack_rows import pack_hypercube_input
from millrace.spark.tasks.stream_join_operator import StreamJoinOperator
from millrace.worker.row_files import read_rows

CHAIN = [("a.x", "b.x"), ("b.y", "c.y")]
STAR = [("a.x", "b.x"), ("a.y", "c.y"), ("a.z", "d.z")]
SNOWFLAKE = [("a.x", "b.x"), ("b.y", "c.y"), ("b.z", "d.z")]
ONE_ATTRIBUTE = [("a.x", "b.x"), ("b.x", "c.x"), ("c.x", "d.y")]
TWO_COLUMNS = [("a.x", "b.x"), ("a.y", "b.y"), ("b.z", "c.z")]
Inputs = dict[str, list[pa.RecordBatch]]


def plan_of(
    on: list[Any], schemas: Sequence[pa.Schema], shards: int = 6, memory: int = 1 << 20, sizes: Any = None
) -> HypercubePlan:
    tree = JoinTree.of(on)
    weights = [1.0] * len(schemas) if sizes is None else sizes
    return hypercube_plan(
        tree, schemas, weights, shards, lambda cells: tuple(range(cells)), memory, tree.output_schema(schemas, None)
    )


class World:
    """All cells of a join, with their states."""

    def __init__(self, plan: HypercubePlan, names: Sequence[str]) -> None:
        self.plan, self.names = plan, names
        self.states = {name: FakeHandle() for name in plan.names}
        self.numbers: Counter[str] = Counter()

    def micro_batch(self, came: Inputs) -> list[dict[str, Any]]:
        """What comes out when these come in."""
        return [row for batch in self.batches(came) for row in batch.to_pylist()]

    def batches(self, came: Inputs) -> Iterator[pa.RecordBatch]:
        sent = [
            packed
            for side, name in enumerate(self.names)
            for packed in pack_hypercube_input(self.plan, side, iter(came.get(name, [])))
        ]
        table = pa.Table.from_batches(sent)
        for cell in sorted(set(table["__millrace_shard"].to_pylist())):
            rows = table.filter(pc.equal(table["__millrace_shard"], cell)).to_pandas()
            operator = StreamJoinOperator(HypercubeJoin(self.plan))
            operator.init(self.states[cell])
            for each in operator.handleInputRows((cell,), iter([rows]), None):
                if isinstance(each["__millrace"][0], str):
                    self.numbers.update(stream_join_metrics(self.names).read(each["__millrace"][0]))
                else:
                    yield from read_rows(iter([pa.RecordBatch.from_pandas(each)]))


def joined(on: list[Any], came: Inputs) -> Counter[str]:
    """Numbers of rows that belong together, found by trying all."""
    names = JoinTree.of(on).names
    rows = [[row for batch in came[name] for row in batch.to_pylist()] for name in names]
    found: Counter[str] = Counter()

    def further(picked: dict[str, Any]) -> None:
        if len(picked) == len(names):
            found[repr([picked[name][f"{name}id"] for name in names])] += 1
            return
        name = names[len(picked)]
        for row in rows[len(picked)]:
            now = {**picked, name: row}
            ends = [[end.split(".") for end in pair] for pair in on]
            if all(
                now[one][x] is not None and now[one][x] == now[other][y]
                for (one, x), (other, y) in ends
                if name in (one, other) and one in now and other in now
            ):
                further(now)

    further({})
    return found


def check(on: list[Any], all_rows: Inputs, seed: int = 0, **options: Any) -> World:
    """Feed batches in any order and grouping; after every micro-batch the output is the join of what has come."""
    dice = random.Random(seed)
    names = JoinTree.of(on).names
    world = World(plan_of(on, [all_rows[name][0].schema for name in names], **options), names)
    waiting = [(name, batch) for name, batches in all_rows.items() for batch in batches]
    dice.shuffle(waiting)
    came: Inputs = {name: [] for name in names}
    got: Counter[str] = Counter()
    while waiting:
        now: Inputs = {}
        for _ in range(min(len(waiting), dice.choice([1, 1, 2, 5]))):
            name, batch = waiting.pop()
            now.setdefault(name, []).append(batch)
            came[name].append(batch)
        got.update(repr([row[f"{name}id"] for name in names]) for row in world.micro_batch(now))
        assert got == joined(on, came)
    assert got
    return world


def inputs(
    on: list[Any], column: Callable[[np.random.Generator, int], pa.Array], batches: int = 3, rows: int = 12
) -> Inputs:
    """Batches of all inputs, with the columns they are joined on."""
    generator = np.random.default_rng(3)
    tree = JoinTree.of(on)
    made: Inputs = {}
    for relation, name in enumerate(tree.names):
        columns = [each for group in tree.attributes[relation] for each in group]
        made[name] = [
            pa.record_batch(
                {f"{name}id": np.arange(rows) + n * rows, **{each: column(generator, rows) for each in columns}}
            )
            for n in range(batches)
        ]
    return made


def whole(generator: np.random.Generator, rows: int) -> pa.Array:
    return pa.array(generator.integers(0, 9, rows), mask=generator.random(rows) < 0.1)


def text(generator: np.random.Generator, rows: int) -> pa.Array:
    return pa.array([f"name {x}" for x in generator.integers(0, 9, rows)], mask=generator.random(rows) < 0.1)


@pytest.mark.parametrize("on", [CHAIN, STAR, SNOWFLAKE, ONE_ATTRIBUTE, TWO_COLUMNS])
@pytest.mark.parametrize(("column", "shards"), [(whole, 1), (whole, 12), (text, 6)])
def test_every_combination_once(on: list[Any], column: Any, shards: int) -> None:
    check(on, inputs(on, column), shards=shards)


def test_two_inputs_will_do() -> None:
    on = [("a.x", "b.x")]
    world = check(on, inputs(on, whole), shards=4)
    assert world.plan.parts == (4,)


def test_integers_of_different_widths_meet() -> None:
    some = inputs(CHAIN, whole)
    for batches in (some["a"], some["c"]):
        batches[:] = [batch.set_column(1, batch.schema.names[1], batch.column(1).cast(pa.int32())) for batch in batches]
    check(CHAIN, some)
    wrong = {**some, "c": [batch.set_column(1, "y", batch.column(1).cast(pa.string())) for batch in some["c"]]}
    with pytest.raises(SchemaError, match=r"on: c\.y is string, but by .* it must equal a column that is int64"):
        check(CHAIN, wrong)


def test_keys_that_share_a_code_do_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.rows.key_codes import KeyCoder

    real = KeyCoder.codes
    monkeypatch.setattr(KeyCoder, "codes", lambda self, columns: (real(self, columns)[0] % 3, None))
    check(CHAIN, inputs(CHAIN, text))


def test_rows_go_where_they_are_needed_and_nowhere_else() -> None:
    some = inputs(CHAIN, lambda generator, rows: pa.array(generator.integers(0, 1_000, rows)), 1, 500)
    names = JoinTree.of(CHAIN).names
    world = World(plan_of(CHAIN, [some[name][0].schema for name in names], shards=6, sizes=[3, 1, 2]), names)
    world.micro_batch(some)
    assert world.plan.parts == (3, 2)
    assert [world.numbers[f"{name}_in"] for name in names] == [1_000, 500, 1_500]
    assert world.numbers["state_rows"] == 3_000
    kept = [state.states["input1"].map for state in world.states.values()]
    assert len([each for each in kept if each]) == 6, "a row's cell follows from both of its columns"


def test_rows_without_a_value_are_not_kept() -> None:
    some = inputs(CHAIN, lambda generator, rows: pa.nulls(rows, pa.int64()), 1)
    names = JoinTree.of(CHAIN).names
    world = World(plan_of(CHAIN, [some[name][0].schema for name in names]), names)
    assert world.micro_batch(some) == []
    assert world.numbers["state_rows"] == 0


def test_many_chunks_and_blocks() -> None:
    def column(generator: np.random.Generator, rows: int) -> pa.Array:
        return pa.array(generator.integers(0, 500, rows))

    some = inputs(CHAIN, column, 6, 400)
    names = JoinTree.of(CHAIN).names
    plan = plan_of(CHAIN, [some[name][0].schema for name in names], shards=2, memory=1 << 17)
    world = World(plan, names)
    got: Counter[Any] = Counter()
    for number in range(6):
        now = {name: [some[name][number]] for name in names}
        got.update((row["aid"], row["bid"], row["cid"]) for row in world.micro_batch(now))
    a, b, c = (pa.Table.from_batches(some[name]) for name in names)
    expected = a.join(b, "x", join_type="inner").join(c, "y", join_type="inner")
    assert got == Counter(zip(*(expected[name].to_pylist() for name in ("aid", "bid", "cid")), strict=True))
    assert max(got.values()) == 1
    blobs = [
        blob
        for handle in world.states.values()
        for n in range(3)
        for (blob,) in handle.states[f"input{n}"].map.values()
    ]
    assert len(blobs) > 20
    assert world.numbers["chunks_skipped"] > 0


def test_a_checkpoint_of_another_grid_is_refused() -> None:
    some = inputs(CHAIN, whole)
    names = JoinTree.of(CHAIN).names
    schemas = [some[name][0].schema for name in names]
    world = World(plan_of(CHAIN, schemas, shards=6), names)
    world.micro_batch(some)
    other = World(plan_of(CHAIN, schemas, shards=6, sizes=[1_000, 10, 1]), names)
    other.states.update(world.states)
    with pytest.raises(StateError, match="the checkpoint belongs to another join"):
        other.micro_batch(some)


def test_memory_does_not_grow_with_the_state(tmp_path: Path) -> None:
    memory, rows = 1 << 20, 250
    generator = np.random.default_rng(5)

    def batch(name: str, *columns: str) -> pa.RecordBatch:
        pad = pa.array([f"{x:0300}" for x in range(rows)])
        keys = {column: generator.integers(0, 4_000, rows) for column in columns}
        return pa.record_batch({f"{name}id": np.arange(rows), f"{name}pad": pad, **keys})

    def came() -> Inputs:
        return {"a": [batch("a", "x")], "b": [batch("b", "x", "y")], "c": [batch("c", "y")]}

    first = came()
    world = World(plan_of(CHAIN, [first[name][0].schema for name in "abc"], shards=1, memory=memory), "abc")
    state = {f"input{number}": OnDisk(tmp_path / str(number)) for number in range(3)}
    world.states[0].states.update(state)  # type: ignore[arg-type]
    before = pa.total_allocated_bytes()
    found = 0
    for turn in range(16):
        if turn == 14:
            tracemalloc.start()  # everything is compiled now
        for side in state.values():
            side.most = 0
        found += sum(map(len, world.batches(came())))
    tracemalloc.stop()
    assert found > 1_000
    assert sum(side.nbytes for side in state.values()) > 3 * memory
    most = max(side.most for side in state.values()) - before
    arriving = 9 * batch("b", "x", "y").nbytes  # all three, as they came, packed, and in pandas
    assert most < memory + arriving, f"{most} bytes"


# the grid


def by_trying_all(had: list[frozenset[int]], sizes: list[int], dimensions: int, cells: int) -> float:
    """Rows in a cell of the best grid."""
    return min(
        sum(size / prod(parts[d] for d in mine) for mine, size in zip(had, sizes, strict=True))
        for parts in product(range(1, cells + 1), repeat=dimensions)
        if prod(parts) <= cells
    )


@settings(deadline=None)
@given(
    had=st.lists(st.frozensets(st.integers(0, 2), min_size=1), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 1_000), min_size=4, max_size=4),
    cells=st.integers(1, 16),
)
def test_no_grid_has_fewer_rows_in_a_cell(had: list[frozenset[int]], sizes: list[int], cells: int) -> None:
    had = [*had, frozenset(range(3))]
    sizes = [*sizes, 7][: len(had)]
    parts = grid_parts(had, sizes, 3, cells)
    assert prod(parts) <= cells
    load = sum(size / prod(parts[d] for d in mine) for mine, size in zip(had, sizes, strict=True))
    assert load == pytest.approx(by_trying_all(had, sizes, 3, cells))
