"""Ctrl-C: lost ones are raised again, repeated ones leave clean-up alone, and at any moment nothing is left behind."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from millrace.cli.files import ARROW
from millrace.master.store import MasterStore

# each presses Ctrl-C where Python discards the exception, or in the midst of a clean-up
LOST = {
    "finaliser": """
class Finalised:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
def press():
    Finalised()
""",
    "finaliser of a generator": """
def rows():
    try:
        yield
    finally:
        signal.raise_signal(signal.SIGINT)
def press():
    next(rows())
""",
    "weak reference": """
class Referred:
    pass
def press():
    referred = Referred()
    reference = weakref.ref(referred, lambda _: signal.raise_signal(signal.SIGINT))
    del referred
""",
    "C callback": """
called = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
def press():
    called()
""",
    "except": """
def press():
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        pass
""",
}

PROGRAM = """
import ctypes, signal, sys, time, weakref
from pathlib import Path
from millrace.__main__ import main
from millrace.cli.main import app
{definitions}
@app.command()
def example():
    {command}
sys.argv = ["millrace", "example"]
main()
"""

WORK = """for _ in range(500):
        time.sleep(0.01)"""


def ended(definitions: str, command: str, *arguments: Path) -> tuple[int, str, str]:
    """Run a command of its own on the command line; return its exit code and what it printed."""
    program = PROGRAM.format(definitions=definitions, command=command)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=_python_handles_interrupts,
    )
    return done.returncode, done.stdout, done.stderr


def _python_handles_interrupts() -> None:
    """Undo what a shell does to processes in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("place", LOST)
def test_an_interrupt_that_python_discards_ends_the_command_anyway(place: str) -> None:
    assert ended(LOST[place], f"press()\n    {WORK}\n    print('complete')") == (130, "", "interrupted\n")


