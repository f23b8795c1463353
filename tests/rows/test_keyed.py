"""Rows by key: what they cost is reserved to the byte, and given back when they are gone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.budget import MemoryBudget
from millrace.core.space import HeapSpace
from millrace.rows import keyed_rows_file
from millrace.rows.arena import Arena
from millrace.rows.keyed_rows import KeyedRows

TEXT = pa.schema({"s": pa.string()})


def keyed(schema: pa.Schema = TEXT, total: int = 1_000_000) -> KeyedRows:
    return KeyedRows("test", schema, MemoryBudget(total), HeapSpace(), {"mark": np.int32})


def cost(rows: KeyedRows, slots: int, heap: int) -> int:
    """Bytes of so many slots, of two directory places each and two more, and of the heap."""
    return slots * rows.slot_bytes + 4 * (2 * slots + 2) + heap


def put(rows: KeyedRows, columns: list[pa.Array], code: int = 7, **options: Any) -> np.ndarray:
    assert rows.make_room(len(columns[0]), Arena.heap_bytes_of(columns), **options)
    slots, _ = rows.insert(np.full(len(columns[0]), code), columns)
    rows.check_invariants()
    return slots


def texts(*lengths: int) -> list[pa.Array]:
    return [pa.array([chr(97 + i % 26) * length for i, length in enumerate(lengths)])]


# what is reserved


def test_exactly_what_is_needed_can_be_reserved() -> None:
    rows = keyed()
    assert rows.make_room(100, 500, exact=True)
    assert rows.nbytes == cost(rows, 100, 500)
    assert keyed().make_room(100, 500)


def test_the_last_rows_that_fit_are_taken() -> None:
    """Where the budget cannot give some rows more than are needed, it gives those that are."""
    needed = cost(keyed(), 100, 500)
    rows, tight = keyed(total=needed), keyed(total=needed - 1)
    assert rows.make_room(100, 500)
    assert rows.nbytes == needed
    assert not tight.make_room(100, 500)


def test_bytes_of_removed_rows_are_used_before_room_is_refused() -> None:
    """There are fewer of them than the new rows need, but with them the budget is enough."""
    rows = keyed(total=cost(keyed(), 2, 400))
    slots = put(rows, texts(100, 200), exact=True)
    rows.remove(slots[:1])
    put(rows, texts(200), exact=True)
    taken = rows.take([0], rows.live())[0].to_pylist()
    assert sorted(taken) == ["a" * 200, "b" * 200]


def test_few_bytes_of_removed_rows_stay_where_they_are() -> None:
    """Moving everything together for a few bytes would cost more than they are worth."""
    rows = keyed()
    rows.remove(put(rows, texts(100, 100, 100), exact=True)[:1])
    assert rows.arena.heap.dead == 100
    assert rows.make_room(1, 50, slack=1_000)
    assert (rows.arena.heap.dead, rows.arena.heap_bytes) == (100, 300)
    assert rows.make_room(1, 90, exact=True, slack=0)
    assert (rows.arena.heap.dead, rows.arena.heap_bytes) == (0, 200)


def test_nested_values_are_reserved_too() -> None:
    rows = keyed(pa.schema({"l": pa.list_(pa.int64())}))
    lists = [pa.array([[i] * 1_000 for i in range(5)])]
    put(rows, lists)
    put(rows, lists)
    assert rows.nbytes >= 2 * 5 * 1_000 * 8
    assert not keyed(pa.schema({"l": pa.list_(pa.int64())}), total=60_000).make_room(10, 2 * 5 * 1_000 * 8)


def test_trimmed_rows_cost_what_they_would_alone() -> None:
    rows, alone = keyed(), keyed()
    slots = put(rows, texts(*range(50, 150)))
    rows.remove(slots[::2])
    rows.pack()
    put(alone, texts(*range(51, 150, 2)))
    alone.trim()
    assert rows.nbytes == alone.nbytes == cost(rows, 50, sum(range(51, 150, 2)))


def test_a_row_costs_its_own_bytes_only() -> None:
    rows = keyed()
    slots = put(rows, texts(1_000, 10, 20, 30))
    rows.remove(slots[:1])
    assert rows.row_bytes == rows.fixed_row_bytes + 20
    assert keyed().row_bytes == rows.fixed_row_bytes


def test_memory_of_rows_that_are_gone_goes_back_to_the_system() -> None:
    """All arrays of a part that was cleared are as they were at first: nothing of them is held by the process."""
    schema = pa.schema({"s": pa.string(), "n": pa.int32(), "w": pa.int64(), "b": pa.bool_(), "x": pa.binary(3)})
    rows = keyed(schema, total=4_000_000)
    count = 5_000
    columns = [
        pa.array([f"text {i}" for i in range(count)]),
        pa.array(np.arange(1, count + 1, dtype=np.int32)),
        pa.array(np.arange(1, count + 1)),
        pa.array([True] * count),
        pa.array([b"xyz"] * count, pa.binary(3)),
    ]
    columns = [pa.concat_arrays([column.slice(0, count - 1), pa.nulls(1, column.type)]) for column in columns]
    slots = put(rows, columns)
    rows.marks["mark"][slots] = 1
    heap = rows.arena.heap_bytes
    kept = [*rows.arena.arrays(count, heap), rows.marks["mark"], rows.map.code]
    assert all(any_bit(array) for array in kept)
    rows.clear()
    assert rows.nbytes == cost(rows, 0, 0)
    assert [any_bit(array) for array in kept] == [False] * len(kept)


def any_bit(array: np.ndarray) -> bool:
    return any(np.ascontiguousarray(array).tobytes())


# what is known about rows


def test_the_longest_is_that_of_all_rows_and_columns() -> None:
    """Output columns are made so large: a row longer than what is known would not fit."""
    rows = keyed(pa.schema({"a": pa.string(), "n": pa.int32(), "b": pa.binary()}))
    for long, other in ((5, 9), (80, 3), (2, 40)):
        put(rows, [pa.array(["x" * long]), pa.array([1], pa.int32()), pa.array([b"y" * other])])
    assert [rows.longest(columns) for columns in ([0], [2], [0, 1, 2], [1])] == [80, 40, 120, 0]
    assert rows.bytes_of([0, 2], rows.live()) == 5 + 9 + 80 + 3 + 2 + 40
    assert rows.bytes_of([2], rows.live()) == 9 + 3 + 40


def test_rows_go_to_the_slots_they_were_given() -> None:
    """Slots that were freed come back in any order, also one that begins and ends as a run would."""
    for order in ([4, 6, 5, 7], [7, 5, 6, 4], [4, 5, 6, 7], [4], [0, 2, 4, 6]):
        arena = Arena(pa.schema({"n": pa.int64(), "s": pa.string()}), 10, 1_000, HeapSpace(), "test")
        slots = np.array(order, np.int32)
        arena.store(slots, [pa.array(order, pa.int64()), pa.array([f"text {i}" for i in order])])
        assert arena.arrays(10, 0)[1][slots].tolist() == order
        lengths = arena.arrays(10, 0)[3]
        assert lengths[slots].tolist() == [6] * len(order)
        assert lengths.sum() == 6 * len(order)


@pytest.mark.parametrize("type_", [pa.string(), pa.list_(pa.int64())], ids=str)
def test_a_slot_that_was_taken_and_never_filled_gives_nothing_back(type_: pa.DataType) -> None:
    """What the slot's row before had is given back once."""
    rows = keyed(pa.schema({"a": type_}))
    array = pa.array(["x" * 100, "y" * 50], type_) if pa.types.is_string(type_) else pa.array([[1] * 50, [2]], type_)
    slots = put(rows, [array], exact=True)
    rows.remove(slots[:1])
    gone, held = rows.arena.heap.dead, rows.arena.heap_bytes
    assert rows.make_room(1)
    again, _ = rows.insert_codes(np.array([9]))
    assert again.tolist() == slots[:1].tolist(), "the slot that has become free"
    rows.remove(again)
    assert (rows.arena.heap.dead, rows.arena.heap_bytes) == (gone, held)
    assert rows.take([0], slots[1:])[0].to_pylist() == array.slice(1).to_pylist()
    rows.remove(slots[1:])
    rows.trim()
    assert rows.arena.heap_bytes == 0


