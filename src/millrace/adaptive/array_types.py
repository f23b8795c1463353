"""Names of the array types that the parts of a join hand to each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Codes: TypeAlias = npt.NDArray[np.int64]
"""Key codes."""
Stamps: TypeAlias = npt.NDArray[np.int64]
"""Moments of the logical clock."""
Bits: TypeAlias = npt.NDArray[np.uint8]
"""Marks by row."""
Mask: TypeAlias = npt.NDArray[np.bool_]
"""Whether a row, or a pair of rows, counts."""
Rows: TypeAlias = npt.NDArray[np.int32]
"""Row numbers."""
Order: TypeAlias = npt.NDArray[np.int64]
"""Row numbers in the order of their codes."""
Counts: TypeAlias = npt.NDArray[np.int64]
"""Numbers of rows."""
Batches: TypeAlias = Iterator[pa.RecordBatch]
"""Batches of the result, which are made while they are read."""
