from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from millrace.cli.main import app

Cli = Callable[..., Result]


@pytest.fixture
def cli() -> Cli:
    """Run the command in this process."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


class Started:
    """The command in a process of its own."""

    def __init__(self, *arguments: object, terminal: bool = False) -> None:
        environment = os.environ | ({"FORCE_COLOR": "1", "COLUMNS": "120"} if terminal else {})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millrace", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code and what was written to stdout and stderr."""
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err

    def interrupt_once(self, begun: Callable[[], bool]) -> tuple[int, str, str]:
        """Send SIGINT as soon as ``begun``."""
        deadline = time.monotonic() + 120
        while not begun():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "never began"
            time.sleep(0.01)
        self.process.send_signal(signal.SIGINT)
        return self.end()


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def run(*arguments: object, terminal: bool = False) -> Started:
        started.append(Started(*arguments, terminal=terminal))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.fixture
def customers(tmp_path: Path) -> pa.Table:
    """A master with a key of which some repeat."""
    table = pa.table(
        {
            "custkey": pa.array([1, 2, 2, 3, 5, 8, None], pa.int64()),
            "name": ["Ann", "Bo", "Bob", "Cy", "Di", "Ed", "nobody"],
            "qty": pa.array([10, 20, 21, 30, 50, 80, 0], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "customers.parquet")
    return table


@pytest.fixture
def orders(tmp_path: Path) -> pa.Table:
    """A stream, some of whose tuples match nothing."""
    count = 1000
    table = pa.table(
        {
            "cust": pa.array([None if i % 17 == 0 else i % 10 for i in range(count)], pa.int64()),
            "sid": pa.array(range(count), pa.int64()),
            "qty": pa.array([i % 7 for i in range(count)], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "orders.parquet", row_group_size=300)
    return table


@pytest.fixture
def store(tmp_path: Path, customers: pa.Table, cli: Cli) -> Path:
    path = tmp_path / "customers.store"
    done = cli("master", "build", tmp_path / "customers.parquet", path, "--key", "custkey")
    assert done.exit_code == 0, done.output
    return path
