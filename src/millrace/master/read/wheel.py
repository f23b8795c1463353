"""The wheel: a scan of the key codes that never ends, one load at a time, and starts again when it is through."""

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
    """Whether a key that has rows here has none elsewhere, as far as whoever made the load can tell."""

    @property
    def page_count(self) -> int:
        """Reads from disk that brought these rows: one, or one for each of several pages."""
        return 1

    def rows_at(self, positions: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Numbers of the rows at these places of the load."""
        return self.first + positions.astype(np.int64) if self.rows is None else self.rows[positions]


class Wheel:
    """A cyclic scan over all shards of a store.

    ``turned`` counts the rows that have passed since the wheel was made and never goes back. Who starts waiting at
    ``turned == t`` has met every row of the master once ``turned == t + rows``, wherever the wheel stood.
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
        """The next at most ``most`` rows. Never crosses from one shard to another or past the end."""
        position = self.position
        shard = int(np.searchsorted(self._starts, position, side="right")) - 1
        first = position - int(self._starts[shard])
        rows = min(most, int(self._starts[shard + 1]) - position)
        self._device.read(position * self._row_bytes, rows * self._row_bytes)
        self.turned += rows
        return Load(shard, first, self._store.codes(shard)[first : first + rows])
