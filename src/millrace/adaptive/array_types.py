"""Names of the array types that the parts of a join pass to each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Codes: TypeAlias = npt.NDArray[np.int64]
"""Key codes."""
Stamps: TypeAlias = npt.NDArray[np.int64]
"""Times on the join's logical clock, which counts events."""
Bits: TypeAlias = npt.NDArray[np.uint8]
"""Bit flags, one byte per row."""
Mask: TypeAlias = npt.NDArray[np.bool_]
"""Booleans that select rows, pairs of rows or combinations of rows."""
Rows: TypeAlias = npt.NDArray[np.int32]
"""Row numbers."""
Order: TypeAlias = npt.NDArray[np.int64]
"""Row numbers, sorted by the rows' key codes."""
Counts: TypeAlias = npt.NDArray[np.int64]
"""Counts, such as the number of rows in each bucket, or positions of blocks in a list."""
Batches: TypeAlias = Iterator[pa.RecordBatch]
"""An iterator of output batches; each is created when it is requested."""
