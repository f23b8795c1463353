"""A query that is killed, loses workers and finds its soft state spoilt; ``make torture`` does it many times."""

from __future__ import annotations

from pathlib import Path

import campaign
import pytest
from pyspark.sql import SparkSession


@pytest.mark.parametrize("mode", ["drain", "carry"])
def test_a_killed_query_goes_on_exactly(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    campaign.prepare(spark, tmp_path, files=6)
    assert campaign.survive(tmp_path, mode, campaign.kill_driver, times=1, seed=1) == 1
    campaign.check(spark, tmp_path)


def test_lost_workers_and_spoilt_soft_state_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def both(*arguments: object) -> bool:
        campaign.kill_worker(*arguments)  # type: ignore[arg-type]
        return campaign.spoil_soft_state(*arguments)  # type: ignore[arg-type]

    campaign.prepare(spark, tmp_path, files=6)
    campaign.survive(tmp_path, "drain", both, times=3, seed=2)
    campaign.check(spark, tmp_path)
