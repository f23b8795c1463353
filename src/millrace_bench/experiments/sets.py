"""The data sets of the experiments: a master store, an endless stream, and a description."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2s
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from millrace.core.errors import ConfigError
from millrace.core.spec import On
from millrace.cost.frequencies import Frequencies
from millrace.datasets import (
    STREAM_SCHEMA,
    ZipfSampler,
    orders_stream,
    read_weather,
    skewed_orders,
    synthetic_master,
    synthetic_weather,
    tpch,
    weather_schema,
    zipf_stream,
)
from millrace.datasets.synthetic import MASTER_SCHEMA
from millrace.master.store import MasterStore
from millrace_bench.shared import data

Stream = Iterator[pa.RecordBatch]

DESCRIPTIONS = {
    "unique": "synthetic: R has every key once, in no order; the stream's keys follow a Zipf law",
    "repeats": "synthetic: R's keys are drawn with repetition, so some have several rows and some none; Zipf stream",
    "skewed": "synthetic: R's keys and the stream's both follow a Zipf law over one domain",
    "tpch": "TPC-H customers and orders, standard: orders are spread evenly over two thirds of the customers",
    "tpch-skewed": "TPC-H customers and orders whose customers are drawn anew by a Zipf law: not standard TPC-H",
    "weather": "synthetic weather: cloud reports generated in the archive's shape, 128 bytes, not the archive's own",
    "weather-32": "synthetic weather: cloud reports generated in the archive's shape, 32 bytes, not the archive's own",
    "weather-archive": "weather: cloud reports of the archive's own files, 128 bytes",
    "weather-32-archive": "weather: cloud reports of the archive's own files, 32 bytes",
}
"""Descriptions of data for figures, by data set name. Data sets that end in ``-archive`` need the archive's files."""

_TPCH_CUSTOMERS = 150_000  # at scale 1
_ROW_BYTES = {"tpch": 1_000, "weather-32": 90}  # bytes on disk per master row, with its index and a customer's orders
_MOST_ROW_BYTES = 280  # the same for all other data sets


@dataclass(frozen=True)
class DataSet:
    """A master and a stream to join with it."""

    store: MasterStore
    on: On
    schema: pa.Schema
    """Schema of the stream."""
    stream: Callable[[int, int], Stream]
    """Function that takes a seed and the number of rows of a batch, and returns an endless stream of batches."""
    suffix: str | None = None
    frequencies: Frequencies | None = None
    """Frequencies of the keys in the stream; None if they are not known."""

    def indexed(self) -> DataSet:
        """Return the data set with an index on its master, which is built if it is missing."""
        if self.store.indexed:
            return self
        store = MasterStore.add_index(self.store.path)
        return DataSet(store, self.on, self.schema, self.stream, self.suffix, self.frequencies)


def real_name(name: str, directory: Path) -> str:
    """Return a data set's name, with ``-archive`` added for weather data if the directory has the archive's files."""
    if name in ("weather", "weather-32") and _reports(directory, "master") and _reports(directory, "stream"):
        return f"{name}-archive"
    return name


def store_path(directory: Path, name: str, rows: int, z_R: float | None = None) -> Path:  # noqa: N803
    """Return the path of the master store of a data set; ``z_R`` is the skew of the keys of ``skewed``, else unused."""
    if name.startswith("tpch"):
        return directory / f"customers-{rows}"
    if name.startswith("weather"):
        read = f"-{_digest(stamp_of(_reports(directory, 'master')))}" if name.endswith("-archive") else ""
        return directory / f"{name.replace('weather', f'weather-{rows}')}{read}"
    return (
        directory / f"master-{rows}{'-repeats' if name == 'repeats' else f'-skew{z_R:g}' if name == 'skewed' else ''}"
    )


def bytes_to_make(directory: Path, name: str, rows: int, z_R: float | None = None) -> int:  # noqa: N803
    """Return the approximate bytes on disk that a data set will take; 0 if it exists.

    ``z_R`` is the skew of the master's keys in the data set ``skewed``; other data sets do not use it.
    """
    if store_path(directory, name, rows, z_R).exists():
        return 0
    return rows * _ROW_BYTES.get(name.removesuffix("-archive").removesuffix("-skewed"), _MOST_ROW_BYTES)


