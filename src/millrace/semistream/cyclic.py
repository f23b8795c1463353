"""MESHJOIN's access: the whole master passes by, round and round, and every read is shared by all who wait.

A tuple leaves when the wheel has made one turn since it came: it has then met every master row once.

References
----------
N. Polyzotis, S. Skiadopoulos, P. Vassiliadis, A. Simitsis, N. Frantzell: Supporting streaming updates in an active data
warehouse. ICDE 2007.

Deviation: chunks remember where the wheel stood instead of being counted, so that loads may have any length.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.master.wheel import Load, Wheel
from millrace.rows.arena import Slots
from millrace.semistream.access import Access, Surroundings


class Cyclic(Access):
    """A scan without end."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.wheel = Wheel(around.store, around.device)
        shards = around.store.manifest.shards
        self.longest_turn = max(1, sum(-(-shard.rows // around.b) for shard in shards))
        """Loads of one turn."""

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
        if self.wheel.rows:
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
