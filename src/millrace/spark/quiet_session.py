"""A local Spark session that writes nothing to the terminal: its messages go to a file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from millrace.core.errors import ConfigError
from millrace.spark.session import session

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def hush() -> None:
    """Keep PySpark from writing Java's stack traces to stderr."""
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).disabled = True


@contextmanager
def quiet_spark(name: str, cores: int, scratch: Path, log: Path) -> Iterator[SparkSession]:
    """Yield a session on ``cores`` cores of this machine that prints only to ``log``; remove ``scratch`` at the end."""
    check_java()
    hush()
    settings = {
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.streaming.numRecentProgressUpdates": 10,
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": scratch,
        "spark.log.level": "ERROR",
    }
    with _output_to(log), ThreadPoolExecutor(1) as thread:  # in the main thread, Spark would take over Ctrl-C
        spark = thread.submit(session, name, master=f"local[{cores}]", **settings).result()
    try:
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Send stdout and stderr of this process, and of the processes started in the block, to a file."""
    terminal = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            for number, before in zip((1, 2), terminal, strict=True):
                os.dup2(before, number)
                os.close(before)


def check_java() -> None:
    """Check that Java is installed, in a version that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    how = "install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17)"
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        raise ConfigError(f"Spark needs Java 17 or later, and {java!r} does not run: {how}") from None
    found = re.search(r'version "(\d+)', printed)
    if found and int(found[1]) < 17:
        raise ConfigError(f"Spark needs Java 17 or later, and {java!r} is version {found[1]}: {how}")
