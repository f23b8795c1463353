"""The wheel: an endless scan of the key codes, one load at a time, which begins again after the last row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.master.device import Device
from millrace.master.read.readable_store import ReadableStore


@dataclass(frozen=True)
class Load:
    """Rows of one shard that are in memory: their key codes and where they are.

    They follow each other from row ``first`` on, unless their numbers are given in ``rows``.
    """

    shard: int
    first: int
    codes: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64] | None = None
    whole: bool = True
    """Whether a key that has rows here surely has none elsewhere."""

    @property
    def page_count(self) -> int:
        """Reads from disk that brought these rows: one, or one for each of several pages."""
        return 1

    def rows_at(self, positions: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows at these places of the load."""
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
        """The row that passes next."""
        return self.turned % self.rows if self.rows else 0

    @property
    def cycles(self) -> float:
        """Turns of the wheel so far."""
        return self.turned / self.rows if self.rows else 0.0

    def turn_to(self, turned: int) -> None:
        """Go on from where so many rows have passed."""
        self.turned = turned

    def next_load(self, most: int) -> Load:
        """Return the next at most ``most`` rows, which never cross from one shard to another or past the end."""
        position = self.position
        shard = int(np.searchsorted(self._starts, position, side="right")) - 1
        first = position - int(self._starts[shard])
        rows = min(most, int(self._starts[shard + 1]) - position)
        self._device.read(position * self._row_bytes, rows * self._row_bytes)
        self.turned += rows
        return Load(shard, first, self._store.codes(shard)[first : first + rows])
