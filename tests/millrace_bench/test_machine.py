"""The measurements of this machine, on so little data that their figures mean nothing: they run and add up."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from millrace_bench.benchmarks import claims, disk, drift, family
from millrace_bench.benchmarks.join_worker import JoinSetting, measure
from millrace_bench.benchmarks.plots import draw
from millrace_bench.shared.memory import anonymous_bytes
from millrace_bench.shared.row_checksum import RowChecksum


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs")


def _quiet() -> Console:
    return Console(file=StringIO())


def test_a_checksum_knows_rows_and_not_their_order() -> None:
    rows = pa.record_batch({"k": [1, 2, 3], "x": [0.5, 1.5, 2.5], "t": ["a", "bc", ""]})
    whole, parts, other = RowChecksum(), RowChecksum(), RowChecksum()
    whole.add(rows)
    parts.add(rows.slice(2))
    parts.add(rows.slice(0, 2))
    other.add(rows.set_column(0, "k", pa.array([1, 2, 4])))
    assert str(whole) == str(parts) != str(other)
    with pytest.raises(ValueError, match="nulls"):
        whole.add(pa.record_batch({"k": [1, None]}))


def test_memory_that_grows_is_seen() -> None:
    """In a process of its own: in this one, what other tests held may be given back meanwhile."""
    script = """
from millrace_bench.shared.memory import PeakMemory
with PeakMemory() as memory:
    held = bytearray(30_000_000)
    held[::4096] = b"x" * len(held[::4096])
print(memory.growth)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 29_000_000 <= int(told.stdout) <= 40_000_000
    assert anonymous_bytes() > 0


@pytest.mark.parametrize(
    ("wanted", "ratio", "holds"), [("≥ 2", 2.0, True), ("≥ 2", 1.9, False), ("≤ 1", 0.9, True), ("", 5.0, None)]
)
def test_a_claim_holds_or_not(wanted: str, ratio: float, holds: bool | None) -> None:
    setting = claims.ClaimSetting("hdd-2013", 1_000, "1%", 1.0)
    assert claims.Claim("sscj", "hybridjoin", setting, wanted, "").holds(ratio) is holds


def test_claims_measure_what_experiments_measure(inputs: Path) -> None:
    setting = claims.ClaimSetting("hdd-2007", 10_000, "10%", 1.0, settle=1)
    store = claims._master(inputs, setting)
    early, late = (claims.model_rate(store, name, setting, 1, {}) for name in ("meshjoin*", "meshjoin"))
    assert early["rate"] > 1.5 * late["rate"] > 0, "tuples that leave with their match make room"


def test_ssbj_and_meshjoin_on_a_disk(inputs: Path) -> None:
    found = disk.run(inputs, rows=10_000, shares=(5, 20), warm_up=3, turns=2, console=_quiet())
    mesh, ssbj = found["runs"]["meshjoin"], found["runs"]["ssbj rolling"]
    assert mesh[1]["rate"] > 2 * mesh[0]["rate"]
    assert ssbj[1]["hit_share"] > 0.3
    assert mesh[0]["hit_share"] == 0


def test_recovery_after_a_move() -> None:
    still = [50.0] * 8
    moving = [50.0] * 4 + [10.0, 30.0, 46.0, 50.0]
    found = drift.recovery(still, moving, windows=4, window=100)
    assert (found["stationary"], found["recovered"], found["tuples"]) == (50.0, 34.0, 300)
    assert drift.recovery(still, [50.0] * 4 + [1.0] * 4, 4, 100)["tuples"] is None


def test_all_algorithms_are_measured_and_drawn(inputs: Path, tmp_path: Path) -> None:
    options = {"shares": (20.0,), "skews": (1.0,), "seconds": 0.01, "warm_seconds": 0.01, "tuples": 50_000}
    found = family.run(inputs, rows=10_000, algorithms=("ssbj", "lookup"), console=_quiet(), **options)  # type: ignore[arg-type]
    assert [(p["algorithm"], p["rate"] > 0) for p in found["points"]] == [("ssbj", True), ("lookup", True)]
    (picture,) = draw({"family": found}, tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_worker_joins_all_its_tuples(inputs: Path) -> None:
    setting = JoinSetting("ssbj", str(inputs), 10_000, 20_000, 5_000, memory="20%", check=True)
    found = measure(setting)
    assert found.rows_out == 20_000
    assert found.checksum.startswith("20000 rows")
    assert found.rate > 0
    assert found.budget >= found.peak_ledger > 0
