from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from millrace.cli.display import names, short
from millrace.cli.main import BENCH_COMMANDS, COMMANDS, imported
from millrace.semistream.algorithms import ALGORITHMS

Cli = Callable[..., Result]


def test_help_teaches(cli: Cli) -> None:
    shown = cli("--help")
    assert shown.exit_code == 0
    for word in ("demo", "generate", "master", "join", "algorithms", "millrace master build customers.parquet"):
        assert word in shown.output


@pytest.mark.parametrize(
    "command", ["demo", "generate stream", "generate master", "generate tpch", "master build", "master info", "join"]
)
def test_every_command_has_help(cli: Cli, command: str) -> None:
    shown = cli(*command.split(), "--help")
    assert shown.exit_code == 0
    assert "Usage" in shown.output


def test_version(cli: Cli) -> None:
    shown = cli("--version")
    assert (shown.exit_code, shown.output) == (0, f"millrace {version('millrace')}\n")


def test_algorithms_are_listed_with_their_options(cli: Cli) -> None:
    shown = cli("algorithms")
    assert shown.exit_code == 0
    for name, algorithm in ALGORITHMS.items():
        assert name in shown.output
        assert all(option in shown.output for option in algorithm.options)
    assert shown.output.count("an index") >= sum(algorithm.needs_index for algorithm in ALGORITHMS.values())
    row = next(line for line in shown.output.splitlines() if " ssbj " in line)
    assert "index" not in row


def modules_loaded(program: str) -> set[str]:
    """Return the modules that a new process has loaded after a program."""
    program += "; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_modules_of_commands_import_no_kernels() -> None:
    """Help is quick only as long as a command's imports wait until it runs."""
    loaded = modules_loaded("from millrace.cli.main import AVAILABLE, imported; [imported(name) for name in AVAILABLE]")
    assert {"millrace.cli.join_command", "millrace_bench.bench_command"} <= loaded
    assert not loaded & {"numba", "numpy", "pyarrow", "pyspark"}


def test_the_list_of_commands_imports_none_of_them() -> None:
    shown = (
        "from typer.testing import CliRunner; CliRunner().invoke(main.app, ['--help']).stdout.index('embedded-demo')"
    )
    loaded = modules_loaded(f"from millrace.cli import main; {shown}")
    assert "rich" in loaded
    ours = {name for name in loaded if name.split(".")[0] in ("millrace", "millrace_bench")}
    assert ours == {
        "millrace",
        "millrace.cli",
        "millrace.cli.command_group",
        "millrace.cli.interrupts",
        "millrace.cli.main",
        "millrace.core",
        "millrace.core.errors",
    }


@pytest.mark.parametrize("name", [*COMMANDS, *BENCH_COMMANDS])
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    """The help of a command in the list is the first sentence of its own help."""
    listed = COMMANDS[name][1] if name in COMMANDS else BENCH_COMMANDS[name]
    assert imported(name).help.split("\n\n")[0].replace("\n", " ") == listed


@pytest.mark.parametrize("arguments", [["demo"], ["embedded-demo", "--help"], ["bench", "list"]])
def test_without_the_bench_package_an_error_says_what_to_install(arguments: list[str]) -> None:
    program = (
        "from importlib import metadata; metadata.entry_points = lambda **_: (); from millrace.cli.main import app"
    )
    command = [sys.executable, "-c", program + "; app()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {arguments[0]}: needs the package millrace_bench")
    assert "pip install ./src/millrace_bench" in done.stderr
    assert done.stderr.count("\n") == 1
    shown = subprocess.run([*command[:3], "--help"], capture_output=True, text=True, check=True).stdout
    assert "algorithms" in shown
    assert "demo" not in shown
    assert "millrace generate stream orders.parquet --rows 2_000_000" in map(str.strip, shown.splitlines())


def test_a_package_can_add_a_command(
    tmp_path: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed without being imported, and cannot replace a command of Millrace."""
    described = tmp_path / "added_package-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: added-package\nVersion: 1\n")
    (described / "entry_points.txt").write_text(
        "[millrace.commands]\ncount = added_package:count\njoin = added_package:count\n"
    )
    (tmp_path / "added_package.py").write_text(
        "print('imported')\ndef count(rows: int) -> None:\n    print(rows + 1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    _, shown, _ = start("--help").end()
    assert "A command of the package added-package" in shown
    assert "imported" not in shown
    assert start("count", "41").end() == (0, "imported\n42\n", "")
    assert "Join a stream with a store" in start("join", "--help").end()[1]


def test_an_error_is_one_line_on_stderr(start: Callable[..., Any], tmp_path: Path) -> None:
    code, out, err = start("master", "info", tmp_path / ("long" * 40)).end()
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert "no such directory" in err
    assert err.count("\n") == 1


def test_an_error_is_red_on_a_terminal(start: Callable[..., Any], tmp_path: Path) -> None:
    _, _, err = start("master", "info", tmp_path / "none", terminal=True).end()
    assert err.startswith("\x1b[31merror: ")


def test_a_closed_pipe_is_quiet(store: Path) -> None:
    """Output to a pipe nobody reads any more."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "millrace", "master", "info", str(store)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode in (1, errno.EPIPE)


def test_names() -> None:
    assert names(None) is None
    assert names("a, b,,c") == ["a", "b", "c"]


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (9999, "9,999"), (10_000, "10.0k"), (2e6, "2.00M")])
def test_short(number: float, text: str) -> None:
    assert short(number) == text
