"""What ``make test`` leaves to ``make thorough``: long tests, and most combinations of those that have many.

Of a test marked ``sampled(4)`` every fourth combination of parameters stays, one at least. Which ones differs from test
to test, and neighbours in one parameter differ in the others, so every algorithm, type and kind of join is met.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

collect_ignore = ["conftest.py"]  # no examples here, and other folders have one of this name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests: dict[tuple[object, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("sampled"):
            tests[item.parent, item.originalname].append(item)
    for (_, name), combinations in tests.items():
        values = max(index + 1 for item in combinations for index in item.callspec.indices.values())
        marker = combinations[0].get_closest_marker("sampled")
        assert marker is not None
        step = min(marker.args[0], values)
        for item in combinations:
            if (crc32(name.encode()) + sum(item.callspec.indices.values())) % step:
                item.add_marker(pytest.mark.thorough)


@pytest.fixture
def power_cut(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Copy what a power cut now would leave of a folder: of each file the bytes flushed last, of each folder the names.

    With ``renamed=True`` the names in the folder itself are those of now: the system may have written them already.
    """
    files: dict[int, bytes] = {}
    folders: dict[int, dict[str, tuple[int, bool]]] = {}
    flush = os.fsync

    def names(place: str | Path) -> dict[str, tuple[int, bool]]:
        return {entry.name: (entry.inode(), entry.is_dir()) for entry in os.scandir(place)}

    def fsync(descriptor: int) -> None:
        flush(descriptor)
        place, number = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_ino
        if os.path.isdir(place):
            folders[number] = names(place)
        else:
            files[number] = Path(place).read_bytes()

    def copy(entries: dict[str, tuple[int, bool]], target: Path) -> Path:
        target.mkdir()
        for name, (number, is_folder) in entries.items():
            if is_folder:
                copy(folders.get(number, {}), target / name)
            else:
                (target / name).write_bytes(files.get(number, b""))
        return target

    def leave(folder: Path, target: Path, *, renamed: bool = False) -> Path:
        return copy(names(folder) if renamed else folders.get(folder.stat().st_ino, {}), target)

    monkeypatch.setattr(os, "fsync", fsync)
    return leave


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield the one Spark session of a process."""
    from millrace.spark import session
    from millrace.spark.session import JAVA

    made = session(
        "millrace-tests",
        master="local[2]",
        spark__sql__shuffle__partitions=2,
        spark__driver__memory="1g",
        spark__driver__host="127.0.0.1",
        spark__driver__bindAddress="127.0.0.1",
        # Many small queries: there is more to compile than to run, and little to collect.
        spark__driver__extraJavaOptions=f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {JAVA}",
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
