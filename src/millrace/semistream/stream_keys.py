"""Computes the key codes of stream tuples, and compares their keys with the keys of master rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.spec import JoinSpec
from millrace.master.store import MasterStore
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes

Flags = npt.NDArray[np.bool_]


class StreamKeys:
    """Key columns of a stream, converted to the types of the master's key.

    In a join without a key, every tuple gets a number of its own as its key code.
    """

    def __init__(self, spec: JoinSpec, stream: pa.Schema, store: MasterStore) -> None:
        self.columns = [stream.get_field_index(name) for name in spec.stream_key]
        """Places of the key columns in the stream."""
        self.master_columns = [store.schema.get_field_index(name) for name in store.key]
        """Places of the key columns in the master."""
        self.exact = store.coder.exact or not self.columns
        """Whether equal codes mean equal keys, so that matches need not be verified."""
        self._coder = store.coder
        self._types = [store.schema.field(name).type for name in store.key]
        self._numbered = 0

    def codes(self, columns: Sequence[pa.Array]) -> tuple[Codes, Flags | None]:
        """Return the key code of every row, and flags of the rows whose key is not null, or None if no key is null."""
        if self.columns:
            return self._coder.codes(self._widened([columns[i] for i in self.columns]))
        first = self._numbered
        self._numbered += len(columns[0])
        return np.arange(first, self._numbered), None

    def of_keys(self, keys: list[pa.Array]) -> Codes:
        """Return the key codes of rows, given their key columns, which must not hold nulls."""
        return self._coder.codes(self._widened(keys))[0]

    def of(self, batch: pa.RecordBatch, rows: Indices) -> list[pa.Array]:
        """Return the key columns of a batch, for the given rows only."""
        chosen = pa.array(rows)
        return [batch.column(i).take(chosen) for i in self.columns]

    def same(self, stream_keys: list[pa.Array], master_keys: list[pa.Array]) -> Flags:
        """Return for each pair whether the stream row's key equals the master row's key."""
        return self._coder.equal(self._widened(stream_keys), master_keys)

    def _widened(self, keys: list[pa.Array]) -> list[pa.Array]:
        """Return the stream's key columns, with integers cast to the types of the master's key."""
        return [
            key.cast(type_) if pa.types.is_integer(key.type) and key.type != type_ else key
            for key, type_ in zip(keys, self._types, strict=True)
        ]
