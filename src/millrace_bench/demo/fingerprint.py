"""Compare the rows of two DataFrames in any order, by their number and sums of hashes, without a join."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def fingerprint(df: DataFrame) -> tuple[int, int, int]:
    """Return the number of rows, and the sums of two hashes over all rows; the order of rows does not matter.

    Spark's hash skips nulls; which columns are null is hashed too, so that a null cannot change places with a value.
    """
    values = [F.col(name) for name in df.columns]
    nulls = F.concat(*(F.when(value.isNull(), "1").otherwise("0") for value in values))
    hashes = (F.xxhash64(*values, nulls), F.xxhash64(nulls, *reversed(values)))
    rows = F.count(F.lit(1))
    found = df.agg(rows, *(F.coalesce(F.sum(one.cast("decimal(38,0)")), F.lit(0)) for one in hashes)).first()
    assert found is not None
    return int(found[0]), int(found[1]) % 2**64, int(found[2]) % 2**64


def difference(found: DataFrame, expected: DataFrame) -> str:
    """Return a text with an example of a row that ``found`` lacks, and one of a row that it should not contain."""
    missing, unexpected = expected.exceptAll(found).take(1), found.exceptAll(expected).take(1)
    parts = [f"a row is missing: {missing[0].asDict()}"] if missing else []
    parts += [f"there is an unexpected row: {unexpected[0].asDict()}"] if unexpected else []
    return "; ".join(parts) or "the hashes of its rows differ from those of the batch join"
