"""What is made of the figures of joins of streams; the joins themselves have tests of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from millrace_bench.benchmarks import plots
from millrace_bench.benchmarks import spark_streams as streams
from millrace_bench.engines import spark_inputs
from millrace_bench.shared.memory import anonymous_below


def figures(checksums: tuple[str, str, str] = ("40 7", "40 7", "40 7")) -> dict[str, Any]:
    """Eight micro-batches of five rows a side; memory is looked at after every second."""
    points = [{"batch": batch, "seconds": 0.5 + batch, "rows_in": 10, "rows": 5} for batch in range(8)]
    for batch in range(1, 8, 2):
        points[batch] |= {"heap": 10**8, "native": 10**7 * batch, "python": 10**6}
    series = [
        {"engine": engine, "points": points, "checksum": checksum}
        for engine, checksum in zip(streams.ENGINES, checksums, strict=True)
    ]
    return {"batches": 8, "rows": 5, "memory": "4MB", "heap": "1g", "series": series}


def test_memory_and_time_are_shown(tmp_path: Path) -> None:
    console = Console(record=True, width=160, file=io.StringIO())
    streams._check(figures())
    streams._print(console, figures())
    shown = console.export_text()
    assert all(name in shown for name in streams.ENGINES.values())
    assert "171" in shown, "10**8 + 7 * 10**7 + 10**6 bytes at the end"
    assert plots.draw({"streams": figures()}, tmp_path) == [tmp_path / "streams.png"]


def test_other_rows_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="different rows"):
        streams._check(figures(("40 7", "40 8", "40 7")))
    with pytest.raises(RuntimeError, match="expected 40 rows; got 39"):
        streams._check(figures(("39 7", "39 7", "39 7")))


def test_every_key_is_once_on_both_sides(tmp_path: Path) -> None:
    folder = streams.prepare(tmp_path, 3, 20)
    for side in ("left", "right"):
        assert sorted(pq.read_table(folder / side)["key"].to_pylist()) == list(range(60))
    assert streams.prepare(tmp_path, 3, 20) == folder


@pytest.mark.parametrize(
    "prepare",
    [
        lambda directory: streams.prepare(directory, 3, 20),
        lambda directory: spark_inputs.prepare_master(directory, 1_000, shards=()),
        lambda directory: spark_inputs.prepare_stream(directory, 1_000, 100, 2, 1.0, 0.5),
    ],
)
def test_inputs_that_are_interrupted_leave_nothing_behind(
    prepare: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", interrupt)
        patch.setattr(pq.ParquetWriter, "write_batch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path)
    assert not list(tmp_path.iterdir())
    prepare(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert list(folder.rglob("*.parquet"))


def test_memory_of_children_counts() -> None:
    code = "import sys; held = bytearray(b'x') * 50_000_000; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        below = anonymous_below(os.getpid(), "held = bytearray")
        others = anonymous_below(os.getpid(), "no such words")
        child.communicate()
    assert 50_000_000 < below < 100_000_000
    assert others == 0
