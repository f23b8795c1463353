"""A standalone cluster of one master and two workers on loopback."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import campaign
import pyspark
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.torture


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running cluster."""
    home = tmp_path_factory.mktemp("cluster")
    port = _free_port()
    address = f"spark://127.0.0.1:{port}"
    started = [_start(home, "master.Master", "--port", str(port), "--webui-port", "0")]
    _wait_for(port)
    started += [
        _start(home, "worker.Worker", address, "--cores", "1", "--memory", "1g", "--webui-port", "0") for _ in range(2)
    ]
    yield address
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _start(home: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    spark = Path(next(iter(pyspark.__path__)))
    command = [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments]
    settings = {"SPARK_HOME": str(spark), "SPARK_WORKER_DIR": str(home / "work"), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**os.environ, **settings, "PYSPARK_PYTHON": sys.executable}
    with (home / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("the cluster did not start")


def kill_executor(root: Path, query: subprocess.Popen[bytes], dice: random.Random) -> bool:
    """SIGKILL for one executor that works for this query, with its Python workers."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes()
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in words and b"java" in words.split(b"\0")[0]:
            found.append(int(line.parent.name))
    assert found, "no executor to kill"
    os.kill(dice.choice(sorted(found)), signal.SIGKILL)
    return False


@pytest.mark.parametrize("mode", ["drain", "carry"])
def test_exact_after_executors_are_killed(spark: SparkSession, cluster: str, tmp_path: Path, mode: str) -> None:
    campaign.prepare(spark, tmp_path, files=20)
    assert campaign.survive(tmp_path, mode, kill_executor, times=2, seed=4, patience=300, master=cluster) == 2
    campaign.check(spark, tmp_path)
