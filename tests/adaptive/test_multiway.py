"""Joins of several inputs are exactly the join, whatever their tree, their schedule and their budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adaptive.join import StreamJoin
from millrace.adaptive.multiway.multiway_engine import MULTIWAY, MultiwayEngine
from millrace.adaptive.reactive import multiway_clean_up
from millrace.core.errors import BudgetTooSmallError, ConfigError, SchemaError, StateError
from millrace.rows.key_codes import KeyCoder
from millrace.testing.pair_oracle import Equal, Link, Near, oracle_multi
from millrace.testing.schedules import End, Idle, Push, Snapshot, schedules
from millrace.testing.strategies import examples

pytestmark = pytest.mark.sampled(4)


@dataclass(frozen=True)
class Shape:
    """Conditions, and the kind of every attribute."""

    on: tuple[tuple[Any, ...], ...]
    text: tuple[str, ...] = ()
    """Attributes of text; the others are whole numbers."""

    @property
    def inputs(self) -> dict[str, list[str]]:
        columns: dict[str, list[str]] = {}
        for condition in self.on:
            for end in condition[:2]:
                name, _, column = end.partition(".")
                columns.setdefault(name, [])
                if column not in columns[name]:
                    columns[name].append(column)
        return columns

    @property
    def links(self) -> list[Link]:
        return [Equal(*condition) if len(condition) == 2 else _near(*condition) for condition in self.on]


def _near(one: str, other: str, band: tuple[int, int]) -> Near:
    return Near(one, other, -band[0], band[1])


SHAPES = {
    "pair": Shape((("a.x", "b.x"),)),
    "chain of 3": Shape((("a.x", "b.x"), ("b.y", "c.y"))),
    "chain of 4": Shape((("a.x", "b.x"), ("b.y", "c.y"), ("c.z", "d.z"))),
    "text": Shape((("a.x", "b.x"), ("b.y", "c.y")), text=("y",)),
    "star": Shape((("a.x", "b.x"), ("a.y", "c.y"), ("a.z", "d.z"))),
    "snowflake": Shape((("c.y", "b.y"), ("a.x", "b.x"), ("d.z", "b.z"))),
    "one attribute": Shape((("a.x", "b.x"), ("c.x", "b.x"))),
    "one attribute of 4": Shape((("a.x", "b.x"), ("b.x", "c.x"), ("a.x", "d.x"))),
    "band": Shape((("a.x", "b.x", (-1, 2)), ("b.y", "c.y"))),
    "bands on one attribute": Shape((("a.x", "b.x", (0, 1)), ("b.x", "c.x", (-1, 0)))),
    "two columns": Shape((("a.x", "b.x"), ("b.y", "a.y"), ("b.y", "c.y"))),
    "two columns, one text": Shape((("b.z", "c.z"), ("a.x", "b.x"), ("a.y", "b.y")), text=("y",)),
    "two columns of all": Shape((("a.x", "b.x"), ("a.y", "b.y"), ("c.y", "b.y"), ("c.x", "b.x"))),
    "one column twice": Shape((("a.x", "b.x"), ("a.x", "b.y"), ("b.x", "c.x"))),
}
SIMPLE = ["pair", "one attribute", "one attribute of 4", "two columns of all"]


def table(
    shape: Shape, name: str, rows: int, domain: int, nulls: float, wide: int, rng: np.random.Generator
) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for column in shape.inputs[name]:
        gaps = rng.random(rows) < nulls
        keys = [None if gap else int(key) for key, gap in zip(rng.integers(0, domain, rows), gaps, strict=True)]
        if column in shape.text:
            columns[column] = pa.array([None if key is None else f"key {key}" for key in keys], pa.string())
        else:
            columns[column] = pa.array(keys, pa.int64())
    columns[f"{name}_row"] = pa.array(range(rows), pa.int32())
    columns[f"{name}_text"] = pa.array(["é" * int(n) for n in rng.integers(0, wide, rows)], pa.string())
    return pa.table(columns)


def numbers(tables: Mapping[str, pa.Table], batches: Sequence[pa.RecordBatch]) -> Counter[tuple[int, ...]]:
    """Combinations by the numbers of their rows."""
    names = [f"{name}_row" for name in tables]
    return Counter(row for batch in batches for row in zip(*(batch[name].to_pylist() for name in names), strict=True))


def expected(shape: Shape, tables: Mapping[str, pa.Table]) -> Counter[tuple[int, ...]]:
    found = oracle_multi(tables, shape.links, {f"{name}_row": f"{name}.{name}_row" for name in tables})
    return numbers(tables, found.to_batches())


def fresh(shape: Shape, tables: Mapping[str, pa.Table], algorithm: str, extra: int, **options: Any) -> StreamJoin:
    """A join with so many bytes more than the least."""
    memory = 1
    while True:
        try:
            join = StreamJoin(on=list(shape.on), algorithm=algorithm, memory=memory + extra, **options)
            join.bind(**{name: each.schema for name, each in tables.items()})
            return join
        except BudgetTooSmallError as error:
            memory = error.minimum


def one_batch(each: pa.Table) -> pa.RecordBatch:
    batches = each.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], each.schema)


@st.composite
def cases(draw: st.DrawFn, shapes: Sequence[str]) -> tuple[Shape, dict[str, pa.Table], list[Any], int]:
    shape = SHAPES[draw(st.sampled_from(shapes))]
    inputs = len(shape.inputs)
    domain = draw(st.sampled_from([1, 4, 15, 15, 40]))
    share = 1 if inputs == 2 else 2 * inputs if domain > 4 else 4 * inputs
    most = {1: 60, 4: 120, 15: 250, 40: 250}[domain] // share
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    rows = {name: draw(st.one_of(st.just(most), st.integers(0, most))) for name in shape.inputs}
    nulls, wide = draw(st.sampled_from([0.0, 0.1])), draw(st.sampled_from([2, 2, 150]))
    tables = {name: table(shape, name, count, domain, nulls, wide, rng) for name, count in rows.items()}
    schedule = draw(schedules(rows))
    return shape, tables, schedule, draw(st.sampled_from([0, 0, 700, 3000, 10_000, 200_000]))


def check(case: tuple[Shape, dict[str, pa.Table], list[Any], int], algorithm: str) -> StreamJoin:
    """Run a case, looking at the join after every call, and compare."""
    shape, tables, schedule, extra = case
    join = fresh(shape, tables, algorithm, extra, output_rows=50)
    rest = {name: one_batch(each) for name, each in tables.items()}
    out: list[pa.RecordBatch] = []
    for operation in schedule:
        if isinstance(operation, Push):
            out += join.push(operation.input, rest[operation.input].slice(0, operation.rows))
            rest[operation.input] = rest[operation.input].slice(operation.rows)
        elif isinstance(operation, End):
            out += join.end(operation.input)
        elif isinstance(operation, Idle):
            for _ in range(20 if operation.arriving is None else operation.arriving + 1):
                out += join.idle()
        elif isinstance(operation, Snapshot):
            state, total = join.snapshot(), join.budget.total
            join.close()
            join = StreamJoin(on=list(shape.on), algorithm=algorithm, memory=total, output_rows=50)
            join.restore(state)
        assert join.nbytes <= join.budget.total
        join.check_invariants()
    out += join.finish()
    assert all(0 < len(batch) <= 50 for batch in out)
    got = numbers(tables, out)
    assert got == expected(shape, tables)
    assert join.metrics.rows_out == sum(got.values())
    assert join.metrics.in_memory == join.metrics.on_disk == 0
    join.close()
    return join


@examples(40)
@given(case=cases([name for name in SHAPES if name != "pair"]))
def test_miner_is_exact(case: Any) -> None:
    check(case, "miner")


@examples(12)
@given(case=cases([name for name in SHAPES if name.startswith("two columns") or name == "one column twice"]))
def test_keys_of_several_columns_are_exact(case: Any) -> None:
    check(case, "miner")


@examples(12)
@given(case=cases(["pair"]))
def test_miner_of_two_inputs_is_exact(case: Any) -> None:
    check(case, "miner")


@examples(20)
@given(case=cases(SIMPLE))
def test_mjoin_is_exact(case: Any) -> None:
    check(case, "mjoin")


def spilled_chain(algorithm: str, shape: Shape, idle: int, seed: int = 0) -> tuple[StreamJoin, dict[str, pa.Table]]:
    """Inputs that come in turns, with much more than fits, and silence behind every piece."""
    rng = np.random.default_rng(seed)
    tables = {name: table(shape, name, 160, 30, 0.0, 40, rng) for name in shape.inputs}
    join = fresh(shape, tables, algorithm, 4000)
    out: list[pa.RecordBatch] = []
    for start in range(0, 160, 20):
        for name, each in tables.items():
            out += join.push(name, one_batch(each).slice(start, 20))
            for _ in range(idle):
                out += join.idle()
    out += join.finish()
    assert numbers(tables, out) == expected(shape, tables)
    return join, tables


@pytest.mark.parametrize("idle", [0, 1, 500])
def test_silence_at_any_moment(idle: int) -> None:
    join, _ = spilled_chain("miner", SHAPES["chain of 3"], idle)
    assert join.metrics.flushes > 10
    assert (join.metrics.rows_reactive > 0) == (idle > 0)


@pytest.mark.parametrize("algorithm", ["miner", "mjoin"])
def test_clean_up_loads_no_more_rows_than_its_memory_holds(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several groups of blocks are held together only as long as all of them fit."""
    fillings = multiway_clean_up._fillings
    loaded: list[tuple[int, int, int]] = []

    def noted(inputs: Any, relation: int, partition: int, room: int, reach: Any) -> Iterator[Any]:
        for number, rows in enumerate(fillings(inputs, relation, partition, room, reach)):
            loaded.append((number, rows.nbytes, room))
            yield rows

    monkeypatch.setattr(multiway_clean_up, "_fillings", noted)
    spilled_chain(algorithm, SHAPES["one attribute" if algorithm == "mjoin" else "chain of 3"], 0)
    assert max(number for number, _, _ in loaded) > 0, "an input is read in several parts"
    assert [each for each in loaded if each[1] > each[2]] == []


