"""Stock orders from files of exchanges."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.core.errors import ConfigError, SchemaError
from millrace.datasets import read_orders

MESSAGES = """34200.017459617,5,0,1,2238200,-1
34200.189607670,1,11885113,21,2238100,1
34200.189607671,1,3911376,20,2239650,-1
34200.189607672,3,3911376,20,2239600,-1
34200.190226476,1,11534792,100,2237500,1
"""


def test_new_orders_of_a_message_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(MESSAGES)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(MESSAGES.encode()))
    for name in ("a.csv", "a.csv.gz"):
        found = read_orders(tmp_path / name)
        assert {side: prices.tolist() for side, prices in found.items()} == {"buy": [22381, 22375], "sell": [22396]}


def test_sides_and_prices(tmp_path: Path) -> None:
    table = pa.table({"price": [19.99, 20.0, 20.01], "side": ["B", "sell", " buy"]})
    pq.write_table(table, tmp_path / "o.parquet")
    (tmp_path / "o.csv").write_text("\ufeffSide, Price,more\r\nB,19.99,x\nSELL,20,y\nbuy,20.01,z\n")
    for name in ("o.parquet", "o.csv"):
        found = read_orders(tmp_path / name)
        assert (found["buy"].tolist(), found["sell"].tolist()) == ([1999, 2001], [2000])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected orders as CSV or Parquet"),
        ("a,b\n1,2\n", "expected the columns side and price.*got a, b"),
        ("side,price\nX,2\n", "side: expected buy or B, sell or S; got 'X'"),
        ("side,price\n,2\n", "side: expected buy or B"),
        ("side,price\nB,cheap\n", "price in dollars"),
        ("side,price\nB,1e18\n", "price: expected dollars above 0 and below"),
        ("side,price\nB,2020-01-01\n", "price in dollars"),
        ("side,side,price\nB,B,2\n", "expected orders"),
        ("1,a,3,4,5,6\n", "expected orders"),
        ("side,price\nB,\n", "price: expected dollars above 0"),
        ("1,2,3\n", "expected orders as CSV or Parquet"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "o.csv").write_text(text)
    with pytest.raises(SchemaError, match=said):
        read_orders(tmp_path / "o.csv")
    (tmp_path / "o.parquet").write_bytes(b"no Parquet")
    with pytest.raises(SchemaError, match="Parquet"):
        read_orders(tmp_path / "o.parquet")
    with pytest.raises(ConfigError, match="expected the path of a file"):
        read_orders(tmp_path / "none.csv")
