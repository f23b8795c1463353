"""Makes random tables, batches and parameters for tests of joins, chosen so that rare code paths are taken often.

A :class:`JoinCase` is made from a seed and a few sizes and types, so a failing case can be written down in one line and
reproduced. ``strategies.py`` draws cases with hypothesis; negative tests list some by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.spec import How, JoinSpec
from millrace.semistream.conditions.condition import Condition
from millrace.testing.oracle import oracle_join

KeyKind = Literal[
    "int32", "int64", "date32", "timestamp", "decimal(10,2)", "decimal(38,4)", "string", "binary", "composite"
]
Payload = Literal["int", "float", "bool", "string", "decimal", "list", "struct", "dictionary"]
Spread = Literal["uniform", "skewed", "equal"]

KEY_KINDS: tuple[KeyKind, ...] = get_args(KeyKind)
PAYLOADS: tuple[Payload, ...] = get_args(Payload)
SPREADS: tuple[Spread, ...] = get_args(Spread)
HOWS: tuple[How, ...] = get_args(How)

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JoinCase:
    """The tables, batches and parameters of one run of a join.

    Parameters
    ----------
    key, how
        Kind of key column and kind of join.
    stream_rows, master_rows, domain
        Numbers of rows of the two tables, and of different keys to draw from.
    spread
        How stream keys are drawn. With ``equal``, all rows have the same key, except in a master with unique keys.
    unique
        Whether the master has every key at most once.
    nulls
        Whether keys and payload may be null.
    missing
        Whether each side has keys that the other does not have.
    stream_payload, master_payload
        Types of the other columns.
    sizes, steps
        Number of rows of each batch, and number of calls of ``step`` after it; both lists are repeated as needed.
    page_rows, shards, b, w
        As in ``MasterStore.build`` and ``SemiStreamJoin``.
    extra
        Bytes of memory in addition to the least with which the join can hold the widest tuple.
    output_rows
        Largest number of rows in an output batch.
    where
        A condition that a stream row and a master row must satisfy to match.
    keyless
        Whether rows match without having equal keys, if they satisfy ``where``.
    """

    key: KeyKind = "int64"
    how: How = "inner"
    stream_rows: int = 60
    master_rows: int = 40
    domain: int = 12
    spread: Spread = "skewed"
    unique: bool = False
    nulls: bool = True
    missing: bool = True
    stream_payload: tuple[Payload, ...] = ()
    master_payload: tuple[Payload, ...] = ()
    sizes: tuple[int, ...] = (7, 0, 11)
    steps: tuple[int, ...] = (0, 1)
    page_rows: int = 9
    shards: int = 1
    b: int | None = 7
    w: int | None = None
    extra: int = 2000
    output_rows: int = 65_536
    seed: int = 0
    where: Condition | None = None
    keyless: bool = False

    @property
    def spec(self) -> JoinSpec:
        return JoinSpec.without_key(self.how) if self.keyless else JoinSpec.of(self.on, self.how)

    @property
    def on(self) -> dict[str, str]:
        """A mapping from the stream's key columns to the master's."""
        if self.key == "composite":
            return {"key_a": "a", "key_b": "b"}
        return {"key": "k"}

    @property
    def master_key(self) -> tuple[str, ...]:
        return tuple(self.on.values())

    def stream(self) -> pa.Table:
        """Return the stream as one table; its column ``seq`` numbers the rows."""
        rng = np.random.default_rng([self.seed, 1])
        ids = self._stream_ids(rng)
        columns = dict(zip(self.on, key_arrays(self.key, ids, self._gaps(rng, len(ids))), strict=True))
        columns["seq"] = pa.array(np.arange(len(ids)))
        for kind in self.stream_payload:
            columns[f"s_{kind}"] = payload_array(kind, rng, len(ids), self.nulls)
        return pa.table(columns)

    def master(self) -> pa.Table:
        """Return the master as one table; its column ``row`` numbers the rows, and key columns do not come first."""
        rng = np.random.default_rng([self.seed, 2])
        ids = self._master_ids(rng)
        columns = {"row": pa.array(np.arange(len(ids)))}
        keys = key_arrays(self.key, ids, None if self.unique else self._gaps(rng, len(ids)))
        columns |= dict(zip(self.master_key, keys, strict=True))
        for kind in self.master_payload:
            columns[f"m_{kind}"] = payload_array(kind, rng, len(ids), self.nulls)
        return pa.table(columns)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the stream in batches of ``sizes`` rows. Sizes are repeated as needed; the batches share one buffer."""
        table = self.stream()
        whole = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)
        sizes = self.sizes if any(self.sizes) else (*self.sizes, max(1, len(whole)))
        at = turn = 0
        while at < len(whole) or turn < min(len(sizes), 3):
            size = sizes[turn % len(sizes)]
            yield whole.slice(at, size)
            at, turn = at + size, turn + 1

    def expected(self) -> pa.Table:
        """Return the expected output, with the master's columns in the store's order (key first)."""
        master = self.master()
        others = [name for name in master.column_names if name not in self.master_key]
        for name in self.master_key:
            master = master.filter(master.column(name).is_valid())  # a store has no rows without a key
        return oracle_join(self.stream(), master.select([*self.master_key, *others]), self.spec, self.where)

    def _stream_ids(self, rng: np.random.Generator) -> Ids:
        if self.spread == "equal":
            return np.zeros(self.stream_rows, np.int64)
        if self.spread == "skewed":
            return np.minimum(rng.zipf(1.5, self.stream_rows) - 1, self.domain - 1).astype(np.int64)
        return rng.integers(0, self.domain, self.stream_rows)

    def _master_ids(self, rng: np.random.Generator) -> Ids:
        if self.unique:
            ids: Ids = rng.permutation(self.master_rows)
        elif self.spread == "equal":
            ids = np.zeros(self.master_rows, np.int64)
        else:
            ids = rng.integers(0, self.domain, self.master_rows)
        return ids + (self.domain // 3 if self.missing and self.spread != "equal" else 0)

    def _gaps(self, rng: np.random.Generator, rows: int) -> Flags | None:
        return rng.random(rows) < 0.1 if self.nulls else None


_SURROGATE: dict[KeyKind, Callable[[int], Any]] = {
    "int32": lambda i: (-(2**31), 2**31 - 1)[i] if i < 2 else 7 * i - 50,
    "int64": lambda i: (-(2**63), 2**63 - 1)[i] if i < 2 else 2**33 * (i - 5),
    "date32": lambda i: 37 * i - 500,
    "timestamp": lambda i: datetime(1969, 12, 31, tzinfo=UTC) + timedelta(microseconds=86_399_999_999 * i),
    "decimal(10,2)": lambda i: Decimal(131 * i - 700).scaleb(-2),
    "decimal(38,4)": lambda i: Decimal((i - 6) * 10**24 + i).scaleb(-4),
    "string": lambda i: "" if i == 0 else f"schlüssel-{i}" if i % 3 else str(i),
    "binary": lambda i: b"" if i == 0 else i.to_bytes(2, "big") + b"\xff" * (i % 9),
}
_KEY_TYPES: dict[KeyKind, pa.DataType] = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "date32": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,4)": pa.decimal128(38, 4),
    "string": pa.string(),
    "binary": pa.binary(),
}


