"""``millrace-zipf``: a Spark data source of rows whose keys are Zipf-distributed, as a stream or as a batch.

A row depends only on its number and on the options, not on the task that reads it, the time or the micro-batch. A
query that continues from its checkpoint therefore gets the same rows as without the interruption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from millrace.core.clock import Clock, RealClock
from millrace.core.errors import ConfigError, SchemaError
from millrace.datasets.zipf import SHUFFLE, Permutation, ZipfSampler, whole_number

SCHEMA = StructType(
    [StructField("key", LongType()), StructField("sid", LongType()), StructField("value", DoubleType())]
)
"""The columns: the join key, the row's number from 0 on, and a random number from 0 to 1."""

_ARROW = pa.schema([("key", pa.int64()), ("sid", pa.int64()), ("value", pa.float64())])
_BLOCK = 16_384  # rows per block of random numbers; a read from inside a block draws the rows before it too
_WORDS_BITS = 20  # 2**20 random words are reserved for a block; a row needs 1.02 of them on average
_TURNOVER = 64  # a purpose of permutations, as SHUFFLE is: the order in which ranks pass to other keys

_Longs = npt.NDArray[np.int64]


def register(spark: SparkSession) -> None:
    """Make the format ``millrace-zipf`` known to a session."""
    spark.dataSource.register(ZipfSource)


