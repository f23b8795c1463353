"""What is packed into the two wheels, millrace and millrace-bench, and what importing the package costs."""

from __future__ import annotations

import fnmatch
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import millrace

ROOT = Path(__file__).parents[1]
PROJECTS = {"millrace": ROOT, "millrace_bench": ROOT / "src" / "millrace_bench"}


def settings(package: str) -> dict[str, Any]:
    return tomllib.loads((PROJECTS[package] / "pyproject.toml").read_text())


@pytest.mark.parametrize("package", PROJECTS)
def test_every_module_is_in_the_wheel(package: str) -> None:
    """Packages are found by their ``__init__.py``; a folder without one would be left out."""
    found = settings(package)["tool"]["setuptools"]["packages"]["find"]
    assert found["namespaces"] is False
    assert [(PROJECTS[package] / place).resolve() for place in found["where"]] == [ROOT / "src"]
    folders = {file.parent for file in (ROOT / "src" / package).rglob("*.py") if "build" not in file.parts}
    assert len(folders) > 5
    for folder in folders:
        assert (folder / "__init__.py").is_file(), f"{folder} is not a package"


@pytest.mark.parametrize(("package", "other"), [("millrace", "millrace_bench"), ("millrace_bench", "millrace")])
def test_a_wheel_has_one_package(package: str, other: str) -> None:
    included = settings(package)["tool"]["setuptools"]["packages"]["find"]["include"]
    for name, kept in ((package, True), (f"{package}.a.b", True), (other, False), (f"{other}.a", False)):
        assert any(fnmatch.fnmatchcase(name, pattern) for pattern in included) == kept


def test_the_wheel_has_the_marker_of_type_hints() -> None:
    assert settings("millrace")["tool"]["setuptools"]["package-data"] == {"millrace": ["py.typed"]}
    assert (ROOT / "src" / "millrace" / "py.typed").is_file()


@pytest.mark.parametrize("command", ["demo", "embedded-demo", "bench"])
def test_commands_of_the_bench_package_are_where_its_entry_points_say(command: str) -> None:
    module, _, attribute = settings("millrace_bench")["project"]["entry-points"]["millrace.commands"][
        command
    ].partition(":")
    assert hasattr(import_module(module), attribute)


def test_importing_millrace_imports_nothing_else() -> None:
    program = "import sys; before = {*sys.modules}; import millrace; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded <= {"millrace", *sys.stdlib_module_names}


def test_public_names_are_listed_before_they_are_used() -> None:
    program = "import millrace; print(*dir(millrace))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {*millrace.__all__} <= {*done.stdout.split()}


@pytest.mark.parametrize("name", millrace.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(millrace, name) is not None
