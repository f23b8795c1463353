"""Rows that leave a stateful operator through a file, and copies of its state on a local disk."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from millrace.core.errors import SpillError, StateError
from millrace.spark.state.local_copies import LocalCopies, digest_of
from millrace.spark.transport.output_files import file_frames, file_lines, metrics_frame, metrics_line
from millrace.worker import row_files, shipping
from millrace.worker.row_files import read_rows


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Spark's local directory."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    return tmp_path / "millrace-output"


def given(frames: Iterator[pd.DataFrame]) -> Iterator[pa.RecordBatch]:
    return (pa.RecordBatch.from_pandas(frame, preserve_index=False) for frame in frames)


def batches() -> Iterator[pa.RecordBatch]:
    for start in (0, 3):
        yield pa.record_batch({"key": [start, None, start + 2], "list": [[start], None, []]})


def test_rows_come_out_as_they_went_in_and_the_file_is_gone(local: Path) -> None:
    [frame] = file_frames(batches())
    assert len(list(local.iterdir())) == 1
    assert list(read_rows(given(iter([frame, metrics_frame("1.0")])))) == list(batches())
    assert not list(local.iterdir())


def test_no_rows_take_no_file(local: Path) -> None:
    assert list(file_frames(iter(()))) == []
    assert not local.exists()


def test_a_step_that_fails_leaves_no_file(local: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches()
        raise StateError("half-way")

    with pytest.raises(StateError, match="half-way"):
        list(file_frames(failing()))
    assert not list(local.iterdir())


def test_a_file_that_somebody_has_removed_is_an_error_that_says_so(local: Path) -> None:
    frames = list(file_frames(batches()))
    for path in local.iterdir():
        path.unlink()
    with pytest.raises(StateError, match="something deletes files from Spark's local directory"):
        list(read_rows(given(iter(frames))))


def test_a_reader_that_stops_early_leaves_no_file(local: Path) -> None:
    frames = pd.concat([frame for _ in range(4) for frame in file_frames(batches())])
    reader = read_rows(given(iter([frames])))
    next(reader)
    del reader
    assert not list(local.iterdir())


def test_what_nobody_has_read_is_removed(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local.mkdir()
    for name, age in (("1-0.arrow", 3600), ("1-1.arrow", 10), ("README", 3600)):
        (local / name).write_text("")
        os.utime(local / name, (time.time() - age, time.time() - age))
    monkeypatch.setattr(row_files, "_tidied", {})
    list(file_frames(batches()))
    left = {path.name for path in local.iterdir() if not path.name.startswith(f"{os.getpid()}-")}
    assert left == {"1-1.arrow", "README"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_says_where_and_what_to_do(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_new_file", lambda: Path("/dev/full"))
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    with pytest.raises(SpillError, match=r"/dev/full: output rows cannot be written there: .*spark\.local\.dir"):
        list(file_frames(batches()))


def test_a_local_directory_that_cannot_be_made_says_so(local: Path) -> None:
    local.write_text("a file")
    with pytest.raises(SpillError, match="output rows cannot be written there"):
        list(file_frames(batches()))


def test_a_copy_is_read_only_if_it_is_whole(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, 3)
    digest = digest_of(b"rows")
    assert copies.get(digest) is None
    copies.put(digest, b"rows")
    assert copies.get(digest) == b"rows"
    assert LocalCopies(tmp_path, 4).get(digest) is None
    [path] = tmp_path.iterdir()
    path.write_bytes(b"sowr")
    assert copies.get(digest) is None


def test_copies_go_when_they_are_over_or_were_not_used_for_long(tmp_path: Path) -> None:
    copies, other = LocalCopies(tmp_path, 0), LocalCopies(tmp_path, 1)
    for blob in (b"wanted", b"over", b"old", b"used"):
        copies.put(digest_of(blob), blob)
    other.put(digest_of(b"another's"), b"another's")
    for path in tmp_path.iterdir():
        if path.read_bytes() != b"wanted":
            os.utime(path, (time.time() - 3600, time.time() - 3600))
    assert copies.get(digest_of(b"used")) == b"used"
    copies.forget([digest_of(b"over")])
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"wanted", b"used", b"another's"}


def test_a_disk_that_takes_no_copies_is_no_error(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path / "missing", 0)
    copies.put("digest", b"rows")
    copies.forget([])
    assert copies.get("digest") is None


def test_what_a_worker_has_loaded_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_tasks", 0)
    frozen = gc.get_freeze_count()
    try:
        shipping.begin_task()
        assert gc.get_freeze_count() == frozen
        shipping.begin_task()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_a_worker_that_only_reads_rows_loads_neither_kernels_nor_pandas() -> None:
    loads = "import sys, millrace.worker.row_files, millrace.worker.shipping as s; s.identity(); s.begin_task()"
    asked = f"{loads}; print([name for name in ('numba', 'pandas', 'pyspark') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_rows_of_a_stateless_join_leave_in_the_same_way(local: Path) -> None:
    rows = [pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3]})]
    lines = [*file_lines(iter(rows)), metrics_line("1.0 2.0")]
    assert [line.column(1).to_pylist() for line in lines] == [[None], ["1.0 2.0"]]
    assert len(list(local.iterdir())) == 1
    assert pa.Table.from_batches(read_rows(iter(lines))).to_pydict() == {"a": [1, 2, 3]}
    assert list(local.iterdir()) == []


def test_no_rows_are_no_file(local: Path) -> None:
    assert list(file_lines(iter(()))) == []
    assert metrics_line("5.0").column(0).to_pylist() == [None]
    assert not local.exists()
