"""Blocks come back as they were, or with an error that says which did not; nothing of an area stays behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adaptive.disk.spill_files import ENTRY_BYTES, SpillArea
from millrace.core.errors import SpillError, StateError
from millrace.testing.faults import files_of, flip_byte, in_child, largest_file, spill_room, truncate
from millrace.testing.strategies import examples


def content(area: SpillArea, blocks: dict[int, bytes]) -> None:
    for block, expected in blocks.items():
        assert bytes(area.read(block)) == expected
        assert area.size(block) == len(expected)


def test_blocks_of_several_kinds_and_buffers(tmp_path: Path) -> None:
    numbers = np.arange(1000)
    with SpillArea(tmp_path) as area:
        blocks = {
            area.write("left", [numbers, b"", bytearray(b"tail")]): numbers.tobytes() + b"tail",
            area.write("right/über", [pa.py_buffer(b"xyz"), numbers.reshape(10, 100)]): b"xyz" + numbers.tobytes(),
            area.write("left", []): b"",
            area.write("left", [numbers.data[:3]] * 3000): numbers[:3].tobytes() * 3000,
        }
        content(area, blocks)
        area.check_invariants()
        assert [path.name for path in files_of(area.directory)] == ["0-left.spill", "1-right__ber.spill"]
        counts = area.counts
        total = sum(map(len, blocks.values()))
        assert (counts.blocks, counts.nbytes, counts.file_bytes) == (4, total, total)
        assert (counts.bytes_written, counts.bytes_read) == (area.bytes_written, area.bytes_read) == (total, total)
        assert (counts.blocks_written, counts.blocks_read, counts.blocks_freed) == (4, 4, 0)
        assert area.read(next(iter(blocks))).readonly
    assert not list(tmp_path.iterdir())


def test_reading_into_memory_of_the_callers(tmp_path: Path) -> None:
    with SpillArea(tmp_path) as area:
        block = area.write("k", [b"0123456789"])
        room = np.zeros(16, np.uint8)
        assert bytes(area.read(block, room.data)) == b"0123456789"
        assert room[:10].tobytes() == b"0123456789"
        with pytest.raises(ValueError, match="block 0: expected room for 10 bytes; got 9"):
            area.read(block, room[:9].data)


def test_sequential_work_does_not_seek(tmp_path: Path) -> None:
    with SpillArea(tmp_path) as area:
        blocks = [area.write("k", [b"x" * 100]) for _ in range(10)]
        assert area.counts.seeks == 1
        for block in blocks:
            area.read(block)
        assert area.counts.seeks == 2
        area.read(blocks[3])
        area.write("other", [b"y"])
        assert area.counts.seeks == 4


@examples(60)
@given(st.lists(st.tuples(st.sampled_from("wwwfr"), st.sampled_from("ab"), st.integers(0, 90)), max_size=60))
def test_any_order_of_writes_reads_and_frees(steps: list[tuple[str, str, int]]) -> None:
    with SpillArea() as area:
        there: dict[int, bytes] = {}
        for number, (step, kind, size) in enumerate(steps):
            if step == "w":
                data = bytes([number % 256]) * size
                there[area.write(kind, [data[: size // 3], data[size // 3 :]])] = data
            elif there:
                block = sorted(there)[size % len(there)]
                if step == "f":
                    area.free(block)
                    del there[block]
                    with pytest.raises(StateError, match=f"no block {block}: it was never written, or has been freed"):
                        area.read(block)
                else:
                    content(area, {block: there[block]})
            area.check_invariants()
            assert area.blocks == len(there)
            assert area.nbytes == sum(map(len, there.values())) <= area.file_bytes
        content(area, there)
        for block in there:
            area.free(block)
        assert area.file_bytes == 0


def test_room_of_freed_blocks_is_used_again(tmp_path: Path) -> None:
    with SpillArea(tmp_path) as area:
        blocks = [area.write("k", [bytes(1000)]) for _ in range(20)]
        for _ in range(10):
            for i in range(0, 19, 2):
                area.free(blocks[i])
            for i in range(0, 19, 2):
                blocks[i] = area.write("k", [bytes([i]) * 1000])
        assert area.counts.most_file_bytes == area.file_bytes == 20_000
        for i in range(0, 19, 2):
            assert bytes(area.read(blocks[i])) == bytes([i]) * 1000


def test_the_books_take_no_more_memory_than_said(tmp_path: Path) -> None:
    with SpillArea(tmp_path) as area:
        for _ in range(2000):
            area.write("k", [b"x" * 1000])
        entries = area._blocks
        taken = sys.getsizeof(entries) + sum(sys.getsizeof(k) + sys.getsizeof(e) for k, e in entries.items())
        taken += sum(sys.getsizeof(value) for entry in entries.values() for value in entry[1:])
        assert taken <= ENTRY_BYTES * len(entries)


# a full disk


def test_a_full_disk_leaves_everything_before_whole(tmp_path: Path) -> None:
    with SpillArea(tmp_path) as area:
        blocks = {area.write("left", [bytes([i]) * 500]): bytes([i]) * 500 for i in range(9)}
        area.free(4)
        del blocks[4]
        with spill_room(700):
            blocks[area.write("left", [b"a" * 300])] = b"a" * 300  # into the room of the freed one
            with pytest.raises(SpillError) as raised:
                area.write("left", [b"b" * 200, b"c" * 600])
            said = str(raised.value)
            assert said.startswith(f"{area.directory}: 800 B (800 bytes) of 'left' could not be written: the disk is")
            assert "No space left on device" in said
            assert said.endswith("the 9 blocks written before are intact")
            content(area, blocks)
            area.check_invariants()
            with pytest.raises(SpillError):
                area.write("left", [b"d" * 200])  # would go into free room: half a block there is nobody's
            content(area, blocks)
            area.check_invariants()
        blocks[area.write("left", [b"e" * 800])] = b"e" * 800
        content(area, blocks)


def test_writes_that_the_system_takes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, buffers, at: write(file, [b"".join(buffers)[:7]], at))
    with SpillArea(tmp_path) as area:
        block = area.write("k", [b"0123456789", b"abc", b"ABCDEFGHIJKLMNO"])
        assert bytes(area.read(block)) == b"0123456789abcABCDEFGHIJKLMNO"


def fill_up(directory: Path) -> None:
    largest_file(50_000)
    with SpillArea(directory) as area:
        blocks: dict[int, bytes] = {}
        for i in range(7):
            blocks[area.write("k", [bytes([i]) * 4000, b"-" * 3000])] = bytes([i]) * 4000 + b"-" * 3000
        with pytest.raises(SpillError, match=r"7\.0 kB \(7000 bytes\) of 'k' could not be written: .*File too large"):
            area.write("k", [bytes(4000), b"-" * 3000])
        area.check_invariants()
        content(area, blocks)
    os._exit(7)


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """A real error of the file system in the middle of a block, not a simulated one."""
    assert in_child(fill_up, tmp_path) == 7
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match=r"file/sub: cannot create a spill area there: .*Not a directory"):
        SpillArea(tmp_path / "file" / "sub")


# damage


def test_a_changed_byte_is_noticed_in_its_block_only(tmp_path: Path) -> None:
    with SpillArea(tmp_path) as area:
        blocks = [area.write("left", [bytes([i]) * 100]) for i in range(5)]
        (path,) = files_of(area.directory)
        flip_byte(path, 250)
        with pytest.raises(SpillError, match=r"0-left.spill: block 2 \(100 bytes at byte 200\) has changed: expected"):
            area.read(blocks[2])
        for i in (0, 1, 3, 4):
            assert bytes(area.read(blocks[i])) == bytes([i]) * 100


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    with SpillArea(tmp_path) as area:
        blocks = [area.write("left", [bytes(100)]) for _ in range(3)]
        (path,) = files_of(area.directory)
        truncate(path, by=30)
        with pytest.raises(SpillError, match="block 2 is cut off: expected 100 bytes at byte 200; got 70"):
            area.read(blocks[2])
        area.read(blocks[1])


# the end of an area


def test_close_twice_and_use_after(tmp_path: Path) -> None:
    area = SpillArea(tmp_path)
    block = area.write("k", [b"x"])
    area.close()
    area.close()
    assert area.closed
    assert not list(tmp_path.iterdir())
    for use in (lambda: area.read(block), lambda: area.write("k", [b"y"]), lambda: area.free(block)):
        with pytest.raises(StateError, match="the spill area is closed"):
            use()


def test_an_area_that_nobody_holds_any_more_is_removed(tmp_path: Path) -> None:
    area = SpillArea(tmp_path)
    area.write("k", [b"x"])
    del area
    gc.collect()
    assert not list(tmp_path.iterdir())


kept: list[SpillArea] = []


def leave_open(directory: Path) -> None:
    kept.append(SpillArea(directory))
    kept[0].write("k", [b"x"])


def die(directory: Path) -> None:
    leave_open(directory)
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_area_goes_with_its_process(tmp_path: Path) -> None:
    assert in_child(leave_open, tmp_path) == 0
    assert not list(tmp_path.iterdir())


def test_a_killed_process_is_tidied_up_after_by_the_next_and_nobody_else_is(tmp_path: Path) -> None:
    (tmp_path / ".spill-mine.lock").write_text("not an area")
    with SpillArea(tmp_path) as living:
        block = living.write("k", [b"alive"])
        assert in_child(die, tmp_path) == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == 5, "two areas, their locks, and a file that is neither"
        with SpillArea(tmp_path) as area:
            there = {path.name for path in tmp_path.iterdir()}
            expected = {living.directory.name, area.directory.name}
            assert there == expected | {f"{name}.lock" for name in expected} | {".spill-mine.lock"}
            assert bytes(living.read(block)) == b"alive"
    assert [path.name for path in tmp_path.iterdir()] == [".spill-mine.lock"]


def test_a_fork_leaves_its_parents_area_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    area = SpillArea(tmp_path)
    area.write("k", [b"x"])
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a forked process
    area.close()
    assert len(files_of(area.directory)) == 1
    monkeypatch.undo()
    SpillArea(tmp_path).close()
    assert not list(tmp_path.iterdir())