def test_the_box_only_grows_and_ends_whole() -> None:
    shape = SHAPES["chain of 3"]
    rng = np.random.default_rng(3)
    tables = {name: table(shape, name, 160, 30, 0.0, 40, rng) for name in shape.inputs}
    join = fresh(shape, tables, "miner", 4000)
    for name, each in tables.items():
        list(join.push(name, one_batch(each)))
    before = [0, 0, 0]
    while join.work:
        list(join.idle())
        join.check_invariants()
        boxes = join.engine.reactive.joined  # type: ignore[attr-defined]
        assert all(old <= new for old, new in zip(before, boxes, strict=True)) or not any(before)
        before = list(boxes)
    assert before == [len(relation.disk.partitions[0]) for relation in join.engine.inputs.sides]
    list(join.finish())


def test_flushed_rows_leave_all_indexes() -> None:
    shape = SHAPES["star"]
    rng = np.random.default_rng(5)
    tables = {name: table(shape, name, 200, 30, 0.0, 40, rng) for name in shape.inputs}
    join = fresh(shape, tables, "miner", 2000)
    list(join.push("a", one_batch(tables["a"])))
    join.check_invariants()
    memory = join.engine.inputs.sides[0].memory
    assert 0 < len(memory) < 200
    assert [len(view) for view in memory.views] == [len(memory)] * 3