def open_set(directory: Path, name: str, rows: int, skew: float, z_R: float | None) -> DataSet:  # noqa: N803
    """Return the data set that ``DESCRIPTIONS`` describes under a name; make its files if they are missing."""
    if name in ("unique", "repeats"):
        store = data.master(directory, rows, unique=name == "unique")
        return DataSet(
            store, "key", STREAM_SCHEMA, _zipf(rows, skew, shuffled=True), None, Frequencies.zipf(skew, rows)
        )
    if name == "skewed":
        if z_R is None:
            raise ConfigError("data 'skewed': expected z_R, the skew of R; got None")
        path = store_path(directory, name, rows, z_R)
        store = _open_or_build(path, MASTER_SCHEMA, lambda: _skewed(rows, z_R), "key")
        return DataSet(store, "key", STREAM_SCHEMA, _zipf(rows, skew, shuffled=False))
    if name in ("tpch", "tpch-skewed"):
        return _tpch(directory, rows, skew if name == "tpch-skewed" else None)
    if name.startswith("weather"):
        path = store_path(directory, name, rows)
        return _weather(directory, path, rows, narrow="-32" in name, own=name.endswith("-archive"))
    raise ConfigError(f"data: expected one of {', '.join(DESCRIPTIONS)}; got {name!r}")


def _zipf(domain: int, skew: float, *, shuffled: bool) -> Callable[[int, int], Stream]:
    return lambda seed, batch_rows: zipf_stream(domain, skew, batch_rows=batch_rows, seed=seed, shuffled=shuffled)


def _skewed(rows: int, z_R: float) -> Stream:  # noqa: N803
    """Yield the synthetic master with Zipf keys; key 1 is the most frequent in the master and in the stream."""
    sampler = ZipfSampler(rows, z_R, seed=1, shuffled=False)
    for batch in synthetic_master(rows):
        yield batch.set_column(0, MASTER_SCHEMA.field(0), pa.array(sampler.sample(len(batch))))


def _open_or_build(path: Path, schema: pa.Schema, rows: Callable[[], Stream], key: str) -> MasterStore:
    path.parent.mkdir(parents=True, exist_ok=True)
    return data.open_or_build(path, lambda: pa.RecordBatchReader.from_batches(schema, rows()), key)


def _tpch(directory: Path, customers: int, skew: float | None) -> DataSet:
    scale = customers / _TPCH_CUSTOMERS
    path = store_path(directory, "tpch", customers)
    store = data.open_or_build(path, lambda: ds.dataset(tpch("customer", scale, directory)), "c_custkey")
    orders = tpch("orders", scale, directory)

    def once(seed: int, batch_rows: int) -> Stream:
        if skew is None:
            return orders_stream(orders, batch_rows)
        return skewed_orders(orders, customers, skew, seed, batch_rows=batch_rows)

    def stream(seed: int, batch_rows: int) -> Stream:
        """Yield the orders over and over; the seed decides which batch comes first."""
        skipped = seed * 997 % max(1, 5 * customers // batch_rows)
        yield from islice(once(seed, batch_rows), skipped, None)
        while True:
            yield from once(seed, batch_rows)

    schema = next(orders_stream(orders, 1)).schema
    known = None if skew is None else Frequencies.zipf(skew, customers)
    return DataSet(store, {"o_custkey": "c_custkey"}, schema, stream, None, known)


def _weather(directory: Path, path: Path, rows: int, *, narrow: bool, own: bool) -> DataSet:
    schema = weather_schema(narrow=narrow)

    def master() -> Stream:
        if not own:
            yield from synthetic_weather(rows, seed=1, narrow=narrow)
            return
        left = rows
        for batch in read_weather(_reports(directory, "master"), narrow=narrow):
            yield batch.slice(0, left)
            left -= len(batch)
            if left <= 0:
                return
        folder = directory / "weather" / "master"
        raise ConfigError(f"{folder}: expected files with at least {rows:,} weather reports; got {rows - left:,}")

    def stream(seed: int, batch_rows: int) -> Stream:
        if not own:
            yield from synthetic_weather(seed=seed, narrow=narrow, batch_rows=batch_rows)
        came = True
        while came:
            came = False
            for batch in read_weather(_reports(directory, "stream"), narrow=narrow, batch_rows=batch_rows):
                came = True
                yield batch
        raise ConfigError(
            f"{directory / 'weather' / 'stream'}: expected files with weather reports of the archive "
            "(NDP-026B or EECRA, plain or gzipped); got only empty ones"
        )

    return DataSet(_open_or_build(path, schema, master, "LON"), "LON", schema, stream, "_master")


def stamp_of(files: Iterable[Path]) -> str:
    """Return the names, sizes and modification times of files as a text, which changes when a file changes."""
    return " ".join(f"{file.name}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files)


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=6).hexdigest()


def own_reports(directory: Path) -> list[Path]:
    """Return the weather archive's files in the directory, those of the master first; empty if there are none."""
    return _reports(directory, "master") + _reports(directory, "stream")


def _reports(directory: Path, side: str) -> list[Path]:
    folder = directory / "weather" / side
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
