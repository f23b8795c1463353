"""Stock orders: the prices of the buy and sell orders of one share in one day, read from an exchange's messages.

The papers' files (INET, CSCO and IPIX) are no longer available. Orders of any share can take their place, or synthetic
orders of the same number, which :func:`millrace.datasets.adaptive_inputs.stock_orders` generates.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from millrace.core.errors import ConfigError, SchemaError

_LOBSTER = ("time", "type", "order", "size", "price", "direction")
_SUBMITTED = 1
_UNITS = 10_000.0  # LOBSTER's price units in a dollar
_MOST_DOLLARS = 1_000_000_000
_BOM = b"\xef\xbb\xbf"
_SIDES = {"buy": ("b", "buy", "1"), "sell": ("s", "sell", "-1")}

Prices = npt.NDArray[np.int64]


def read_orders(path: str | Path) -> dict[str, Prices]:
    """Return the prices, in cents, of the ``buy`` orders and of the ``sell`` orders, in the order of the file.

    Parameters
    ----------
    path
        A LOBSTER message file for Nasdaq stocks (CSV without a header: time, type, order, size, price in
        ten-thousandths of a dollar, direction 1 or -1), from which only new orders, type 1, are read; or a CSV or
        Parquet file with the columns ``side`` (buy or B, sell or S) and ``price`` in dollars. CSV may be gzipped.

    References
    ----------
    R. Huang, T. Polak: LOBSTER: Limit Order Book Reconstruction System. 2011.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"orders: expected the path of a file; got {file}")
    try:
        table = _table(file)
        missing = [name for name in ("side", "price") if name not in table.column_names]
        if missing:
            raise SchemaError(
                f"{file}: expected the columns side and price, or a LOBSTER message file (six columns, no header); "
                f"got {', '.join(table.column_names) or 'none'}"
            )
        sides = pc.utf8_lower(pc.utf8_trim_whitespace(pc.cast(table["side"], pa.string())))
        dollars = pc.cast(table["price"], pa.float64()).to_numpy()
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        raise SchemaError(f"{file}: expected orders as CSV or Parquet, with the price in dollars; {error}") from error
    known = pc.is_in(sides, pa.array([word for words in _SIDES.values() for word in words]))
    if not pc.all(known, min_count=0).as_py():
        wrong = table["side"].filter(pc.invert(known))[0].as_py()
        raise SchemaError(f"{file}: side: expected buy or B, sell or S; got {wrong!r}")
    wrong_price = ~((dollars > 0) & (dollars < _MOST_DOLLARS))
    if wrong_price.any():
        got = dollars[wrong_price][0]
        raise SchemaError(f"{file}: price: expected dollars above 0 and below {_MOST_DOLLARS:,}; got {got:g}")
    cents: Prices = np.rint(100 * dollars).astype(np.int64)
    return {side: cents[pc.is_in(sides, pa.array(words)).to_numpy()] for side, words in _SIDES.items()}


def _table(file: Path) -> pa.Table:
    """Return the orders in a file as a table with lower-case column names."""
    if file.suffix == ".parquet":
        table = pq.read_table(file)
    else:
        with pa.input_stream(str(file), compression="detect") as stream:
            data = stream.read().removeprefix(_BOM).lstrip()
        if data[:1].isdigit():
            return _new_orders(csv.read_csv(pa.BufferReader(data), csv.ReadOptions(column_names=_LOBSTER)))
        table = csv.read_csv(pa.BufferReader(data))
    return table.rename_columns([name.strip().lower() for name in table.column_names])


def _new_orders(messages: pa.Table) -> pa.Table:
    new = messages.filter(pc.equal(messages["type"], _SUBMITTED))
    return pa.table({"side": new["direction"], "price": pc.divide(pc.cast(new["price"], pa.float64()), _UNITS)})
