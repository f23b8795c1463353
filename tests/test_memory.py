"""The budget against what the operating system says: a join's process does not grow beyond it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr

pytestmark = pytest.mark.sampled(4)

SLACK = 48_000_000
BUDGET = 6_000_000

SCRIPT = """
    import sys
    import numpy as np
    import pyarrow as pa
    import millrace as mr

    def anonymous():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

    rng = np.random.default_rng(1)

    def batches(count):
        for _ in range(count):
            keys = np.minimum(rng.zipf(1.3, 20_000), 400_000)
            yield pa.record_batch({"k": keys, "text": ["some text of a tuple"] * 20_000})

    def run(memory, count):
        join = mr.SemiStreamJoin(sys.argv[1], "k", "left", algorithm=sys.argv[2], memory=memory)
        rows = most = 0
        for batch in join.run(batches(count)):
            rows += len(batch)
            most = max(most, anonymous())
        assert join.metrics.peak_bytes <= memory
        assert rows >= 20_000 * count
        return most

    run(1_000_000, 1)  # compile, open, warm up
    before = anonymous()
    print(run(int(sys.argv[3]), 15) - before)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = 300_000
    master = pa.table(
        {"k": rng.permutation(rows), "v": rng.random(rows), "name": [f"name of row {i:>40}" for i in range(rows)]}
    )
    path = tmp_path_factory.mktemp("memory") / "store"
    mr.MasterStore.build(master, path, "k")
    return path


@pytest.mark.parametrize("algorithm", list(mr.ALGORITHMS))
def test_a_process_stays_within_its_budget(algorithm: str, store: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(store), algorithm, str(BUDGET)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout)
    assert grown <= BUDGET + SLACK, f"{grown / 1e6:.1f} MB more for a budget of {BUDGET / 1e6:.1f} MB"
