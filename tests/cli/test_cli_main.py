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


def test_the_modules_of_commands_import_no_kernels() -> None:
    """Help is quick only as long as a command's imports wait until it runs."""
    program = (
        "import sys, types; package = types.ModuleType('millrace'); package.__path__ = sys.argv[1:]; "
        "sys.modules['millrace'] = package; import millrace.cli.main; print('numba' in sys.modules)"
    )
    package = Path(__file__).parents[2] / "src" / "millrace"
    done = subprocess.run([sys.executable, "-c", program, str(package)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


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
