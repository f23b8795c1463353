"""Long crash campaigns: ten attacks each, at random moments."""

from __future__ import annotations

from pathlib import Path

import campaign
import pytest
import stream_joins
from pyspark.sql import SparkSession

pytestmark = pytest.mark.torture
ATTACKS = {
    "driver": campaign.kill_driver,
    "worker": campaign.kill_worker,
    "soft state": campaign.spoil_soft_state,
}
FILES = {"driver": 30, "worker": 90, "soft state": 30}
"""Micro-batches: enough that the query is not over before the tenth attack. A new worker is there at once."""


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("mode", ["drain", "carry"])
def test_the_output_is_exact_after_ten_attacks(spark: SparkSession, tmp_path: Path, mode: str, attack: str) -> None:
    campaign.prepare(spark, tmp_path, files=FILES[attack])
    assert campaign.survive(tmp_path, mode, ATTACKS[attack], times=10, seed=7, patience=900) == 10
    campaign.check(spark, tmp_path)


@pytest.mark.parametrize("attack", ["driver", "worker"])
@pytest.mark.parametrize("mode", stream_joins.MODES)
def test_joins_of_streams_are_exact_after_ten_attacks(
    spark: SparkSession, tmp_path: Path, mode: str, attack: str
) -> None:
    stream_joins.prepare(tmp_path, files=45)  # results grow as their square or cube
    assert campaign.survive(tmp_path, mode, ATTACKS[attack], times=10, seed=7, patience=900, within=0.4) == 10
    stream_joins.check(spark, tmp_path, mode)
