"""TPC-H customers and orders as Parquet files, and orders as a stream."""

from __future__ import annotations

import math
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.errors import ConfigError, MillraceError, SchemaError, one_of
from millrace.core.files.atomic import take_name
from millrace.datasets.zipf import ZipfSampler, whole_number

Table = Literal["customer", "orders"]

_TOOL = "tpchgen-cli"


def tpch(table: Table, scale: float, directory: Path) -> Path:
    """Return the path of a TPC-H table, a Parquet file in ``directory``; tpchgen-cli writes the file if it is missing.

    Scale 1 is 150 000 customers and 1 500 000 orders. The file's name includes the scale
    (``customer-sf0.01.parquet``), so tables of several scales can share a directory. A file is visible only
    when it is complete. Types are those of tpchgen: ``decimal128(15, 2)`` for money, ``string_view`` for text.

    Needs tpchgen-cli 3 or later: ``pip install millrace[tpch]``.
    """
    one_of("table", table, get_args(Table))
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not (0 < scale < math.inf):
        raise ConfigError(f"scale: expected a number above 0; got {scale!r}")
    directory = Path(directory)
    path = directory / f"{table}-sf{scale:.15g}.parquet"
    if path.exists():
        return path
    tool = _tool()
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=f".{path.stem}-") as unfinished:
        command = [tool, "parquet", f"--scale-factor={float(scale)!r}", f"--tables={table}", "--quiet"]
        done = subprocess.run([*command, f"--output-dir={unfinished}"], capture_output=True, text=True, check=False)
        written = Path(unfinished, f"{table}.parquet")
        if done.returncode != 0 or not written.exists():
            said = done.stderr.strip() or "nothing was written to stderr"
            raise MillraceError(
                f"tpch {table!r} at scale {scale:g}: expected {_TOOL} 3 or later to write {written.name}; "
                f"{tool} ended with code {done.returncode}: {said}"
            )
        take_name(written, path)
    return path


def _tool() -> str:
    """Return the path of tpchgen-cli in the environment of the running Python, or else on the PATH."""
    found = shutil.which(_TOOL, path=sysconfig.get_path("scripts")) or shutil.which(_TOOL)
    if found is None:
        raise MillraceError(f"tpch: {_TOOL} is not installed; pip install millrace[tpch]")
    return found


def orders_stream(path: Path, batch_rows: int = 65536) -> Iterator[pa.RecordBatch]:
    """Yield the orders of a Parquet file as a stream of batches of at most ``batch_rows`` rows.

    Standard TPC-H distributes the orders uniformly over two thirds of the customers. Customers whose key is a
    multiple of 3 have none, and no customer is popular. :func:`skewed_orders` yields orders with skew.
    """
    _check_orders(path)
    return _read(path, whole_number("batch_rows", batch_rows, 1))


def skewed_orders(
    path: Path, customers: int, skew: float, seed: int = 0, *, batch_rows: int = 65536
) -> Iterator[pa.RecordBatch]:
    """Yield orders whose ``o_custkey`` is replaced by keys of a Zipf distribution, which is **not standard TPC-H**.

    Keys come from a shuffled :class:`~millrace.datasets.ZipfSampler` over all keys ``1..customers``, so every
    customer can have orders, and any key can be popular. The other columns are unchanged. The keys do not
    depend on ``batch_rows``.
    """
    place = _check_orders(path)
    sampler = ZipfSampler(whole_number("customers", customers, 1), skew, seed=seed)
    batches = _read(path, whole_number("batch_rows", batch_rows, 1))
    return (_redrawn(batch, place, sampler) for batch in batches)


def _redrawn(batch: pa.RecordBatch, place: int, sampler: ZipfSampler) -> pa.RecordBatch:
    keys = pa.array(sampler.sample(batch.num_rows), type=pa.int64())
    return batch.set_column(place, batch.schema.field(place), keys)


def _check_orders(path: Path) -> int:
    """Check that a Parquet file holds orders; return the position of its column ``o_custkey``."""
    if not Path(path).is_file():
        raise ConfigError(f"path: expected a Parquet file that tpch('orders', …) has written; got {path}")
    try:
        schema = pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"path: expected a Parquet file of orders; got {path}: {error}") from error
    place: int = schema.get_field_index("o_custkey")
    if place < 0 or schema.field(place).type != pa.int64():
        raise SchemaError(
            f"{path}: expected a column o_custkey of int64; "
            f"got {', '.join(f'{field.name} ({field.type})' for field in schema)}"
        )
    return place


def _read(path: Path, batch_rows: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=batch_rows)
