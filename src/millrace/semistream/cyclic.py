"""MESHJOIN's access: the whole master passes by, round and round, and every read is shared by all who wait.

A tuple leaves when the wheel has made one turn since it came: it has then met every master row once.

References
----------
N. Polyzotis, S. Skiadopoulos, P. Vassiliadis, A. Simitsis, N. Frantzell: Supporting streaming updates in an active data
warehouse. ICDE 2007.
M. A. Naeem, G. Dobbie, G. Weber, S. Alam: R-MESHJOIN for near-real-time data warehousing. DOLAP 2010.

Deviation: chunks remember where the wheel stood instead of being counted, so that loads may have any length.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.core.errors import ConfigError
from millrace.master.wheel import Load, Wheel
from millrace.rows.arena import Slots
from millrace.semistream.access import Access, Surroundings


class Cyclic(Access):
    """A scan without end, one load a step."""

    loads_per_step = 1

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.wheel = Wheel(around.store, around.device)
        shards = around.store.manifest.shards
        self.longest_turn = max(1, sum(-(-shard.rows // around.b) for shard in shards))
        """Steps of one turn at most."""

    @property
    def place(self) -> int:
        return self.wheel.turned

    def quota(self, capacity: int) -> int:
        room = self.around.room
        w = self.around.w or max(1, int(capacity / room.stay) // (self.longest_turn + 1))
        if not len(room):
            return max(1, min(w, capacity))
        return max(0, min(w - room.newest_chunk_size(self.place), capacity - len(room)))

    def loads(self) -> Iterator[Load]:
        for _ in range(self.loads_per_step if self.wheel.rows else 0):
            yield self.wheel.next_load(min(self.around.b, self.around.room.rows_until_expiry(self.wheel.turned)))

    def leaving(self) -> Iterator[Slots]:
        while (slots := self.around.room.expired(self.wheel.turned)) is not None:
            yield slots

    @property
    def cycles(self) -> float:
        return self.wheel.cycles

    @property
    def longest_wait(self) -> int:
        return self.longest_turn

    @property
    def turned(self) -> int:
        return self.wheel.turned

    def resume(self, turned: int) -> None:
        self.wheel.turned = turned

    def explain(self) -> str:
        b, k = self.around.b, self.longest_turn
        return f"load b = {b:,} rows, so a turn of the wheel has k = {k:,} steps: the longest wait"


class Repeated(Cyclic):
    """R-MESHJOIN's: several loads a step, so that the size of a load does not follow from the chunks in the queue.

    Tuples enter only between steps, so a chunk meets whole steps, as in MESHJOIN with loads ``l`` times as long; the
    buffer holds one of them. What is gained is the freedom to choose ``b`` for the disk alone.

    Parameters
    ----------
    l
        Loads of a step.
    """

    def __init__(self, around: Surroundings, *, l: int = 4) -> None:  # noqa: E741  (the papers' l)
        super().__init__(around)
        if not isinstance(l, int) or l < 1:
            raise ConfigError(f"l: expected a whole number of at least 1; got {l!r}")
        self.loads_per_step = l
        self.longest_turn = max(1, -(-self.longest_turn // l))