def test_an_interrupt_while_modules_are_imported_ends_the_command_when_they_are_there(tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nprint('imported')\n")
    path = f"sys.path.insert(0, {str(tmp_path)!r})"
    assert ended(path, f"import imported\n    {WORK}") == (130, "imported\n", "interrupted\n")


def test_an_interrupt_before_the_command_begins() -> None:
    early = """
from millrace.cli.interrupts import run
def starting():
    signal.raise_signal(signal.SIGINT)
    sys.argv = ["millrace", "example"]
    app()
def main():
    run(starting)
"""
    assert ended(early, f"{WORK}\n    print('complete')") == (130, "", "interrupted\n")


CLEANUP = """
class Cleanup:
    def __enter__(self):
        pass
    def __exit__(self, *_):
        signal.raise_signal(signal.SIGINT)
        {work}
        print("clean")
"""


@pytest.mark.parametrize("first", ["pass", "signal.raise_signal(signal.SIGINT)"], ids=["once", "twice"])
def test_clean_up_is_not_interrupted(first: str) -> None:
    work = "for _ in range(20):\n            time.sleep(0.01)"
    command = f"with Cleanup():\n        {first}\n    {WORK}"
    assert ended(CLEANUP.format(work=work), command) == (130, "clean\n", "interrupted\n")


def test_a_finally_block_is_not_interrupted_again() -> None:
    command = """try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
        for _ in range(20):
            time.sleep(0.01)
        print("clean")"""
    assert ended("", command) == (130, "clean\n", "interrupted\n")


def test_an_error_that_a_library_makes_of_an_interrupt_is_still_one() -> None:
    command = """try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise OSError("cancelled")"""
    assert ended("", command) == (130, "", "interrupted\n")


def test_other_unraisable_exceptions_are_still_reported() -> None:
    code, _, err = ended("class Faulty:\n    def __del__(self):\n        raise ValueError('mine')", "Faulty()")
    assert code == 0
    assert "ValueError: mine" in err


# the campaign

INTERRUPTS = int(os.environ.get("MILLRACE_INTERRUPTS", "200"))
SEED = int(os.environ.get("MILLRACE_INTERRUPTS_SEED", "1"))

_UNFINISHED = re.compile(r"\..*(?<!\.crc)|.*\.(\d{3,}|partial|making)|tmp\w+")
"""Names of what is being made: hidden, or with the number of a process."""

_SPARKS_OWN = ("checkpoint", "warehouse")
"""Folders in which Spark leaves files of micro-batches that it does over."""


@dataclass(frozen=True)
class Command:
    """A command line in which ``{to}`` is a folder for results and ``{data}`` one with inputs."""

    line: str
    target: str = ""

    def arguments(self, to: Path, data: Path) -> list[str]:
        return self.line.format(to=to, data=data).split()


COMMANDS = {
    "generate parquet": Command("generate stream {to}/a.parquet --rows 10_000_000", "a.parquet"),
    "generate arrow": Command("generate master {to}/a.arrow --rows 4_000_000", "a.arrow"),
    "build": Command("master build {data}/master.parquet {to}/store --key key --shards 2", "store"),
    "join": Command("join {data}/stream.parquet {data}/store {to}/a.parquet --on key --memory 1MB", "a.parquet"),
    "bench": Command("bench run sscj --size small --processes 2 --directory {to}/data --to {to}/results"),
    "embedded demo": Command("embedded-demo --rows 200_000 --tuples 1_000_000"),
    "demo": Command(
        "demo --directory {to}/demo --scale 0.01 --orders 12_000 --memory 60kB --batches 4",
    ),
}


class Interruptible:
    """A command in a session of its own, with a folder for results and one for temporary files."""

    def __init__(self, command: Command, place: Path, data: Path) -> None:
        self._command = command
        self.to, self.temporary, self.cache = place / "to", place / "temporary", place / "cache"
        for folder in (self.to, self.temporary):
            folder.mkdir(parents=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millrace", *command.arguments(self.to, data)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.to,
            env=os.environ | {"TMPDIR": str(self.temporary), "XDG_CACHE_HOME": str(self.cache)},
            start_new_session=True,
            preexec_fn=_python_handles_interrupts,
        )
        while self.process.poll() is None and not self.at_work:
            time.sleep(0.001)
        self.began = time.monotonic()

    @property
    def at_work(self) -> bool:
        """Whether the command's code is running: only then the process has a handler for SIGALRM."""
        found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        return found is not None and bool(int(found[1], 16) >> (signal.SIGALRM - 1) & 1)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code and what was written."""
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, out, err

    def processes(self) -> list[str]:
        """Return the command lines of the session's other processes; Java may take a moment to end."""
        deadline = time.monotonic() + 60
        while (found := self._session()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _session(self) -> list[str]:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    found.append(stat.with_name("cmdline").read_text().replace("\0", " "))
            except OSError:
                continue  # ended meanwhile
        return found

    def left(self) -> list[str]:
        """Return what should not be there: anything temporary or unfinished."""
        found = [str(path) for path in self.temporary.iterdir()]
        for folder in (self.to, self.cache):
            for path in folder.rglob("*"):
                parts = path.relative_to(folder).parts
                if any(map(_UNFINISHED.fullmatch, parts)) and not set(parts) & set(_SPARKS_OWN):
                    found.append(str(path))
        target = self.to / self._command.target
        if self._command.target and target.exists():  # it came just before the end
            try:
                if target.is_dir():
                    MasterStore.open(target).verify()
                else:
                    ds.dataset(target, format="ipc" if target.suffix in ARROW else "parquet").count_rows()
            except Exception as error:
                found.append(f"{target}: {error}")
        return found

    def kill(self) -> None:
        """End it and all processes of its session, should any be left."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(stat.read_text().rpartition(")")[2].split()[3]) == self.process.pid:
                    os.kill(int(stat.parent.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue
        self.process.communicate()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs of the commands."""
    place = tmp_path_factory.mktemp("data")
    for line in (
        "generate master {data}/master.parquet --rows 1_000_000",
        "generate stream {data}/stream.parquet --rows 4_000_000",
        "master build {data}/master.parquet {data}/store --key key",
    ):
        arguments = Command(line).arguments(place, place)
        subprocess.run([sys.executable, "-m", "millrace", *arguments], check=True, capture_output=True)
    return place


@pytest.mark.torture
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_random_moments(name: str, tmp_path: Path, data: Path) -> None:
    """Every other one goes to all processes, as from a terminal; some are followed by a second one."""
    rng = random.Random(f"{SEED} {name}")
    whole = Interruptible(COMMANDS[name], tmp_path / "whole", data)
    code, _, err = whole.end()
    assert (code, whole.processes(), whole.left()) == (0, [], []), err
    longest = time.monotonic() - whole.began
    wanted = -(-INTERRUPTS // len(COMMANDS))
    faults: list[str] = []
    done = draw = 0
    while done < wanted:
        draw += 1
        assert draw < 3 * wanted + 10, "the command ends before it is interrupted"
        moment, group, again = rng.uniform(0, longest), rng.random() < 0.5, rng.choice((None, None, 0.05, 0.5))
        running = Interruptible(COMMANDS[name], tmp_path / f"{draw}", data)
        try:
            time.sleep(max(0.0, running.began + moment - time.monotonic()))
            if running.at_work:
                _press(running.process.pid, group)
            if not running.at_work and running.end()[0] == 0:
                longest = min(longest, moment)  # its work was over; a first run compiles kernels and takes longer
                continue
            if again is not None:
                time.sleep(again)
                _press(running.process.pid, group)
            pressed = time.monotonic()
            code, out, err = running.end()
            seconds = time.monotonic() - pressed
            left, processes = running.left(), running.processes()
            done += 1
            what = f"{name} #{draw} at {moment:.2f} of {longest:.1f} s, group {group}, again {again}"
            print(f"{what}: code {code} in {seconds:.1f} s, {len(left)} left, {err.strip()[-100:]!r}", flush=True)
            if code != 130 or left or processes or "Traceback" in err or err.count("\n") > 1:
                faults.append(f"{what}: code {code}, left {left}, {processes}\n{out[-500:]}{err[-3000:]}")
        finally:
            running.kill()
    assert not faults, "\n\n".join(faults)


def _press(pid: int, group: bool) -> None:
    with suppress(ProcessLookupError):  # it has ended
        (os.killpg if group else os.kill)(pid, signal.SIGINT)