def test_miner_of_two_inputs_is_diner() -> None:
    rng = np.random.default_rng(7)
    left = pa.record_batch({"k": rng.integers(0, 50, 400), "l": np.arange(400)})
    right = pa.record_batch({"k": rng.integers(0, 50, 400), "r": np.arange(400)})
    results = []
    for algorithm in ("diner", "miner", "mjoin", MULTIWAY["miner"]):
        join = StreamJoin(on="k", algorithm=algorithm, memory=40_000)
        assert isinstance(join.engine, MultiwayEngine) == (algorithm != "diner")
        made = pa.Table.from_batches(list(join.run(left=left, right=right)))
        assert join.metrics.flushes > 0
        results.append(made.sort_by([("l", "ascending"), ("r", "ascending")]))
    assert all(results[0].equals(other) for other in results[1:])


def test_the_end_comes_in_the_middle_of_a_loop() -> None:
    """Combinations of the loops of a chunk that have been run do not come out again."""
    shape = SHAPES["chain of 3"]
    rng = np.random.default_rng(13)
    tables = {name: table(shape, name, 90, 9, 0.0, 40, rng) for name in shape.inputs}
    found: list[int] = []
    for idle in (7, 25):
        join = fresh(shape, tables, "miner", 3000)
        out: list[pa.RecordBatch] = []
        for name, each in tables.items():
            out += join.push(name, one_batch(each))
        for _ in range(idle):
            out += join.idle()
        found.append(join.metrics.rows_reactive)
        out += join.finish()
        want = oracle_multi(tables, shape.links, {"a_row": "a.a_row", "b_row": "b.b_row", "c_row": "c.c_row"})
        got = pa.Table.from_batches(out).select(["a_row", "b_row", "c_row"])
        order = [(name, "ascending") for name in want.column_names]
        assert got.sort_by(order).equals(want.sort_by(order))
    assert max(found) > 0


