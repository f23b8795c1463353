from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from millrace.cli.files import FileError, StreamFiles, TableWriter
from millrace.datasets import STREAM_SCHEMA, synthetic_master, zipf_stream

Cli = Callable[..., Result]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_stream_is_the_data_set(cli: Cli, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / "sub" / f"stream.{suffix}"
    options = ("--rows", 2500, "--domain", 100, "--skew", 0.5, "--seed", 3, "--batch-rows", 1000)
    done = cli("generate", "stream", target, *options)
    assert done.exit_code == 0, done.output
    assert "2,500 rows" in done.output
    expected = pa.Table.from_batches(zipf_stream(100, 0.5, batch_rows=2500, batches=1, seed=3))
    assert ds.dataset(target, format="parquet" if suffix == "parquet" else "ipc").to_table().equals(expected)
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_sorted_stream_has_key_1_most_often(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "stream.parquet"
    assert cli("generate", "stream", target, "--rows", 5000, "--order", "sorted").exit_code == 0
    assert np.bincount(pq.read_table(target)["key"].to_numpy()).argmax() == 1


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        ([], {}),
        (["--duplicates", "--domain", "50", "--seed", "9"], {"unique": False, "domain": 50, "seed": 9}),
        (["--order", "sorted"], {"order": "sorted"}),
    ],
)
def test_a_master_is_the_data_set(cli: Cli, tmp_path: Path, options: list[str], keywords: dict[str, object]) -> None:
    target = tmp_path / "master.parquet"
    done = cli("generate", "master", target, "--rows", 3000, *options)
    assert done.exit_code == 0, done.output
    assert pq.read_table(target).equals(synthetic_master(3000, **keywords).read_all())  # type: ignore[arg-type]


def test_row_groups_are_bounded(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "stream.parquet"
    cli("generate", "stream", target, "--rows", 400_000)
    groups = pq.read_metadata(target)
    assert groups.num_row_groups == 4
    assert max(groups.row_group(i).num_rows for i in range(4)) <= 131_072


def test_what_is_there_is_not_overwritten_unasked(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "stream.parquet"
    target.write_text("precious")
    done = cli("generate", "stream", target, "--rows", 10)
    assert done.exit_code == 1
    assert done.stderr == f"error: {target}: already exists; pass --overwrite to replace it\n"
    assert target.read_text() == "precious"
    assert cli("generate", "stream", target, "--rows", 10, "--overwrite").exit_code == 0
    assert pq.read_table(target).num_rows == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stream", "{}/a.csv"], "expected a name ending in .parquet or .arrow"),
        (["stream", "{}/a.parquet", "--order", "random"], "order: expected one of 'shuffled', 'sorted'"),
        (["stream", "{}/a.parquet", "--rows", "-1"], "rows"),
        (["stream", "{}/a.parquet", "--batch-rows", "0"], "batch-rows"),
        (["stream", "{}/a.parquet", "--skew", "-1"], "skew: expected"),
        (["stream", "{}/a.parquet", "--domain", "0"], "domain: expected"),
        (["master", "{}/a.parquet", "--order", "random"], "order: expected one of"),
        (["master", "{}/a.parquet", "--domain", "7"], "domain: expected"),
        (["tpch", "{}", "--table", "lineitem"], "table: expected one of 'customer', 'orders'"),
        (["tpch", "{}", "--scale", "0"], "scale: expected"),
    ],
)
def test_bad_options(cli: Cli, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = cli("generate", *(argument.format(tmp_path) for argument in arguments))
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_power_cut_after_the_rename_leaves_the_whole_table(
    name: str, cli: Cli, tmp_path: Path, power_cut: Callable[..., Path]
) -> None:
    """The file is flushed before it takes the place of the old one, so that there is one of them in any case."""
    folder = tmp_path / "tables"
    assert cli("generate", "stream", folder / name, "--rows", 10).exit_code == 0
    assert cli("generate", "stream", folder / name, "--rows", 1_000, "--overwrite").exit_code == 0
    kept = power_cut(folder, tmp_path / "kept", renamed=True)
    assert [path.name for path in kept.iterdir()] == [name]
    assert (kept / name).read_bytes() == (folder / name).read_bytes()
    assert StreamFiles(kept / name).rows == 1_000


def test_a_folder_is_not_written_over(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").mkdir()
    done = cli("generate", "stream", tmp_path / "a.parquet", "--overwrite")
    assert done.exit_code == 1
    assert "is a folder" in done.stderr


def test_tpch(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "customer-sf0.001.parquet"
    arguments = ("generate", "tpch", tmp_path, "--table", "customer", "--scale", 0.001)
    assert "150 rows" in cli(*arguments).output
    before = target.stat().st_mtime_ns
    assert "already exists" in cli(*arguments).output
    assert target.stat().st_mtime_ns == before
    assert "150 rows" in cli(*arguments, "--overwrite").output
    assert target.stat().st_mtime_ns > before
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_an_exception_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    batch = next(zipf_stream(10, 1.0, batch_rows=200_000))

    def write_and_fail() -> None:
        with TableWriter(tmp_path / name, STREAM_SCHEMA) as writer:
            writer.write(batch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_an_interrupt_while_the_file_is_made_leaves_nothing_behind(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def interrupted(path: str, mode: str) -> None:
        Path(path).open(mode).close()
        made.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(pa, "OSFile", interrupted)
    with pytest.raises(KeyboardInterrupt), TableWriter(tmp_path / name, STREAM_SCHEMA) as writer:
        writer.open()
    assert made
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_no_rows_are_a_file_too(tmp_path: Path, name: str) -> None:
    with TableWriter(tmp_path / name, STREAM_SCHEMA):
        pass
    form = "parquet" if name.endswith(".parquet") else "ipc"
    assert ds.dataset(tmp_path / name, format=form).to_table().schema.equals(STREAM_SCHEMA)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    """Files may not grow beyond a limit, which fails like a full disk."""
    batch = next(zipf_stream(10, 0.0, batch_rows=200_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(FileError, match="could not be written"), TableWriter(tmp_path / name, STREAM_SCHEMA) as w:
            w.write(batch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["stream", "master"])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_ctrl_c_leaves_nothing_behind(start: Callable[..., Any], tmp_path: Path, command: str, suffix: str) -> None:
    running = start("generate", command, tmp_path / f"a.{suffix}", "--rows", 10**9)
    code, out, err = running.interrupt_once(lambda: any(path.stat().st_size for path in tmp_path.iterdir()))
    assert (code, out, err) == (130, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_progress_is_shown_on_a_terminal(start: Callable[..., Any], tmp_path: Path) -> None:
    target = tmp_path / "a.arrow"
    code, _, err = start("generate", "stream", target, "--rows", 3_000_000, terminal=True).end()
    assert code == 0
    assert "rows/s" in err
