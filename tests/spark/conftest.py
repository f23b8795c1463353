"""One Spark session for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millrace.spark import session
from millrace.spark.session import JAVA


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
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