def test_rows_longer_than_a_block() -> None:
    shape = SHAPES["chain of 3"]
    rng = np.random.default_rng(11)
    tables = {name: table(shape, name, 25, 6, 0.0, 3000, rng) for name in shape.inputs}
    join = StreamJoin(on=list(shape.on), algorithm="miner", memory=150_000)
    out: list[pa.RecordBatch] = []
    for start in range(0, 25, 5):
        for name, each in tables.items():
            out += join.push(name, one_batch(each).slice(start, 5))
            out += join.idle()
            assert join.nbytes <= 150_000
            join.check_invariants()
    out += join.finish()
    assert join.metrics.flushes > 0
    assert numbers(tables, out) == expected(shape, tables)


def test_a_snapshot_is_of_its_own_join() -> None:
    chain: list[Any] = [("a.x", "b.x"), ("b.y", "c.y")]
    join = StreamJoin(on=chain, algorithm="miner", memory="100kB")
    list(join.push("a", pa.record_batch({"x": [1, 2]})))
    state = join.snapshot()
    again = StreamJoin(on=chain, algorithm="miner", memory="100kB")
    again.restore(state)
    assert isinstance(again.engine, MultiwayEngine)
    assert again.metrics.rows_in == {"a": 2, "b": 0, "c": 0}
    with pytest.raises(StateError, match=r"was taken from miner, inner join on a\.x = b\.x and b\.y = c\.y"):
        StreamJoin(on=[("a.x", "b.x"), ("b.x", "c.x")], algorithm="mjoin", memory="100kB").restore(state)


def test_rows_that_nobody_new_can_meet_leave_first() -> None:
    shape = SHAPES["chain of 3"]
    rng = np.random.default_rng(9)
    tables = {name: table(shape, name, 60, 30, 0.0, 2, rng) for name in shape.inputs}
    join = fresh(shape, tables, "miner", 30_000)
    for name in ("a", "b"):
        list(join.push(name, one_batch(tables[name])))
        list(join.end(name))
    list(join.push("c", one_batch(tables["c"]).slice(0, 20)))
    join.engine.flushing.flush()
    a, b, c = join.engine.inputs.sides
    assert (len(a.memory), len(b.memory)) == (60, 60)
    assert len(c.memory) < 20


