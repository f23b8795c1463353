"""A plugin for pytest that records which lines each test runs, its time, and whether it passes.

`tools.mutants record` loads it. The environment variable `MUTANTS_RECORD` names a folder, to which every process writes
a file of covered lines and a file of tests. With `MUTANTS_LINES=0` only the file of tests is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest


class Recording:
    """Recorder of the tests that one process of pytest runs."""

    def __init__(self, folder: Path, lines: bool) -> None:
        name = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}"
        self._tests, self._found = folder / f"tests.{name}.json", dict[str, dict[str, object]]()
        self._coverage = None
        if lines:
            data = str(folder / f"coverage.{name}")
            self._coverage = coverage.Coverage(data_file=data, config_file=False, source=["src"], messages=False)
            self._coverage.set_option("run:disable_warnings", ["module-not-measured", "no-data-collected"])
            self._coverage.start()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Attribute the lines that run to a test while it is set up, called and torn down."""
        self._found[item.nodeid] = {
            "seconds": 0.0,
            "passed": False,
            "spark": "spark" in getattr(item, "fixturenames", ()),
            "thorough": item.get_closest_marker("thorough") is not None,
        }
        if self._coverage is not None:
            self._coverage.switch_context(item.nodeid)
        yield
        if self._coverage is not None:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record how long a test took, and whether it passed."""
        test = self._found.get(report.nodeid)
        if test is None:
            return  # this process only distributes tests to others
        if report.when == "call":
            test |= {"seconds": round(report.duration, 3), "passed": report.passed}
        elif report.failed:
            test["passed"] = False

    def pytest_sessionfinish(self) -> None:
        """Write the recorded lines and tests to files."""
        if self._coverage is not None:
            self._coverage.stop()
            self._coverage.save()
        self._tests.write_text(json.dumps(self._found))


def pytest_configure(config: pytest.Config) -> None:
    """Begin to record if the environment variable ``MUTANTS_RECORD`` names a folder."""
    folder = os.environ.get("MUTANTS_RECORD")
    if folder:
        config.pluginmanager.register(Recording(Path(folder), os.environ.get("MUTANTS_LINES") != "0"))