class ZipfSource(DataSource):
    """A data source of rows with keys from ``1..domain``, some of which are far more frequent than others.

    Parameters
    ----------
    rate
        For streams: number of rows per second of real time. A micro-batch takes all rows that have come since the last
        one, so the slower a query is, the more rows it gets at once. While the query is stopped, no rows come.
    rowsPerBatch
        For streams, instead of ``rate``: the number of rows in every micro-batch, whenever it starts.
    rows
        Number of rows in all. A batch needs it; a stream without it is endless.
    domain
        Number of keys; 1,000,000 by default.
    skew
        The Zipf exponent, 1.0 by default; 0 is uniform.
    drift
        Number of rows during which every popularity rank passes to another key, one rank after the other. With 0, the
        default, the popularity of keys does not change.
    seed
        Any whole number from 0 on; 0 by default.
    partitions
        Number of tasks that generate the rows; 2 by default.

    Notes
    -----
    The rows are divided into eras of ``drift`` rows. Each era has a ranking, which is a random order of all keys, and a
    random order in which the ranks change to the next era's ranking, evenly over the era. Half-way through an era half
    of the ranks belong to other keys than at its start, whatever their popularity; at its end all do. Ranks are always
    drawn from the Zipf distribution, but between one ranking and the next a key may have two ranks, or none.

    The source needs PySpark 4.2, which tells a source where a micro-batch starts.
    """

    @classmethod
    def name(cls) -> str:
        return "millrace-zipf"

    def schema(self) -> StructType:
        ZipfOptions.of(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return ZipfReader(self._options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ZipfStreamReader(self._options(schema))

    def _options(self, schema: StructType) -> ZipfOptions:
        if schema != SCHEMA:
            raise SchemaError(
                f"{self.name()}: expected the schema {SCHEMA.simpleString()} or none; got {schema.simpleString()}"
            )
        return ZipfOptions.of(self.options)


@dataclass(frozen=True)
class ZipfOptions:
    """The options of :class:`ZipfSource`, as numbers."""

    rate: int | None = None
    rowsPerBatch: int | None = None  # noqa: N815
    rows: int | None = None
    domain: int = 1_000_000
    skew: float = 1.0
    drift: int = 0
    seed: int = 0
    partitions: int = 2

    @staticmethod
    def of(given: Mapping[str, str]) -> ZipfOptions:
        """Read the options as Spark passes them: values are strings, and names may be in upper or lower case.

        >>> ZipfOptions.of({"rowsperbatch": "500", "SKEW": "0.5"}).rowsPerBatch
        500
        """
        known = {field.name.lower(): field.name for field in fields(ZipfOptions)}
        unknown = [name for name in given if name.lower() not in known]
        if unknown:
            raise ConfigError(f"{unknown[0]}: not an option of millrace-zipf, which has {', '.join(known.values())}")
        texts = {known[name.lower()]: text for name, text in given.items()}
        read: dict[str, Any] = {name: _number(name, text) for name, text in texts.items()}
        options = ZipfOptions(**read)
        ZipfSampler(options.domain, options.skew)  # raises an error if one of them is wrong
        return options

    def __post_init__(self) -> None:
        for name in ("rate", "rowsPerBatch", "partitions"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        for name in ("rows", "drift"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 0)
        whole_number("seed", self.seed, 0, 2**63 - 1)


def _number(name: str, text: str) -> int | float:
    try:
        return float(text) if name == "skew" else int(text)
    except ValueError:
        kind = "number" if name == "skew" else "whole number"
        raise ConfigError(f"{name}: expected a {kind}; got {text!r}") from None


# rows


def zipf_rows(options: ZipfOptions, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows from ``start`` up to but not including ``end``. A row is the same in whichever range it is read.

    >>> options = ZipfOptions(domain=100, seed=7)
    >>> whole = pa.Table.from_batches(zipf_rows(options, 0, 40_000))
    >>> whole.slice(20_000, 10) == pa.Table.from_batches(zipf_rows(options, 20_000, 20_010))
    True
    """
    sampler = ZipfSampler(options.domain, options.skew, seed=options.seed, shuffled=False)
    for block in range(start // _BLOCK, -(-end // _BLOCK) if start < end else 0):
        first = block * _BLOCK
        skipped, drawn = max(0, start - first), min(_BLOCK, end - first)
        sampler.restore(block << _WORDS_BITS)
        ranks = sampler.sample(drawn)[skipped:]
        values = np.random.Generator(np.random.Philox(key=[options.seed, block])).random(drawn)[skipped:]
        sids = np.arange(first + skipped, first + drawn, dtype=np.int64)
        yield pa.record_batch([_keys_of(options, ranks, first + skipped), sids, values], schema=_ARROW)


def _keys_of(options: ZipfOptions, ranks: _Longs, start: int) -> _Longs:
    """Return the keys of consecutive rows from their popularity ranks; ``start`` is the number of the first row."""
    if not options.drift:
        return _permutation(options.domain, options.seed, 0, SHUFFLE).apply(ranks)
    keys = np.empty_like(ranks)
    for era in range(start // options.drift, (start + len(ranks) - 1) // options.drift + 1):
        began = era * options.drift - start  # where the era begins among these rows; negative if before them
        here = slice(max(0, began), began + options.drift)
        passed = (np.arange(len(ranks))[here] - began) / options.drift
        keys[here] = _keys_in_era(options, era, ranks[here], passed)
    return keys


def _keys_in_era(options: ZipfOptions, era: int, ranks: _Longs, passed: npt.NDArray[np.float64]) -> _Longs:
    """Return each row's key from its rank; ``passed`` is the share of the era before the row, from 0 to 1."""
    old, new = (_permutation(options.domain, options.seed, e, SHUFFLE).apply(ranks) for e in (era, era + 1))
    turn = _permutation(options.domain, options.seed, era, _TURNOVER).apply(ranks)
    return np.where(turn <= passed * options.domain, new, old)


@lru_cache(maxsize=16)
def _permutation(domain: int, seed: int, era: int, purpose: int) -> Permutation:
    return Permutation(domain, seed=seed + (era << 64), purpose=purpose)


# readers


class RowRange(InputPartition):
    """The rows that one task generates: from ``start`` up to but not including ``end``."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


def row_ranges(start: int, end: int, count: int) -> list[InputPartition]:
    """Divide the rows from ``start`` to ``end`` into at most ``count`` ranges of about equal length, none empty."""
    count = min(count, end - start)
    edges = [start + (end - start) * i // count for i in range(count + 1)] if count > 0 else []
    return [RowRange(first, last) for first, last in pairwise(edges)]


class ZipfReader(DataSourceReader):
    """Reads a batch: all rows at once."""

    def __init__(self, options: ZipfOptions) -> None:
        if options.rows is None:
            raise ConfigError("rows: a batch of millrace-zipf needs the number of rows; got none")
        self._options, self._rows = options, options.rows

    def partitions(self) -> Sequence[InputPartition]:
        return row_ranges(0, self._rows, self._options.partitions) or [RowRange(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRange)
        return zipf_rows(self._options, partition.start, partition.end)


class ZipfStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, a micro-batch at a time. An offset is the number of rows that come before it.

    The rate is counted from the offset and the time of this reader's first micro-batch. A query that is started again
    gets a new reader, which continues where the old one ended.
    """

    def __init__(self, options: ZipfOptions, clock: Clock | None = None) -> None:
        if (options.rate is None) == (options.rowsPerBatch is None):
            got = "neither" if options.rate is None else "both"
            raise ConfigError(f"rate, rowsPerBatch: a stream of millrace-zipf needs one of the two; got {got}")
        self._options = options
        self._clock = clock or RealClock()
        self._began: tuple[int, float] | None = None
        self._all_at_once = False

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        per_batch = self._options.rowsPerBatch
        return ReadAllAvailable() if per_batch is None else ReadMaxRows(per_batch)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        here = start["rows"]
        end = self._rows_so_far(here)
        if isinstance(limit, ReadMaxRows):
            end = min(end, here + limit.max_rows)
        return {"rows": max(here, end)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        if self._options.rows is None:
            raise ConfigError("rows: with the trigger availableNow, millrace-zipf needs the number of rows; got none")
        self._all_at_once = True

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return row_ranges(start["rows"], end["rows"], self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRange)
        return zipf_rows(self._options, partition.start, partition.end)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the reader stores no rows that could be released now."""

    def _rows_so_far(self, here: int) -> int:
        """Return the number of rows that may be read up to now; the first ``here`` of them have been read."""
        options = self._options
        if options.rowsPerBatch is not None:
            rows = here + options.rowsPerBatch if options.rows is None else options.rows
        elif self._all_at_once:
            assert options.rows is not None
            rows = options.rows
        else:
            assert options.rate is not None
            row, moment = self._began = self._began or (here, self._clock.now())
            rows = row + int(options.rate * (self._clock.now() - moment))
        return rows if options.rows is None else min(rows, options.rows)