def test_columns() -> None:
    ids = pa.array([1, 2])
    a = pa.record_batch({"x": ids, "name": pa.array(["a1", "a2"])})
    b = pa.record_batch({"k": ids, "y": ids, "name": pa.array(["b1", "b2"])})
    c = pa.record_batch({"y": ids, "name": pa.array(["c1", "c2"])})
    join = StreamJoin(on=[("a.x", "b.k"), ("b.y", "c.y", (0, 0))], algorithm="miner", memory="1MB")
    rows = pa.Table.from_batches(list(join.run(a=a, b=[b], c=pa.Table.from_batches([c])))).sort_by("x")
    assert rows.column_names == ["x", "name", "y", "b.name", "c.y", "c.name"]
    assert rows.to_pylist()[0] == {"x": 1, "name": "a1", "y": 1, "b.name": "b1", "c.y": 1, "c.name": "c1"}
    with pytest.raises(SchemaError, match="two columns 'name_2'"):
        StreamJoin(on=[("a.x", "b.k"), ("b.y", "c.y")], algorithm="miner", suffix="_2").bind(
            a=a.schema, b=b.schema, c=c.schema
        )
    with pytest.raises(SchemaError, match="both inputs have a column 'name'"):
        StreamJoin(on=("x", "k"), algorithm="miner").bind(left=a.schema, right=b.schema)


def test_keys_of_several_columns() -> None:
    """Conditions between the same two inputs are one key, whose columns come out once."""
    a = pa.record_batch({"x": [1, 1, 2, None], "day": ["mo", "tu", "mo", "mo"], "a": [0, 1, 2, 3]})
    b = pa.record_batch({"x": [1, 2, 1], "d": ["mo", "tu", "tu"], "z": [7, 7, 8]})
    c = pa.record_batch({"z": [7, 8], "c": [0, 1]})
    on = [("a.x", "b.x"), ("b.z", "c.z"), ("a.day", "b.d")]
    join = StreamJoin(on=on, algorithm="miner", memory="1MB")
    assert isinstance(join.engine, MultiwayEngine)
    assert join.engine.inputs.tree.attributes == ((("x", "day"),), (("x", "d"), ("z",)), (("z",),))
    rows = pa.Table.from_batches(list(join.run(a=a, b=b, c=c))).sort_by("a")
    assert rows.to_pylist() == [
        {"x": 1, "day": "mo", "a": 0, "z": 7, "c": 0},
        {"x": 1, "day": "tu", "a": 1, "z": 8, "c": 1},
    ]
    assert join.metrics.null_keys == 1
    assert "on a.x = b.x and a.day = b.d and b.z = c.z, memory" in join.explain()