def test_nothing_of_cleared_rows_counts() -> None:
    rows = keyed()
    rows.remove(put(rows, texts(100, 200))[:1])
    rows.clear()
    assert (len(rows), rows.keys, rows.arena.heap.dead, rows.arena.heap_bytes) == (0, 0, 0, 0)
    put(rows, texts(30))
    assert rows.row_bytes == rows.fixed_row_bytes + 30


def test_nested_values_of_cleared_rows_are_freed() -> None:
    before = pa.total_allocated_bytes()
    rows = keyed(pa.schema({"l": pa.list_(pa.int64())}), total=10_000_000)
    put(rows, [pa.array([[i] * 100_000 for i in range(5)])])
    assert pa.total_allocated_bytes() - before > 4_000_000
    rows.clear()
    assert rows.nbytes == cost(rows, 0, 0)
    assert pa.total_allocated_bytes() - before < 100_000


# kept in a file


def some_rows() -> tuple[KeyedRows, pa.Schema]:
    schema = pa.schema({"s": pa.string(), "n": pa.int32()})
    rows = keyed(schema)
    slots = put(rows, [pa.array(["x" * 90, None, "b", "c"]), pa.array([1, 2, None, 4], pa.int32())], code=3)
    rows.marks["mark"][slots] = [5, 6, 7, 8]
    put(rows, [pa.array(["later"]), pa.array([None], pa.int32())], code=-1)
    rows.remove(slots[3:])
    return rows, schema


