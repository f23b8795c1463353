"""Numbers of master rows across all shards, so that rows of several shards can be kept and emitted in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from millrace.core.lanes import Task
from millrace.master.store import MasterStore
from millrace.rows.columns import Indices, OutputColumn

NO_ROW = -1
"""Row number that means "no row"; the columns of the master are then null in the output."""

_WORTH_A_THREAD = 8192  # rows below which handing them to a second thread costs more than it saves


class NumberedRows:
    """Rows of a store, numbered across its shards: the first row of a shard follows the last of the shard before."""

    def __init__(self, store: MasterStore) -> None:
        self._store = store
        self._first = np.cumsum([0] + [shard.rows for shard in store.manifest.shards])

    def of(self, shard: int, rows: Indices) -> Indices:
        """Convert row numbers within a shard to numbers across all shards."""
        return rows + int(self._first[shard])

    def by_shard(self, numbers: Indices) -> Iterator[tuple[int, Indices, Indices]]:
        """Yield the rows with these numbers, shard by shard.

        Each item is the number of a shard, the places of its rows in ``numbers``, and the rows' numbers in the shard.
        """
        shards = np.searchsorted(self._first, numbers, side="right") - 1
        for shard in np.unique(shards[numbers >= 0]).tolist():
            places = np.flatnonzero((shards == shard) & (numbers >= 0))
            yield shard, places, numbers[places] - int(self._first[shard])

    def take(self, columns: Sequence[int], numbers: Indices) -> list[pa.Array]:
        """Return these columns of the rows with these numbers, as Arrow arrays; :data:`NO_ROW` gives nulls."""
        found = list(self.by_shard(numbers))
        goes_to = np.full(len(numbers), sum(len(places) for _, places, _ in found), np.int64)
        at = 0
        for _, places, _ in found:
            goes_to[places] = np.arange(at, at + len(places))
            at += len(places)
        taken = [self._store.mapped(shard).take(columns, rows) for shard, _, rows in found]
        arrays = []
        for i, column in enumerate(columns):
            pieces = [arrays_of_shard[i] for arrays_of_shard in taken]
            pieces.append(pa.nulls(1, self._store.schema.field(column).type))
            arrays.append(pa.concat_arrays(pieces).take(pa.array(goes_to)))
        return arrays

    def output_rows(self, columns: Sequence[int], numbers: Indices) -> NumberedOutputRows:
        """Return the rows with these numbers, as the master's side of the output."""
        return NumberedOutputRows(self, self._store, columns, numbers)


class NumberedOutputRows:
    """The master's side of output rows, given by numbers of rows of any shard; :data:`NO_ROW` gives nulls."""

    def __init__(self, rows: NumberedRows, store: MasterStore, columns: Sequence[int], numbers: Indices) -> None:
        self._rows, self._store, self._columns, self._numbers = rows, store, columns, numbers
        self.lasts = len(numbers) >= _WORTH_A_THREAD

    def longest(self) -> int:
        return max((self._store.mapped(shard).longest(self._columns) for shard in range(self._store.shards)), default=0)

    def bytes_of(self, piece: slice) -> int:
        numbers = self._numbers[piece]
        return sum(self._store.mapped(s).bytes_of(self._columns, rows) for s, _, rows in self._rows.by_shard(numbers))

    def tasks(self, piece: slice, outputs: Sequence[OutputColumn]) -> list[Task]:
        numbers = self._numbers[piece]
        if self._store.shards == 1 and (numbers >= 0).all():
            return self._store.mapped(0).gather(self._columns, numbers, outputs)
        pairs = zip(self._columns, outputs, strict=True)
        return [partial(self._append, column, numbers, output) for column, output in pairs]

    def _append(self, column: int, numbers: Indices, output: OutputColumn) -> None:
        output.arrow(self._rows.take([column], numbers)[0], None)
