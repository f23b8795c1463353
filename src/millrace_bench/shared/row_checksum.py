"""A checksum of rows that does not depend on their order, or on how they are divided into batches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.kernels.hashing import SEED, hash_bytes, hash_longs
from millrace.rows.columns import bytes_pieces

_NO_NULLS = np.empty(0, np.uint8)


class RowChecksum:
    """The number of rows and the sum of their 64-bit hashes; each hash covers all columns of a row."""

    def __init__(self) -> None:
        self.rows = 0
        self.total = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch; its columns have to be text, or 4 or 8 bytes wide, and without nulls."""
        hashes = np.full(len(batch), SEED, np.int64)
        for column in batch.columns:
            if column.null_count:
                raise ValueError(f"row checksum: expected columns without nulls; got one of {column.type} with nulls")
            if pa.types.is_string(column.type):
                data, starts, lengths = bytes_pieces(column)
                ends = np.append(starts, starts[-1:] + lengths[-1:]) if len(starts) else np.zeros(1, np.int64)
                hash_bytes(ends, data, _NO_NULLS, hashes)
            else:
                hash_longs(_as_longs(column), _NO_NULLS, hashes)
        self.rows += len(batch)
        self.total = (self.total + int(hashes.view(np.uint64).sum(dtype=np.uint64))) % 2**64

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.total:016x}"


def _as_longs(column: pa.Array) -> npt.NDArray[np.int64]:
    values = column.to_numpy(zero_copy_only=False)
    longs: npt.NDArray[np.int64] = values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)
    return longs
