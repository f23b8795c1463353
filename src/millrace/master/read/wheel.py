"""The wheel: an endless scan of the key codes, one load at a time, which begins again after the last row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.master.device import Device
from millrace.master.read.readable_store import ReadableStore


@dataclass(frozen=True)
class Load:
    """A load: rows of one shard that were read together, given by their key codes and row numbers.

    The rows are consecutive from row ``first`` on, unless ``rows`` holds their numbers.
    """

    shard: int
    first: int
    codes: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64] | None = None
    whole: bool = True
    """False if a key was looked up and has more rows than fit in one load; always true for scanned rows."""

    @property
    def page_count(self) -> int:
        """Number of reads from disk for these rows: 1, or one per page if the load consists of several pages."""
        return 1

    def rows_at(self, positions: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the row numbers at these positions in the load."""
        return self.first + positions.astype(np.int64) if self.rows is None else self.rows[positions]


class Wheel:
    """A cyclic scan over all shards of a store.

    ``turned`` counts the rows that have passed since the wheel was made and never goes back. A tuple that enters at
    ``turned == t`` has met every row of the master once ``turned == t + rows``, wherever the wheel was.
    """

    def __init__(self, store: ReadableStore, device: Device) -> None:
        self._store = store
        self._device = device
        self.rows = store.rows
        self._starts = np.cumsum([0] + [shard.rows for shard in store.manifest.shards])
        self._row_bytes = 8 if device.reads == "columns" else max(8, round(store.row_bytes))
        self.turned = 0

    @property
    def position(self) -> int:
        """Number of the row that is read next, counted over all shards."""
        return self.turned % self.rows if self.rows else 0

    @property
    def cycles(self) -> float:
        """Number of turns of the wheel so far, including the part of the current turn that has passed."""
        return self.turned / self.rows if self.rows else 0.0

    def turn_to(self, turned: int) -> None:
        """Continue as if ``turned`` rows had passed."""
        self.turned = turned

    def next_load(self, most: int) -> Load:
        """Read the next load and return it: at most ``most`` rows, all of one shard."""
        position = self.position
        shard = int(np.searchsorted(self._starts, position, side="right")) - 1
        first = position - int(self._starts[shard])
        rows = min(most, int(self._starts[shard + 1]) - position)
        self._device.read(position * self._row_bytes, rows * self._row_bytes)
        self.turned += rows
        return Load(shard, first, self._store.codes(shard)[first : first + rows])
