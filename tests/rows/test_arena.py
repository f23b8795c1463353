"""Rows in and out of memory unchanged, whatever their types, and every byte reserved first."""

from __future__ import annotations

from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.core.budget import MemoryBudget
from millrace.core.space import FileSpace, HeapSpace
from millrace.rows.arena import Arena
from millrace.rows.columns import output_column
from millrace.rows.keyed_rows import KeyedRows, holds_its_code

SAMPLES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, None, -3, 4, 5, 6, None],
    pa.uint16(): [1, None, 3, 4, 5, 6, None],
    pa.int64(): [2**62, None, -3, 4, 5, 6, None],
    pa.float16(): [np.float16(1.5), None, np.float16(-2), np.float16(0), None, None, np.float16(4)],
    pa.float64(): [1.5, None, float("nan"), -0.0, float("inf"), 6.0, None],
    pa.bool_(): [True, None, False, True, True, None, False],
    pa.date32(): [1, None, 3, 4, 5, 6, None],
    pa.time64("us"): [time(1, 2, 3, 4), None, time(3), time(4), time(5), time(6), None],
    pa.timestamp("us", "UTC"): [datetime(2020, 1, day, tzinfo=UTC) if day != 3 else None for day in range(1, 8)],
    pa.decimal128(20, 2): [Decimal("1.25"), None, Decimal("-9999999999999999.99"), Decimal(0), None, None, Decimal(7)],
    pa.decimal256(50, 2): [Decimal("1.25"), None, Decimal(10) ** 40, Decimal(0), None, None, Decimal(7)],
    pa.binary(3): [b"abc", None, b"\x00\xff\x80", b"xyz", None, None, b"end"],
    pa.string(): ["", None, "Zürich 東京", "x" * 300, "a", None, "b"],
    pa.large_string(): ["", None, "Zürich 東京", "x" * 300, "a", None, "b"],
    pa.binary(): [b"", None, b"\x00\xff", b"x" * 300, b"a", None, b"b"],
    pa.large_binary(): [b"", None, b"\x00\xff", b"x" * 300, b"a", None, b"b"],
    pa.list_(pa.int32()): [[1, 2], None, [], [None, 3], [4], [5], None],
    pa.struct({"x": pa.int8(), "y": pa.string()}): [{"x": 1, "y": "a"}, None, {"x": None, "y": None}] + [None] * 4,
    pa.dictionary(pa.int8(), pa.string()): ["a", None, "b", "a", "c", None, "b"],
    pa.map_(pa.string(), pa.int8()): [[("a", 1)], None, [], [("b", None)], None, None, [("c", 3)]],
    pa.null(): [None] * 7,
}
every_type = pytest.mark.parametrize("type_", SAMPLES, ids=str)


def shown(array: pa.Array) -> str:
    return repr(array.to_pylist())


def keyed(schema: pa.Schema, total: int = 1_000_000, **other: Any) -> KeyedRows:
    return KeyedRows("test", schema, MemoryBudget(total), HeapSpace(), {"mark": np.int32}, **other)


@every_type
def test_output_columns_take_arrow_slices_and_nulls(type_: pa.DataType) -> None:
    array = pa.array(SAMPLES[type_], type_)
    out = output_column(type_, 40)
    out.arrow(array, None)
    out.nulls(2)
    out.arrow(array.slice(2, 4), np.array([3, 0, 0], np.int64))
    out.arrow(array.slice(7), np.array([], np.int64))
    finished = out.finish()
    finished.validate(full=True)
    expected = [*SAMPLES[type_], None, None, *(SAMPLES[type_][2 + i] for i in (3, 0, 0))]
    assert shown(finished) == shown(pa.array(expected, type_))


@every_type
def test_an_output_column_without_rows(type_: pa.DataType) -> None:
    finished = output_column(type_, 5).finish()
    finished.validate(full=True)
    assert len(finished) == 0
    assert finished.type == type_


@every_type
def test_rows_come_back_as_they_went_in(type_: pa.DataType) -> None:
    array = pa.array(SAMPLES[type_], type_)
    schema = pa.schema({"a": type_, "n": pa.int32(), "b": type_})
    rows = keyed(schema)
    for piece in (array, array.slice(1, 5), array.slice(6), array.slice(3, 0)):
        columns = [piece, pa.array(range(len(piece)), pa.int32()), piece]
        codes = np.arange(len(piece), dtype=np.int64)
        assert rows.make_room(len(piece), Arena.heap_bytes_of(columns))
        slots, _ = rows.insert(codes, columns)
        order = np.random.default_rng(1).permutation(len(piece)) if len(piece) else np.empty(0, np.int64)
        for at in (0, 2):
            taken = rows.take([at], slots[order])[0]
            taken.validate(full=True)
            assert shown(taken) == shown(piece.take(pa.array(order)))
        rows.check_invariants()


