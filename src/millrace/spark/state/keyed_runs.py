"""Rows in order of the codes of their keys."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class RunRows(NamedTuple):
    """Rows in order of their codes and, within a code, of the value that the band is about.

    The first column of ``rows`` is the code. With a band, two rows match if their codes are equal and their intervals
    overlap; ``spans`` are the first and the last value of each interval. A right row's interval is its value.
    """

    rows: pa.RecordBatch
    codes: npt.NDArray[np.int64]
    spans: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None

    def cut(self, start: int, stop: int) -> RunRows:
        """Return the rows from ``start`` up to, and without, ``stop``, without copying them."""
        return RunRows(
            self.rows.slice(start, stop - start),
            self.codes[start:stop],
            None if self.spans is None else (self.spans[0][start:stop], self.spans[1][start:stop]),
        )


class RestoreRows(Protocol):
    """Return rows that have their codes in front as :class:`RunRows`; ``sort`` if they may be out of order."""

    def __call__(self, rows: pa.RecordBatch, side: int, *, sort: bool = True) -> RunRows: ...