@pytest.mark.parametrize("where", ["file", "memory"])
def test_rows_come_back_from_a_file_with_all_that_is_known_of_them(where: str, tmp_path: Path) -> None:
    rows, schema = some_rows()
    place: Any = io.BytesIO() if where == "memory" else tmp_path / "kept"
    keyed_rows_file.write_rows(place, rows, "mine", {"more": [1]})
    if where == "memory":
        place.seek(0)
    other = keyed(schema)
    assert keyed_rows_file.read_rows(place, other, "mine") == {"more": [1]}
    other.check_invariants()
    live = other.live()
    assert live.tolist() == rows.live().tolist()
    assert [c.to_pylist() for c in other.take([0, 1], live)] == [["x" * 90, None, "b", "later"], [1, 2, None, None]]
    assert other.counts(np.array([3, -1, 4])).tolist() == [3, 1, 0]
    assert other.marks["mark"][live].tolist()[:3] == [5, 6, 7]
    assert other.longest([0]) == 90
    assert other.nbytes == rows.nbytes
    put(other, [pa.array(["new"]), pa.array([9], pa.int32())], code=3)
    assert other.counts(np.array([3])).tolist() == [4]


def test_rows_of_another_identity_or_size_are_not_taken(tmp_path: Path) -> None:
    rows, schema = some_rows()
    keyed_rows_file.write_rows(tmp_path / "kept", rows, "mine", {})
    for other, identity in ((keyed(schema), "yours"), (keyed(schema, total=rows.nbytes - 1), "mine")):
        assert keyed_rows_file.read_rows(tmp_path / "kept", other, identity) is None
        assert len(other) == 0
        other.check_invariants()
    facts = rows.facts()
    assert keyed(schema).make_room_for(facts)
    assert not keyed(schema).make_room_for(facts | {"places": facts["places"] + 1})


def test_two_who_write_one_file_leave_one_of_both_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a file of its own aside until it is complete."""
    rows, schema = some_rows()
    few = keyed(schema)
    put(few, [pa.array(["few"]), pa.array([1], pa.int32())])
    dump = keyed_rows_file._dump
    wrote: list[int] = []

    def interrupted(file: Any, what: KeyedRows, identity: str, more: dict[str, Any]) -> None:
        if not wrote:
            wrote.append(1)
            keyed_rows_file.write_rows(tmp_path / "kept", few, "mine", {})
            wrote.append(2)
        dump(file, what, identity, more)

    monkeypatch.setattr(keyed_rows_file, "_dump", interrupted)
    keyed_rows_file.write_rows(tmp_path / "kept", rows, "mine", {})
    assert wrote == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    other = keyed(schema)
    assert keyed_rows_file.read_rows(tmp_path / "kept", other, "mine") == {}
    assert len(other) == len(rows)
