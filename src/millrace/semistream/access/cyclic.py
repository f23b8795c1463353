"""MESHJOIN's access: the whole master is scanned over and over, and all waiting tuples share every read.

The endless scan is called the wheel. A tuple leaves when the wheel has made one turn since the tuple entered: it has
then met every master row once.

References
----------
N. Polyzotis, S. Skiadopoulos, P. Vassiliadis, A. Simitsis, N. Frantzell: Supporting streaming updates in an active data
warehouse. ICDE 2007.
M. A. Naeem, G. Dobbie, G. Weber, S. Alam: R-MESHJOIN for near-real-time data warehousing. DOLAP 2010.

Deviation: a chunk of tuples records the position of the wheel when it entered, where the papers count chunks; so loads
may have any length.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from millrace.core.errors import ConfigError
from millrace.master.read.wheel import Load, Wheel
from millrace.rows.arena import Slots
from millrace.semistream.access.access_policy import Access
from millrace.semistream.context import JoinContext


class Cyclic(Access):
    """Scans the master without end, one load per step.

    The multiples of b rows in every shard are the *grid*. A load ends at the next place of the grid or at the end of
    its shard, or earlier where the oldest chunk of tuples has met every row.

    After b has changed, chunks that entered off the new grid still wait, and each of them may cut a load in two; new
    tuples enter on the new grid only, so that after one turn every load has the new length.
    """

    loads_per_step = 1
    wheel: Wheel

    def __init__(self, context: JoinContext) -> None:
        super().__init__(context)
        self.wheel = Wheel(context.store, context.device)
        self._sizes = np.array([shard.rows for shard in context.store.manifest.shards], np.int64)
        self._starts = np.concatenate(([0], np.cumsum(self._sizes)))
        self._longest = self._in_force = self.longest_turn
        self._settled_at = 0

    @property
    def longest_turn(self) -> int:
        """Largest number of steps in one full scan of the master (a turn)."""
        loads = int((-(-self._sizes // self.b)).sum())
        return max(1, -(-loads // self.loads_per_step))

    @property
    def place(self) -> int:
        return self.wheel.turned

    def quota(self, capacity: int) -> int:
        room = self.context.room
        w = self.w or max(1, int(capacity / room.mean_stay) // (self.longest_turn + 1))
        if not len(room):
            return max(1, min(w, capacity))
        if not self._on_grid(self.place):
            return 0
        return max(0, min(w - room.newest_chunk_size(self.place), capacity - len(room)))

    def _in_shard(self, turned: int) -> tuple[int, int]:
        """Return the row that comes after ``turned`` rows of the wheel, as its shard and its place in the shard."""
        position = turned % self.wheel.rows
        shard = int(np.searchsorted(self._starts, position, side="right")) - 1
        return shard, position - int(self._starts[shard])

    def _on_grid(self, turned: int) -> bool:
        """Return whether a step begins in every turn at the row that the wheel reaches after ``turned`` rows."""
        if not self.wheel.rows:
            return True
        row = self._in_shard(turned)[1]
        return row % self.b == 0 and self._loads_before(turned) % self.loads_per_step == 0

    def _loads_before(self, turned: int) -> int:
        """Return how many loads of the same turn come before the load that holds the row after ``turned`` rows."""
        shard, row = self._in_shard(turned)
        return int((-(-self._sizes[:shard] // self.b)).sum()) + row // self.b

    def _steps_before(self, turned: int) -> int:
        """Return how many steps turn the wheel by ``turned`` rows, if each begins where :meth:`_on_grid` is true."""
        return turned // self.wheel.rows * self.longest_turn + self._loads_before(turned) // self.loads_per_step

    def loads(self) -> Iterator[Load]:
        for number in range(self.loads_per_step if self.wheel.rows else 0):
            turned = self.wheel.turned
            until_expiry = self.context.room.rows_until_expiry(turned)
            if number and (not until_expiry or self._on_grid(turned)):
                return
            to_grid = self.b - self._in_shard(turned)[1] % self.b
            yield self.wheel.next_load(min(to_grid, until_expiry))

    def finished(self) -> Iterator[Slots]:
        while (slots := self.context.room.expired(self.wheel.turned)) is not None:
            yield slots

    @property
    def cycles(self) -> float:
        return self.wheel.cycles

    @property
    def longest_wait(self) -> int:
        return self._longest

    def retune(self, b: int) -> None:
        room, turned = self.context.room, self.wheel.turned
        if not len(room):
            self._in_force = 0
        elif turned >= self._settled_at:
            self._in_force = self.longest_turn
        self.b = b
        self._in_force += self.longest_turn + 1  # the wheel may be between two places of the grid
        self._longest = max(self._longest, self._in_force)
        self._settled_at = turned + 2 * self.wheel.rows

    @property
    def turned(self) -> int:
        return self.wheel.turned

    def resume(self, turned: int) -> None:
        self.wheel.turn_to(turned)

    def on_resume(self, waited: int) -> None:
        chunks = self.context.room.chunks
        if not self.wheel.rows:
            return
        places = (self.wheel.turned, *(chunk.start for chunk in chunks))
        on_grid = all(self._on_grid(place) for place in places)
        steps = self._steps_before(places[0]) - self._steps_before(chunks[0].start) if chunks else 0
        if not on_grid or waited != steps:
            self._in_force = waited + len(chunks) + self.longest_turn + 1  # the chunks entered with another b
            self._longest = max(self._longest, self._in_force)
            self._settled_at = self.wheel.turned + 2 * self.wheel.rows

    def explain(self) -> str:
        b, k = self.b, self.longest_turn
        return f"load b = {b:,} rows, so a turn of the wheel has k = {k:,} steps: the longest wait"


class Repeated(Cyclic):
    """R-MESHJOIN's access: several loads per step, so that the size of a load can suit the disk.

    Tuples enter only between steps. They enter and wait as in MESHJOIN with loads of ``l`` × ``b`` rows, but the load
    buffer needs room for only ``b`` rows.

    Parameters
    ----------
    l
        Loads per step.
    """

    def __init__(self, context: JoinContext, *, l: int = 4) -> None:  # noqa: E741  (the papers' l)
        super().__init__(context)
        if not isinstance(l, int) or l < 1:
            raise ConfigError(f"l: expected a whole number of at least 1; got {l!r}")
        self.loads_per_step = l
        self._longest = self._in_force = self.longest_turn
