from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.core.errors import ConfigError, MillraceError, SchemaError
from millrace.datasets import orders_stream, skewed_orders, tpch

SCALE = 0.001


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tpch") / "not" / "there yet"


@pytest.fixture(scope="module")
def orders(directory: Path) -> Path:
    return tpch("orders", SCALE, directory)


@pytest.fixture
def no_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment whose scripts directory and PATH are empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


def test_customers(directory: Path) -> None:
    path = tpch("customer", SCALE, directory)
    table = pq.read_table(path)
    assert table.num_rows == 150
    assert table["c_custkey"].to_pylist() == list(range(1, 151))
    assert table.schema.field("c_acctbal").type == pa.decimal128(15, 2)
    assert table.column_names == [
        "c_custkey",
        "c_name",
        "c_address",
        "c_nationkey",
        "c_phone",
        "c_acctbal",
        "c_mktsegment",
        "c_comment",
    ]


def test_orders_go_to_two_thirds_of_the_customers(orders: Path) -> None:
    table = pa.Table.from_batches(orders_stream(orders, 400))
    assert table.num_rows == 1500
    assert table.schema.field("o_totalprice").type == pa.decimal128(15, 2)
    keys = table["o_custkey"].to_numpy()
    assert keys.min() >= 1
    assert keys.max() <= 150
    assert (keys % 3 != 0).all()


def test_streams_keep_to_batch_rows(orders: Path) -> None:
    sizes = [batch.num_rows for batch in orders_stream(orders, 400)]
    assert max(sizes) <= 400
    assert sum(sizes) == 1500


def test_a_table_is_written_once_and_leaves_nothing_else(orders: Path) -> None:
    before = orders.stat().st_mtime_ns
    assert tpch("orders", SCALE, orders.parent) == orders
    assert orders.stat().st_mtime_ns == before
    assert {path.suffix for path in orders.parent.iterdir()} == {".parquet"}


def test_scales_do_not_mix(orders: Path) -> None:
    other = tpch("orders", 0.002, orders.parent)
    assert other != orders
    assert pq.read_metadata(other).num_rows == 3000


def test_skewed_orders_change_only_the_customer(orders: Path) -> None:
    plain = pa.Table.from_batches(orders_stream(orders))
    skewed = pa.Table.from_batches(skewed_orders(orders, 150, 1.0, 3))
    assert skewed.schema == plain.schema
    assert skewed.drop_columns("o_custkey").equals(plain.drop_columns("o_custkey"))
    counts = np.bincount(skewed["o_custkey"].to_numpy(), minlength=151)
    assert counts[0] == 0
    assert len(counts) == 151
    assert counts.max() > 200  # 1500 / H(150) = 268 expected, against 15 without skew


def test_skewed_orders_do_not_depend_on_batch_rows(orders: Path) -> None:
    whole = pa.Table.from_batches(skewed_orders(orders, 150, 0.5, 1))
    assert whole.equals(pa.Table.from_batches(skewed_orders(orders, 150, 0.5, 1, batch_rows=7)))
    assert not whole.equals(pa.Table.from_batches(skewed_orders(orders, 150, 0.5, 2)))


def test_a_missing_tool_says_what_to_install(no_tool: Path) -> None:
    with pytest.raises(MillraceError, match=r"tpchgen-cli is not installed; pip install millrace\[tpch\]"):
        tpch("orders", SCALE, no_tool / "data")
    assert not (no_tool / "data").exists()


def test_a_failing_tool_is_quoted_and_leaves_nothing(no_tool: Path) -> None:
    tool = no_tool / "tpchgen-cli"
    tool.write_text("#!/bin/sh\necho 'no such argument' >&2\nexit 2\n")
    tool.chmod(0o755)
    with pytest.raises(MillraceError, match="ended with code 2: no such argument"):
        tpch("orders", SCALE, no_tool / "data")
    assert list((no_tool / "data").iterdir()) == []


@pytest.mark.parametrize(
    ("table", "scale", "message"),
    [
        ("lineitem", 1.0, "table: expected one of 'customer', 'orders'; got 'lineitem'"),
        ("orders", 0, "scale: expected a number above 0; got 0"),
        ("orders", -1.0, "scale: "),
        ("orders", float("nan"), "scale: "),
        ("orders", float("inf"), "scale: "),
        ("orders", "1", "scale: "),
    ],
)
def test_bad_options_are_named(table: Any, scale: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        tpch(table, scale, tmp_path)


def test_streams_of_other_files_are_refused_at_once(directory: Path, orders: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"path: expected a Parquet file .*nowhere"):
        orders_stream(tmp_path / "nowhere", 10)
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(orders.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"path: expected a Parquet file .*torn"):
        orders_stream(torn, 10)
    with pytest.raises(SchemaError, match="expected a column o_custkey of int64; got c_custkey"):
        skewed_orders(tpch("customer", SCALE, directory), 10, 1.0, 0)
    with pytest.raises(ConfigError, match="batch_rows: "):
        orders_stream(orders, 0)
    with pytest.raises(ConfigError, match="customers: "):
        skewed_orders(orders, 0, 1.0, 0)
