"""Hypothesis strategies for adaptive joins: small tables, the order in which their rows arrive, and budgets.

A schedule is a list of operations on the inputs of a join::

    Push("left", 3)  Idle()  Push("right", 5)  Snapshot()  End("left")  …  End("right")

Every row of every table is pushed, in order, and every input is ended exactly once, after its last row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from millrace.testing.strategies import extra_memory

PairKey = Literal["int", "string", "float", "pair"]
PAIR_KEYS: tuple[PairKey, ...] = get_args(PairKey)


@dataclass(frozen=True)
class Push:
    """An operation: the next ``rows`` rows of an input arrive, possibly none."""

    input: str
    rows: int


@dataclass(frozen=True)
class Idle:
    """An operation: no rows arrive for now, so the join joins blocks on disk until all are joined or rows arrive."""

    arriving: int | None = None
    """Number of times that the join looks for new rows in vain before some arrive; None if no rows arrive."""


@dataclass(frozen=True)
class End:
    """An operation: an input ends."""

    input: str


@dataclass(frozen=True)
class Snapshot:
    """An operation: a snapshot is taken, and another join restores it and continues."""


Operation: TypeAlias = Push | Idle | End | Snapshot

budgets = extra_memory
"""Strategy for bytes of memory above the minimum: from about one tuple at a time to inputs that fit in memory."""


@dataclass(frozen=True)
class InputTables:
    """The tables of a join's inputs, by name, and the names of the key columns, which every table has."""

    tables: Mapping[str, pa.Table]
    on: tuple[str, ...]

    def batches(self, schedule: Sequence[Operation]) -> Iterator[tuple[Operation, pa.RecordBatch | None]]:
        """Yield the operations in order, each with the rows that arrive, or with None if it is not a :class:`Push`."""
        left = {name: _one_batch(table) for name, table in self.tables.items()}
        for operation in schedule:
            if not isinstance(operation, Push):
                yield operation, None
                continue
            rows = left[operation.input]
            left[operation.input] = rows.slice(operation.rows)
            yield operation, rows.slice(0, operation.rows)


@st.composite
def small_tables(
    draw: st.DrawFn, names: Sequence[str] = ("left", "right"), kinds: Sequence[PairKey] = PAIR_KEYS, most: int = 60
) -> InputTables:
    """Draw inputs with keys of one kind, from a domain so small that most keys match, or with a single key.

    Every table has at most ``most`` rows, a column ``<name>_row`` that numbers them, and a text column with nulls. Keys
    may be null.
    """
    kind = draw(st.sampled_from(kinds))
    domain = draw(st.sampled_from([1, 2, 7, 30]))
    nulls = draw(st.sampled_from([0.0, 0.2]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    tables = {}
    for name in names:
        count = draw(st.one_of(st.integers(0, 8), st.integers(0, most)))
        ids = _with_nulls(rng.integers(0, domain, count).tolist(), nulls, rng)
        texts = _with_nulls(["xyé"[: n % 4] * (n // 4) for n in rng.integers(0, 20, count).tolist()], 0.1, rng)
        columns = _keys(kind, ids)
        columns[f"{name}_row"] = pa.array(range(count), pa.int64())
        columns[f"{name}_text"] = pa.array(texts, pa.string())
        tables[name] = pa.table(columns)
    return InputTables(tables, ("k", "k2") if kind == "pair" else ("k",))


@st.composite
def schedules(draw: st.DrawFn, rows: Mapping[str, int], *, snapshots: bool = True) -> list[Operation]:
    """Draw schedules in which ``rows[name]`` rows of each input arrive, with pauses, ends and snapshots anywhere."""
    longest = draw(st.sampled_from([1, 5, 25, 100]))
    pauses = draw(st.sampled_from([0.0, 0.2, 0.6]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    left = dict(rows)
    schedule: list[Operation] = []
    while left:
        name = str(rng.choice(list(left)))
        if left[name] == 0 and rng.random() < 0.7:
            schedule.append(End(name))
            del left[name]
        else:
            step = min(left[name], int(rng.integers(0, longest, endpoint=True)))
            schedule.append(Push(name, step))
            left[name] -= step
        if rng.random() < pauses:
            schedule.append(_pause(rng, snapshots))
    return schedule


def _pause(rng: np.random.Generator, snapshots: bool) -> Operation:
    if snapshots and rng.random() < 0.4:
        return Snapshot()
    return Idle(None if rng.random() < 0.5 else int(rng.integers(0, 4)))


@st.composite
def scheduled_inputs(
    draw: st.DrawFn, /, names: Sequence[str] = ("left", "right"), *, snapshots: bool = True, **options: Any
) -> tuple[InputTables, list[Operation]]:
    """Draw inputs and a schedule for their rows; for ``options`` see :func:`small_tables`."""
    inputs = draw(small_tables(names, **options))
    rows = {name: table.num_rows for name, table in inputs.tables.items()}
    return inputs, draw(schedules(rows, snapshots=snapshots))


def _with_nulls(values: list[Any], share: float, rng: np.random.Generator) -> list[Any]:
    return [None if gap else value for value, gap in zip(values, rng.random(len(values)) < share, strict=True)]


def _keys(kind: PairKey, ids: Sequence[int | None]) -> dict[str, pa.Array]:
    if kind == "int":
        return {"k": pa.array(ids, pa.int64())}
    if kind == "float":
        return {"k": pa.array([None if i is None else i / 2 for i in ids], pa.float64())}
    text = pa.array([None if i is None else f"key {i}" for i in ids], pa.string())
    if kind == "string":
        return {"k": text}
    return {"k": pa.array([None if i is None else i % 3 for i in ids], pa.int64()), "k2": text}


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