@pytest.mark.parametrize("algorithm", ["diner", "miner", "mjoin"])
@pytest.mark.parametrize("clash", [False, True])
def test_two_inputs_on_two_columns(algorithm: str, clash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal codes are not enough where codes are hashes."""
    if clash:
        monkeypatch.setattr(KeyCoder, "_hash", lambda self, columns: np.zeros(len(columns[0].array), np.int64))
    rng = np.random.default_rng(17)
    left, right = (
        pa.record_batch(
            {"x": rng.integers(0, 9, 400), "y": [f"y{i}" for i in rng.integers(0, 9, 400)], name: range(400)}
        )
        for name in ("l", "r")
    )
    keys = [list(zip(batch["x"].to_pylist(), batch["y"].to_pylist(), strict=True)) for batch in (left, right)]
    truth = Counter((i, j) for i, one in enumerate(keys[0]) for j, other in enumerate(keys[1]) if one == other)
    join = StreamJoin(on=["x", "y"], algorithm=algorithm, memory=30_000)
    out = list(join.run(left=left, right=right))
    assert out[0].schema.names == ["x", "y", "l", "r"]
    assert Counter(pair for batch in out for pair in zip(*(batch[n].to_pylist() for n in "lr"), strict=True)) == truth
    assert join.metrics.spilled_rows


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ([("a.x", "b.x"), ("b.y", "c.y"), ("c.z", "a.z")], r"c\.z = a\.z closes a cycle"),
        ([("a.x", "b.x"), ("b.y", "c.y"), ("c.z", "a.z"), ("c.x", "a.x")], r"a\.x closes a cycle: 'c' and 'a'"),
        ([("a.x", "b.x"), ("b.x", "a.x")], r"b\.x = a\.x is given twice"),
        (
            [("a.x", "b.x"), ("a.y", "b.y", (0, 1))],
            r"a\.x = b\.x and a\.y = b\.y: expected a band to be the only condition .* got 2 conditions",
        ),
        ([("a.x", "b.x"), ("c.y", "d.y")], "no condition connects c, d to a"),
        ([("a.x", "a.y")], "joins 'a' with itself"),
        ([("x", "b.x")], r'expected \("input.column", "input.column"\)'),
        ([("a.x", "b.x", 3)], r"got \('a.x', 'b.x', 3\)"),
        ([("a.x",)], "expected"),
    ],
)
def test_conditions_that_are_no_tree(on: Any, said: str) -> None:
    with pytest.raises((ConfigError, SchemaError), match=said):
        StreamJoin(on=on, algorithm="miner")


def test_what_it_refuses() -> None:
    chain: list[Any] = [("a.x", "b.x"), ("b.y", "c.y")]
    ints, texts = pa.schema([("x", pa.int64())]), pa.schema([("x", pa.string()), ("y", pa.int64())])
    with pytest.raises(ConfigError, match=r"mjoin: expected conditions without a band, and all .* the same columns"):
        StreamJoin(on=chain, algorithm="mjoin")
    with pytest.raises(ConfigError, match=r"mjoin: expected conditions without a band, and all .* the same columns"):
        StreamJoin(on=[("a.x", "b.x", (0, 1))], algorithm="mjoin")
    with pytest.raises(ConfigError, match="can only be 'inner'; got 'left'"):
        StreamJoin(on=chain, algorithm="miner", how="left")
    with pytest.raises(ConfigError, match=r"algorithm for several inputs.*'mjoin', 'miner'"):
        StreamJoin(on=chain, algorithm="diner")
    with pytest.raises(ConfigError, match="third part of a condition"):
        StreamJoin(on=chain, algorithm="miner", band=(0, 1))
    with pytest.raises(ConfigError, match="band: expected one key column; got x, y"):
        StreamJoin(on=["x", "y"], algorithm="miner", band=(0, 1))
    with pytest.raises(BudgetTooSmallError, match="too little for miner of 3 inputs"):
        StreamJoin(on=chain, algorithm="miner", memory=1000)
    join = StreamJoin(on=chain, algorithm="miner")
    with pytest.raises(SchemaError, match="c: has no column 'y'; it has x"):
        join.bind(c=ints)
    join.bind(a=ints)
    with pytest.raises(SchemaError, match=r"on a\.x = b\.x: .*cast one of them"):
        join.bind(b=texts)
    with pytest.raises(ConfigError, match=r"'a', 'b', 'c'; got 'd'"):
        join.push("d", pa.record_batch({"x": [1]}))
    with pytest.raises(ConfigError, match="run: expected the inputs a, b, c; got a"):
        list(join.run(a=[]))
    with pytest.raises(ConfigError, match="this join has the inputs left and right; got 'orders'"):
        StreamJoin(on="x").bind(orders=ints)
    list(join.end("a"))
    with pytest.raises(StateError, match="the input 'a' has ended"):
        join.push("a", pa.record_batch({"x": [1]}))
    assert list(join.finish()) == []


def test_an_input_that_is_empty_or_never_comes() -> None:
    one = pa.record_batch({"x": [1, 1], "y": [1, 2]})
    for algorithm in ("miner", "mjoin"):
        join = StreamJoin(on=[("a.x", "b.x"), ("b.x", "c.x")], algorithm=algorithm, memory="100kB")
        assert list(join.run(a=[one], b=[], c=[one])) == []
        assert isinstance(join.engine, MultiwayEngine)
        assert join.metrics.rows_in == {"a": 2, "b": 0, "c": 2}
        assert join.nbytes < 100_000
