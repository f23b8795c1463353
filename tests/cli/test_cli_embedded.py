from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import Result

from millrace_bench.demo.embedded_demo import Oracle, WrongResultError, anonymous_bytes

Cli = Callable[..., Result]

SMALL = ("embedded-demo", "--rows", 20_000, "--tuples", 50_000)


def test_the_demo_leaves_nothing_behind(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = cli(*SMALL, "--memory", "5%")
    assert done.exit_code == 0, done.output
    for words in ("exact", "all 50,000 rows", "service rate", "RssAnon", "What you saw", "Where to go next"):
        assert words in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_kept_and_used_again(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = cli(*SMALL, "--memory", "100kB", "--directory", data)
    assert done.exit_code == 0, done.output
    kept = sorted(path.name for path in data.iterdir())
    assert kept == ["master-20000.store", "stream-50000-of-20000-skew1.arrow"]
    before = {path: path.stat().st_mtime_ns for path in data.iterdir()}
    assert cli(*SMALL, "--memory", "200kB", "--directory", data).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in data.iterdir()}.keys() == before.keys()
    assert (data / kept[1]).stat().st_mtime_ns == before[data / kept[1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--memory", "10B"], "too little"), (["--rows", "0"], "rows, tuples"), (["--skew", "-1"], "skew: expected")],
)
def test_errors_leave_nothing_behind(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = cli(*SMALL, *options)
    assert done.exit_code == 1
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    running = start("embedded-demo", "--rows", 50_000_000)
    code, _, err = running.interrupt_once(lambda: bool(list(tmp_path.glob("millrace-demo-*/.building*/shard*/*"))))
    assert (code, err) == (130, "interrupted\n")
    assert list(tmp_path.iterdir()) == []


STREAM = pa.table({"key": [1, 2, 9, 2], "sid": [0, 1, 2, 3], "qty": [5, 6, 7, 8]})
MASTER = pa.table({"key": [2, 1], "a1": [20, 10]})
RIGHT = {"key": [2, 1, 2], "sid": [3, 0, 1], "qty": [8, 5, 6], "a1": [20, 10, 20]}


def reader(columns: dict[str, list[int]]) -> pa.RecordBatchFileReader:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(columns)
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(0, 2))
        writer.write_batch(batch.slice(2))
    return pa.ipc.open_file(sink.getvalue())


def test_the_oracle_accepts_the_join() -> None:
    seen: list[int] = []
    Oracle(STREAM, MASTER).check("x", reader(RIGHT), seen.append)
    assert seen == [2, 3]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({name: values[:2] for name, values in RIGHT.items()}, "the wrong number of times"),
        ({name: [*values, values[0]] for name, values in RIGHT.items()}, "the wrong number of times"),
        (RIGHT | {"sid": [3, 0, 3]}, "differs"),
        (RIGHT | {"a1": [20, 10, 21]}, "column 'a1' differs"),
        (RIGHT | {"qty": [8, 5, 7]}, "column 'qty' differs"),
        (RIGHT | {"sid": [3, 0, 2]}, "not in pyarrow's result"),
        (RIGHT | {"sid": [3, 0, 4]}, "not in pyarrow's result"),
        (RIGHT | {"sid": [3, 0, -1]}, "not in pyarrow's result"),
    ],
)
def test_the_oracle_rejects_anything_else(columns: dict[str, list[int]], message: str) -> None:
    with pytest.raises(WrongResultError, match=message):
        Oracle(STREAM, MASTER).check("x", reader(columns), lambda rows: None)


def test_anonymous_memory_is_measured() -> None:
    before = anonymous_bytes()
    with mmap.mmap(-1, 32_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:  # not what was freed before
        held[:] = b"x" * len(held)
        assert anonymous_bytes() - before > 0.8 * len(held) or before == 0
