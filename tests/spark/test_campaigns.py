"""Long crash campaigns: ten attacks each, at random moments."""

from __future__ import annotations

from pathlib import Path

import campaign
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.torture
ATTACKS = {
    "driver": campaign.kill_driver,
    "worker": campaign.kill_worker,
    "soft state": campaign.spoil_soft_state,
}


@pytest.mark.parametrize(
    ("mode", "attack"),
    [("drain", "driver"), ("carry", "driver"), ("drain", "worker"), ("carry", "worker"), ("drain", "soft state")],
)
def test_the_output_is_exact_after_ten_attacks(spark: SparkSession, tmp_path: Path, mode: str, attack: str) -> None:
    campaign.prepare(spark, tmp_path, files=30)
    assert campaign.survive(tmp_path, mode, ATTACKS[attack], times=10, seed=7, patience=900) == 10
    campaign.check(spark, tmp_path)
