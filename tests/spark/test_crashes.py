"""A query that is killed goes on exactly; ``make torture`` does it many times, and worse."""

from __future__ import annotations

from pathlib import Path

import campaign
from pyspark.sql import SparkSession


def test_a_killed_query_goes_on_exactly(spark: SparkSession, tmp_path: Path) -> None:
    campaign.prepare(spark, tmp_path, files=4)
    assert campaign.survive(tmp_path, "carry", campaign.kill_driver, times=1, seed=1) == 1
    campaign.check(spark, tmp_path)
