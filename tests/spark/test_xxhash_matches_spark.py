"""Hashes and shards of every key type, computed by Spark SQL and by :class:`KeyCoder` on the same rows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millrace.rows.key_codes import KeyCoder

SCHEMA = (
    "tiny byte, small short, whole int, big long, flag boolean, day date, moment timestamp, "
    "local timestamp_ntz, price decimal(10,2), mass decimal(38,10), text string, blob binary"
)
COLUMNS = [field.split()[0] for field in SCHEMA.split(", ")]
LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)
OLD = datetime(1901, 2, 3, 4, 5, 6, 7)

VALUES: dict[str, list[Any]] = {
    "tiny": [0, 1, -1, 127, -128],
    "small": [0, 1, -1, 2**15 - 1, -(2**15)],
    "whole": [0, 1, -1, 2**31 - 1, -(2**31)],
    "big": [0, 1, -1, 2**63 - 1, -(2**63)],
    "flag": [True, False],
    "day": [date(1970, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)],
    "moment": [at.replace(tzinfo=UTC) for at in (datetime(1970, 1, 1), LAST, OLD)],
    "local": [datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), LAST, OLD],
    "price": [Decimal(0), Decimal("0.01"), Decimal("-0.01"), Decimal("99999999.99"), Decimal("-99999999.99")],
    "mass": [
        Decimal(unscaled).scaleb(-10)
        for unscaled in (
            0,
            1,
            -1,
            127,
            128,
            -128,
            -129,
            2**63 - 1,
            2**63,
            -(2**63),
            -(2**63) - 1,
            2**64,
            10**27,
            -(10**27),
        )
    ]
    + [Decimal("9" * 28 + "." + "9" * 10), Decimal("-" + "9" * 28 + "." + "9" * 10)],
    "text": [
        "",
        "a",
        "Spark",
        "Zürich",
        "東京 🚲",
        "\x00",
        "1234567",
        "12345678",
        "0123456789ab",
        "x" * 31,
        "x" * 32,
        "x" * 33,
        "long and ünïcode " * 20,
    ],
    "blob": [b"", b"\x00", b"\xff\x80\x7f", bytes(range(256))],
}


def rows() -> list[tuple[Any, ...]]:
    """Each column's values over and over, with a null after every round, so that the columns drift apart."""
    cycles = [[*VALUES[name], None] for name in COLUMNS]
    count = 2 * max(len(cycle) for cycle in cycles)
    return [tuple(cycle[at % len(cycle)] for cycle in cycles) for at in range(count)]


@pytest.fixture(scope="module")
def answers(spark: SparkSession) -> pa.Table:
    """The rows, Spark's hashes of each column (``h_…``) and of all (``h``), and shards (``s_…``, ``s``)."""
    hashes = [f"xxhash64({name}) as h_{name}" for name in COLUMNS]
    shards = [f"pmod(xxhash64({name}), 7) as s_{name}" for name in COLUMNS]
    every = f"xxhash64({', '.join(COLUMNS)})"
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        return (
            spark.createDataFrame(rows(), SCHEMA)
            .selectExpr(*COLUMNS, *hashes, *shards, f"{every} as h", f"pmod({every}, 7) as s")
            .toArrow()
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def columns_of(table: pa.Table, names: list[str]) -> list[pa.Array]:
    return [table.column(name).combine_chunks() for name in names]


@pytest.mark.parametrize("name", COLUMNS)
def test_one_column(answers: pa.Table, name: str) -> None:
    columns = columns_of(answers, [name])
    coder = KeyCoder([columns[0].type], [name])
    assert columns[0].null_count >= 1
    assert coder.hashes(columns).tolist() == answers.column(f"h_{name}").to_pylist()
    assert coder.shards(columns, 7).tolist() == answers.column(f"s_{name}").to_pylist()


def test_all_columns_together(answers: pa.Table) -> None:
    columns = columns_of(answers, COLUMNS)
    coder = KeyCoder([column.type for column in columns], COLUMNS)
    assert coder.hashes(columns).tolist() == answers.column("h").to_pylist()
    assert coder.shards(columns, 7).tolist() == answers.column("s").to_pylist()


def test_the_rows_hold_every_value(answers: pa.Table) -> None:
    for name in COLUMNS:
        present = answers.column(name).unique().to_pylist()
        assert len(present) == len(VALUES[name]) + 1, name
