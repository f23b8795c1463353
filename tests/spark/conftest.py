"""One Spark session for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.spark import session


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file share what they have set up, so they go to one process."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session(
        "millrace-tests",
        master="local[2]",
        spark__sql__shuffle__partitions=2,
        spark__driver__memory="1g",
        spark__driver__host="127.0.0.1",
        spark__driver__bindAddress="127.0.0.1",
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
