"""The form in which rows of streams are stored and matched: sorted by key code."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class RunRows(NamedTuple):
    """Rows sorted by key code and, within a code, by the value that the band compares.

    The first column of ``rows`` is the code. With a band, two rows can match only if their codes are equal and their
    intervals overlap. The interval of a left row contains the right values that match it, and the interval of a right
    row is its value alone. ``spans`` holds the first and the last value of each interval; it is None without a band.
    """

    rows: pa.RecordBatch
    codes: npt.NDArray[np.int64]
    spans: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None

    def cut(self, start: int, stop: int) -> RunRows:
        """Return the rows from ``start`` up to but not including ``stop``; nothing is copied."""
        return RunRows(
            self.rows.slice(start, stop - start),
            self.codes[start:stop],
            None if self.spans is None else (self.spans[0][start:stop], self.spans[1][start:stop]),
        )


class RestoreRows(Protocol):
    """A function that converts rows, with the key code as first column, to :class:`RunRows`.

    The function sorts the rows unless ``sort`` is False.
    """

    def __call__(self, rows: pa.RecordBatch, side: int, *, sort: bool = True) -> RunRows: ...
