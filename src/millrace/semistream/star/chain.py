"""A chain of joins: the output of each is the input of the next.

::

    push ─► arm 1 ──► arm 2 ──► arm 3 ─► output
            waits     waits     waits

Output is passed on batch by batch, so no rows are between two arms when a call ends.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from millrace.core.errors import BudgetExceededError, StateError
from millrace.core.metrics import JoinMetrics
from millrace.semistream.join import SemiStreamJoin
from millrace.semistream.output.output_columns import Batches
from millrace.semistream.star.arms import naming

_MAGIC = b"MILLSTAR\x01"


@dataclass
class StarMetrics(JoinMetrics):
    """Metrics of a star join, most of which are sums over all arms.

    ``tuples_in`` counts the tuples that enter the first arm, ``rows_out`` and ``batches_out`` what leaves the last one,
    and ``steps`` the steps made by calls of ``step`` and ``idle``. ``most_waiting`` and ``peak_bytes`` are sums of the
    arms' maxima: upper bounds for the star. ``waits`` are waits at single arms, not sums over the arms; ``cycles`` is
    the largest value of any arm.

    As in a single join, ``arms[name].tuples_in = matched + unmatched + waiting + shed`` for every arm, and the output
    of one is the input of the next.
    """

    arms: dict[str, JoinMetrics] = field(default_factory=dict)
    """Metrics of each arm by name, in the order in which the arms are run."""

    @property
    def hit_rate(self) -> float:
        """Tuples that the caches of all arms answered, as a share of the tuples that came into all arms."""
        tuples = sum(arm.tuples_in for arm in self.arms.values())
        return self.cache_hits / tuples if tuples else 0.0

    def as_dict(self) -> dict[str, Any]:
        plain = super().as_dict()
        return plain | {"arms": {name: arm.as_dict() for name, arm in self.arms.items()}}


class Chain:
    """The joins of a star, bound to their inputs, in the order in which they are run."""

    def __init__(self, joins: Mapping[str, SemiStreamJoin]) -> None:
        self.names = list(joins)
        self.joins = list(joins.values())
        self.steps = 0
        self.broken = ""
        """Reason why the star cannot continue; empty if it can."""

    # the life cycle

    def push(self, batch: pa.RecordBatch) -> Batches:
        return self._pass_on(0, iter([batch]))

    def step(self) -> Batches:
        """Run one step of every join and yield the output of the last."""
        self.steps += 1
        yield from self._each(SemiStreamJoin.step)

    def idle(self) -> Batches:
        """Run one step of every join in which tuples wait, and yield the output of the last join."""
        if any(join.metrics.waiting for join in self.joins):
            self.steps += 1
        yield from self._each(SemiStreamJoin.idle)

    def finish(self) -> Batches:
        return self._each(SemiStreamJoin.finish)

    def _each(self, call: Callable[[SemiStreamJoin], Batches]) -> Batches:
        """Call each join in turn, pass its output through the joins after it, and yield the output of the last."""
        for place, join in enumerate(self.joins):
            yield from self._pass_on(place + 1, self._call(place, call, join))

    def _pass_on(self, place: int, batches: Iterator[pa.RecordBatch]) -> Batches:
        """Pass batches through the joins from ``place`` on; yield the output of the last."""
        if place == len(self.joins):
            yield from batches
            return
        for batch in batches:
            yield from self._pass_on(place + 1, self._call(place, SemiStreamJoin.push, self.joins[place], batch))

    def _call(self, place: int, call: Callable[..., Batches], *arguments: Any) -> Batches:
        """Yield the output of a call of one join; errors name its arm."""
        try:
            with naming(self.names[place]):
                yield from call(*arguments)
        except BudgetExceededError as error:
            if place:  # the tuple has already left the joins before
                self.broken = f"a tuple did not fit in arm {self.names[place]!r} and has left the earlier arms"
                error.args = (f"{error}. Continue from a snapshot with more memory",)
            raise

    # properties

    @property
    def nbytes(self) -> int:
        return sum(join.nbytes for join in self.joins)

    @property
    def metrics(self) -> StarMetrics:
        arms = {name: join.metrics for name, join in zip(self.names, self.joins, strict=True)}
        every = list(arms.values())
        total = StarMetrics(
            tuples_in=every[0].tuples_in,
            rows_out=every[-1].rows_out,
            batches_out=every[-1].batches_out,
            steps=self.steps,
            cycles=max(m.cycles for m in every),
            parts={f"{name}: {part}": nbytes for name, m in arms.items() for part, nbytes in m.parts.items()},
            arms=arms,
        )
        total.add_up(every)
        for device in {id(join.device): join.device for join in self.joins}.values():
            total.pages_read += device.pages_read
            total.bytes_read += device.bytes_read
            total.seeks += device.seeks
        for m in every:
            total.waits.include(m.waits)
        return total

    def check_invariants(self) -> None:
        for join in self.joins:
            join.check_invariants()
        for before, after in zip(self.joins, self.joins[1:], strict=False):
            assert before.metrics.rows_out == after.metrics.tuples_in, "rows were lost between two arms"

    # snapshots

    def snapshot(self) -> bytes:
        """Return the snapshots of all joins as one byte string."""
        parts = [join.snapshot() for join in self.joins]
        head = {"arms": self.names, "sizes": [len(part) for part in parts], "steps": self.steps}
        body = b"\n".join([json.dumps(head).encode(), b"".join(parts)])
        return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body

    def restore(self, names: list[str], steps: int, parts: list[bytes]) -> None:
        """Continue from a snapshot; the arguments are the three values that :func:`split_snapshot` returns for it."""
        if names != self.names:
            saved, running = ", ".join(names), ", ".join(self.names)
            raise StateError(
                f"restore: expected a snapshot of a star that runs its arms in the order {running}; got {saved}"
            )
        self.broken = "restore failed half-way"
        for name, join, part in zip(self.names, self.joins, parts, strict=True):
            with naming(name):
                join.restore(part)
        self.steps, self.broken = steps, ""


def split_snapshot(state: bytes) -> tuple[list[str], int, list[bytes]]:
    """Return the names of the arms, the number of steps, and each join's snapshot, from the snapshot of a chain."""
    if not isinstance(state, bytes) or state[: len(_MAGIC)] != _MAGIC:
        raise StateError("restore: not a snapshot of a star, or one of another version")
    crc, body = state[len(_MAGIC) : len(_MAGIC) + 4], state[len(_MAGIC) + 4 :]
    if zlib.crc32(body).to_bytes(4, "little") != crc:
        raise StateError("restore: the snapshot is damaged: its checksum is wrong")
    line, _, rest = body.partition(b"\n")
    head = json.loads(line)
    parts, at = [], 0
    for size in head["sizes"]:
        parts.append(rest[at : at + size])
        at += size
    return head["arms"], head["steps"], parts