def key_arrays(kind: KeyKind, ids: Ids, gaps: Flags | None = None) -> list[pa.Array]:
    """Return key columns for ids: equal ids have equal keys, and different ids different ones; ``gaps`` marks nulls.

    >>> key_arrays("decimal(10,2)", np.array([0, 1]))[0].to_pylist()
    [Decimal('-7.00'), Decimal('-5.69')]
    """
    missing = np.zeros(len(ids), np.bool_) if gaps is None else gaps
    if kind == "composite":
        first = pa.array(ids // 3 - 2, mask=missing & (ids % 2 == 0))
        second = [None if gone and i % 2 else f"b{i % 3}" for i, gone in zip(ids.tolist(), missing, strict=True)]
        return [first, pa.array(second, pa.string())]
    value = _SURROGATE[kind]
    pairs = zip(ids.tolist(), missing.tolist(), strict=True)
    return [pa.array([None if gone else value(i) for i, gone in pairs], _KEY_TYPES[kind])]


def payload_array(kind: Payload, rng: np.random.Generator, rows: int, nulls: bool) -> pa.Array:
    """Return a column of random values of one type; if ``nulls`` is set, about a fifth are null."""
    gaps = rng.random(rows) < (0.2 if nulls else 0.0)
    numbers = rng.integers(-1000, 1000, rows)
    values: Sequence[Any]
    if kind == "int":
        return pa.array(numbers.astype(np.int16), mask=gaps)
    if kind == "float":
        floats = np.where(numbers % 7 == 0, np.nan, numbers / 8)
        return pa.array(floats, mask=gaps, from_pandas=False)
    if kind == "bool":
        return pa.array(numbers > 0, mask=gaps)
    if kind == "dictionary":
        return pa.DictionaryArray.from_arrays(
            pa.array((numbers % 3).astype(np.int8), mask=gaps), pa.array(["rot", "grün", ""])
        )
    if kind == "string":
        values, type_ = ["é" * (abs(n) % 11) + str(n) for n in numbers.tolist()], pa.string()
    elif kind == "decimal":
        values, type_ = [Decimal(n).scaleb(-3) for n in numbers.tolist()], pa.decimal128(20, 3)
    elif kind == "list":
        values, type_ = [list(range(n % 4)) for n in numbers.tolist()], pa.list_(pa.int64())
    else:
        type_ = pa.struct({"x": pa.int32(), "y": pa.string()})
        values = [{"x": n, "y": None if n % 5 == 0 else str(n)} for n in numbers.tolist()]
    return pa.array([None if gone else v for v, gone in zip(values, gaps, strict=True)], type_)
