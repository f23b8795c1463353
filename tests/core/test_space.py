"""Arrays take memory only where they are written, give it back, and can be shared between processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.clock import RealClock, VirtualClock
from millrace.core.space import FileSpace, HeapSpace
from millrace.testing.faults import in_child

SIZE = 64_000_000


def anonymous() -> int:
    """Bytes of this process that are neither files nor shared."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_the_heap_takes_what_is_written_and_gives_back_what_is_released() -> None:
    space = HeapSpace()
    before = anonymous()
    array = space.array("a", np.uint8, SIZE)
    assert anonymous() - before < 4_000_000, "memory was taken before anything was written"
    array[:] = 1
    full = anonymous()
    assert full - before > 0.9 * SIZE
    space.release(array, SIZE // 4)
    assert full - anonymous() > 0.7 * SIZE, "released memory is still held"
    assert array[: SIZE // 4].all()
    assert not array[SIZE // 4 + 4096 :].any(), "released items read as zero"
    array[SIZE - 1] = 7
    assert array[-1] == 7


def test_empty_arrays_and_foreign_ones() -> None:
    space = HeapSpace()
    empty = space.array("a", np.int64, 0)
    space.release(empty, 0)
    space.release(np.ones(10), 0)
    assert len(empty) == 0


def test_a_release_keeps_everything_before_it() -> None:
    space = HeapSpace()
    array: npt.NDArray[Any] = space.array("a", np.dtype([("x", np.int64), ("y", np.int32)]), 5000)
    array["x"] = np.arange(5000)
    for start in (4999, 3001, 1, 0):
        space.release(array, start)
        assert (array["x"][:start] == np.arange(start)).all()


def answer_through_a_file(directory: Path) -> None:
    array = FileSpace(directory).array("shared", np.int64, 1000)
    assert array[3] == 33
    array[4] = 44


def test_files_are_shared_between_processes(tmp_path: Path) -> None:
    array = FileSpace(tmp_path).array("shared", np.int64, 1000)
    assert not array.any()
    array[3] = 33
    assert in_child(answer_through_a_file, tmp_path) == 0
    assert array[4] == 44


def test_files_are_sparse_and_made_anew_for_another_length(tmp_path: Path) -> None:
    space = FileSpace(tmp_path / "deep" / "er")
    array = space.array("big", np.int64, 10_000_000)
    array[5] = 1
    assert sum(file.stat().st_blocks for file in (tmp_path / "deep" / "er").iterdir()) * 512 < 1_000_000
    other = FileSpace(tmp_path / "deep" / "er").array("big", np.int64, 20)
    assert not other.any()


def test_clocks() -> None:
    clock = VirtualClock()
    clock.advance(0.5)
    clock.advance(0)
    assert clock.now() == 0.5
    first = RealClock().now()
    assert RealClock().now() >= first
