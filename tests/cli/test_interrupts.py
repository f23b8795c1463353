"""Ctrl-C: lost ones are raised again, repeated ones leave clean-up alone, and at any moment nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
