"""Crash campaigns: a query in another process is attacked at random moments until it is through."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from streams import master_frame, same_rows, write_files

from millrace.spark import build_master

MASTER = 30_000
Attack = Callable[[Path, "subprocess.Popen[bytes]", random.Random], bool | None]
"""Does its damage; True if the query has to be started again, None if there was nothing to damage."""


def prepare(spark: SparkSession, root: Path, files: int = 10, rows: int = 5_000) -> None:
    """A stream, a master whose keys come twice, and nothing else."""
    write_files(root / "in", files, rows, MASTER + 5_000)
    build_master(master_frame(spark, MASTER, 2), root / "store", "key", shards=2)


def survive(
    root: Path,
    mode: str,
    attack: Attack,
    times: int,
    seed: int,
    patience: float = 400,
    master: str = "local[2,8]",
    within: float = 2.0,
) -> int:
    """Run the query to its end under so many attacks; how many there really were.

    Each is so many seconds behind the end of a micro-batch, at most.
    """
    dice = random.Random(seed)
    attacks = 0
    deadline = time.monotonic() + patience
    query, seen, strike_at = _start(root, mode, master), _commits(root), 0.0
    try:
        while not (root / "done").exists():
            assert time.monotonic() < deadline, "the query did not come to its end"
            if query.poll() is not None and not (root / "done").exists():
                query, seen, strike_at = _start(root, mode, master), _commits(root), 0.0
            if not strike_at and _commits(root) > seen:  # it is at work
                strike_at = time.monotonic() + dice.uniform(0.0, within)
            if attacks < times and strike_at and time.monotonic() >= strike_at:
                again = attack(root, query, dice)
                if again is not None:  # otherwise the next moment will do
                    attacks += 1
                    seen, strike_at = _commits(root), 0.0
                if again:
                    query = _start(root, mode, master)
            time.sleep(0.01)
    finally:
        if not (root / "done").exists() and query.poll() is None:
            os.killpg(query.pid, signal.SIGKILL)
    query.wait()
    return attacks


def _commits(root: Path) -> int:
    """Micro-batches that are over."""
    return len(list((root / "check" / "commits").glob("[0-9]*")))


def check(spark: SparkSession, root: Path) -> None:
    """The output is the join, every row as often as it should be."""
    stream = spark.read.parquet(str(root / "in"))
    same_rows(spark.read.parquet(str(root / "out")), stream.join(master_frame(spark, MASTER, 2), "key", "left"))


def _start(root: Path, mode: str, master: str) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("crashing_query.py")
    with (root / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(script), str(root), mode, master], stdout=log, stderr=log, start_new_session=True
        )


# attacks


def kill_driver(root: Path, query: subprocess.Popen[bytes], dice: random.Random) -> bool | None:
    """SIGKILL for Python, the JVM and all workers at once."""
    os.killpg(query.pid, signal.SIGKILL)
    return True if query.wait() == -signal.SIGKILL else None  # it may have come to its end before


def kill_worker(root: Path, query: subprocess.Popen[bytes], dice: random.Random) -> bool | None:
    """SIGKILL for one of the Python workers."""
    workers = list(_workers(query.pid))
    if not workers:
        return None
    try:
        os.kill(dice.choice(workers), signal.SIGKILL)
    except ProcessLookupError:
        return None
    return False


def spoil_soft_state(root: Path, query: subprocess.Popen[bytes], dice: random.Random) -> bool | None:
    """Remove what workers have learned and what they have copies of, or write rubbish over it."""
    files = [path for kind in ("*.soft", "*.copy") for path in (root / "soft").rglob(kind)]
    if not files:
        return None
    if dice.random() < 0.3:
        shutil.rmtree(root / "soft", ignore_errors=True)
        return False
    for path in files:
        try:
            with path.open("r+b") as file:
                size = path.stat().st_size
                for _ in range(20):
                    file.seek(dice.randrange(max(1, size)))
                    file.write(dice.randbytes(200))
                if dice.random() < 0.3:
                    file.truncate(dice.randrange(max(1, size)))
        except OSError:
            continue
    return False


def _workers(group: int) -> Iterator[int]:
    """Python workers of a query: forked by its daemon, in its session."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
            line = (status.parent / "cmdline").read_bytes()
            parent = (Path("/proc") / fields[1] / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[3]) == group and b".daemon\0pyspark." in line and b".daemon\0pyspark." in parent:
            yield int(status.parent.name)