@every_type
def test_packing_and_trimming_keep_every_row(type_: pa.DataType) -> None:
    values = SAMPLES[type_] * 20
    array = pa.array(values, type_)
    rows = keyed(pa.schema({"a": type_, "i": pa.int64()}))
    columns = [array, pa.array(range(len(values)), pa.int64())]
    assert rows.make_room(len(values), Arena.heap_bytes_of(columns))
    slots, _ = rows.insert(np.arange(len(values), dtype=np.int64) % 11, columns)
    rows.marks["mark"][slots] = np.arange(len(values))
    full = rows.nbytes
    rng = np.random.default_rng(2)
    gone = rng.permutation(len(values))[: len(values) * 3 // 4]
    rows.remove(slots[np.sort(gone)])
    rows.check_invariants()
    rows.pack()
    rows.check_invariants()
    assert rows.nbytes < full
    assert len(rows) == len(values) - len(gone)
    live = rows.live()
    assert live.tolist() == list(range(len(rows)))
    kept, numbers = rows.take([0, 1], live)
    assert sorted(numbers.to_pylist()) == sorted(set(range(len(values))) - set(gone.tolist()))
    assert shown(kept) == shown(array.take(numbers))
    assert rows.marks["mark"][live].tolist() == numbers.to_pylist()
    assert (rows.map.code[live] == numbers.to_numpy() % 11).all()


class CountingSpace(HeapSpace):
    """Counts the bytes of the arrays that have one item for every slot."""

    nbytes = 0

    def array(self, name: str, dtype: Any, length: int) -> Any:
        made = super().array(name, dtype, length)
        self.nbytes += 0 if name.endswith("heap") else made.nbytes
        return made


@every_type
def test_the_bytes_of_a_slot_are_those_of_its_arrays(type_: pa.DataType) -> None:
    schema, space = pa.schema([("a", type_), ("b", pa.int32())]), CountingSpace()
    arena = Arena(schema, 100, 1_000, space, "test")
    assert Arena.bytes_per_slot(schema) == arena.slot_bytes == space.nbytes / 100


class ReleasingSpace(HeapSpace):
    """Records from which item on each array was given back to the system."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[int, str] = {}
        self.released: dict[str, int] = {}

    def array(self, name: str, dtype: Any, length: int) -> Any:
        made = super().array(name, dtype, length)
        self._names[made.ctypes.data] = name.rpartition(".")[2]
        return made

    def release(self, array: Any, start: int) -> None:
        self.released[self._names.get(array.ctypes.data, "?")] = start
        super().release(array, start)


def test_trimming_returns_the_memory_of_all_arrays() -> None:
    space = ReleasingSpace()
    rows = KeyedRows("test", pa.schema([("a", pa.int32())]), MemoryBudget(4_000_000), space, {"mark": np.int32})
    assert rows.make_room(20_000)
    slots, _ = rows.insert(np.arange(20_000), [pa.array(range(20_000), pa.int32())])
    places = len(rows.map.directory)
    rows.remove(slots[10:])
    rows.trim()
    assert len(rows.map.directory) < places
    assert space.released["directory"] == len(rows.map.directory)
    assert space.released["mark"] == 10
    rows.check_invariants()


def test_only_columns_of_64_bits_hold_their_codes() -> None:
    same = [pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")]
    other = [pa.int32(), pa.uint16(), pa.date32(), pa.timestamp("ms"), pa.timestamp("s", "UTC"), pa.string()]
    assert [holds_its_code(type_, exact=True) for type_ in same] == [True] * len(same)
    assert [holds_its_code(type_, exact=True) for type_ in other] == [False] * len(other)
    assert not any(holds_its_code(type_, exact=False) for type_ in same)


def test_a_code_column_is_not_stored_twice() -> None:
    schema = pa.schema({"x": pa.string(), "k": pa.int64()})
    rows, plain = keyed(schema, code_column=1), keyed(schema)
    assert rows.slot_bytes == plain.slot_bytes - 8
    assert rows.make_room(2, 10)
    slots, _ = rows.insert(np.array([7, -8]), [pa.array(["a", None]), pa.array([7, -8])])
    assert [column.to_pylist() for column in rows.take([1, 0], slots[::-1].copy())] == [[-8, 7], [None, "a"]]


def test_room_is_refused_before_anything_is_touched() -> None:
    rows = keyed(pa.schema({"s": pa.string()}), total=2_000)
    assert not rows.make_room(10_000)
    assert not rows.make_room(1, 5_000)
    used = rows.nbytes
    assert rows.make_room(5, 100)
    assert used < rows.nbytes <= 2_000


def test_the_bytes_of_removed_rows_are_used_again() -> None:
    """One long string after another, each removed before the next: the heap must not ask for more than one of them."""
    rows = keyed(pa.schema({"s": pa.string()}), total=3_000)
    for length in (1_000, 1_000, 1_200, 900, 1_500):
        columns = [pa.array(["x" * length])]
        assert rows.make_room(1, length), f"no room for {length} bytes though everything else is gone"
        slots, _ = rows.insert(np.array([1]), columns)
        assert shown(rows.take([0], slots)[0]) == shown(columns[0])
        rows.remove(slots)
        rows.check_invariants()


@pytest.mark.parametrize("type_", [pa.list_(pa.int64()), pa.dictionary(pa.int8(), pa.string()), pa.string()], ids=str)
def test_rows_filled_in_later_are_reserved_too(type_: pa.DataType) -> None:
    """As a cache collects a group: room is made for rows that are then stored in two parts."""
    rows = keyed(pa.schema({"a": type_}))
    array = pa.array(SAMPLES.get(type_, [[1], [2, 3], None, [], [4], [5], [6]]), type_)
    for _ in range(5):
        head, rest = [array.take(pa.array([0]))], [array.take(pa.array(range(1, len(array))))]
        assert rows.make_room(len(array), Arena.heap_bytes_of(head) + Arena.heap_bytes_of(rest))
        slots, _ = rows.insert_codes(np.arange(len(array), dtype=np.int64))
        rows.fill(slots[:1], head)
        rows.fill(slots[1:], rest)
        rows.check_invariants()


class _Rows:
    """The model: slot to (code, text, list)."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, str | None, list[int] | None]] = {}


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_sequence_of_calls_against_a_dictionary(data: st.DataObject) -> None:
    schema = pa.schema({"s": pa.string(), "l": pa.list_(pa.int8())})
    budget = MemoryBudget(20_000)
    rows = KeyedRows("test", schema, budget, HeapSpace(), {"mark": np.int32})
    model = _Rows().rows
    texts = st.none() | st.integers(0, 60).map(lambda n: "ab" * n)
    for _ in range(data.draw(st.integers(1, 25))):
        act = data.draw(st.sampled_from(["insert", "insert", "remove", "trim", "pack"]))
        if act == "insert":
            new = data.draw(st.lists(st.tuples(st.integers(0, 5), texts, st.none() | st.just([1, 2])), max_size=12))
            lists = pa.array([x for *_, x in new], pa.list_(pa.int8()))
            columns = [pa.array([t for _, t, _ in new], pa.string()), lists]
            if rows.make_room(len(new), Arena.heap_bytes_of(columns)):
                slots, _ = rows.insert(np.array([code for code, *_ in new], np.int64), columns)
                model.update(zip(slots.tolist(), new, strict=True))
        elif act == "remove" and model:
            gone = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True))
            rows.remove(np.array(gone, np.int32))
            for slot in gone:
                del model[slot]
        elif act == "trim":
            rows.trim()
        elif act == "pack":
            before = sorted(model.values(), key=repr)
            rows.pack()
            live = rows.live()
            texts_, lists = rows.take([0, 1], live)
            found = zip(rows.map.code[live].tolist(), texts_.to_pylist(), lists.to_pylist(), strict=True)
            model = dict(zip(live.tolist(), found, strict=True))
            assert sorted(model.values(), key=repr) == before
        rows.check_invariants()
        budget.check_invariants()
        live = rows.live()
        assert live.tolist() == sorted(model)
        texts_, lists = rows.take([0, 1], live)
        assert [(t, x) for t, x in zip(texts_.to_pylist(), lists.to_pylist(), strict=True)] == [
            model[slot][1:] for slot in live.tolist()
        ]


def test_files_left_by_another_run_do_not_shine_through(tmp_path: Path) -> None:
    """Nulls of an earlier owner of the same files are not nulls of the rows stored now."""
    schema = pa.schema({"a": pa.int64(), "s": pa.string()})

    def rows_in_files() -> KeyedRows:
        return KeyedRows("test", schema, MemoryBudget(100_000), FileSpace(tmp_path), {"mark": np.int32})

    def put(rows: KeyedRows, numbers: list[int | None], texts: list[str | None]) -> list[list[Any]]:
        columns = [pa.array(numbers, pa.int64()), pa.array(texts, pa.string())]
        assert rows.make_room(len(numbers), Arena.heap_bytes_of(columns))
        rows.insert(np.arange(len(numbers), dtype=np.int64), columns)
        return [column.to_pylist() for column in rows.take([0, 1], rows.live())]

    assert put(rows_in_files(), [None] * 4, [None] * 4) == [[None] * 4, [None] * 4]
    second = rows_in_files()
    assert put(second, [1, 2], ["a", "b"]) == [[1, 2], ["a", "b"]]
    assert put(second, [None], ["c"]) == [[1, 2, None], ["a", "b", "c"]]
