"""What this engine's joins do with a budget: the papers' models with the engine's own sizes, reads and habits.

Where it differs from the papers' forms:

- a waiting tuple takes what the engine charges for it (slot, index, queue, filter), and a load only has key codes;
- the wheel reads on where it stopped, so it seeks once a turn and not at every load;
- where only one match matters, a tuple leaves with it and stays for half a turn on average;
- pages are loaded several in a step, and finding them reads the index;
- caches know frequencies by counting, so keys near the border come and go.

Rates are for a stream that always has a tuple, once the join has settled. Every key is taken to have as many master
rows as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.core.bisection import increasing_root
from millrace.core.errors import BudgetTooSmallError, ConfigError, one_of
from millrace.core.sizes import format_size
from millrace.cost.frequencies import Frequencies
from millrace.cost.measured import MeasuredCosts
from millrace.cost.plan import LEAST_MATCHES, LEAST_PAIRS, LOAD_ROW_BYTES, PAIR_BYTES, Plan, rows_by_share
from millrace.cost.symbols import Disk, UnitCosts

CHUNK_BYTES = 256
"""What the queue takes for the tuples of one step."""
FILTER_BYTES = 2.0
"""What ``tuple_bytes`` counts for a tuple's bits in the filter."""


@dataclass(frozen=True)
class Situation:
    """What a join is faced with."""

    rows: int
    """Master rows."""
    read_bytes: float
    """Bytes that a scan reads of each: the whole row, or the key column alone."""
    tuple_bytes: float
    """What a waiting tuple takes in memory, everything included."""
    disk: Disk
    frequencies: Frequencies
    cached_bytes: float = 0.0
    """What the master rows of a key take in the cache."""
    costs: UnitCosts | MeasuredCosts = field(default_factory=UnitCosts)
    leave_early: bool = True
    """Whether a tuple leaves with its match."""
    every_load_seeks: bool = False
    """Whether the disk has to go back to the wheel's place at every load, as in the papers' models."""
    threads: int = 2
    rows_per_key: float = 1.0
    """Master rows of a key, on average; the models of joins that load pages know one only."""
    read_row_bytes: float = 0.0
    """Bytes that are read of a row that is looked up; all that are read of it by a scan, if 0."""
    batch: int = 10_000
    """Stream tuples that come together."""

    def __post_init__(self) -> None:
        for name in ("rows", "read_bytes", "tuple_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: expected a number above 0; got {getattr(self, name)!r}")

    def unit_costs(self, memory: int) -> UnitCosts:
        """Unit costs of a join with this budget."""
        return self.costs.at(memory)

    @property
    def stay(self) -> float:
        """How much of a turn a tuple stays on average."""
        return 0.5 if self.leave_early else 1.0


@dataclass(frozen=True)
class Prediction:
    """What is to be expected of a join that has settled."""

    algorithm: str
    memory: int
    b: int
    """Master rows per load, or of a page."""
    cache_share: float | None
    c_loop: float
    """Seconds of a step."""
    w: float
    """Tuples answered in a step, from the cache or after waiting."""
    hit_share: float
    """Share of the stream that the cache answers."""
    mean_wait: float
    """Seconds that a tuple waits on average, if it has to wait."""
    worst_wait: float
    """Seconds that none waits longer than."""
    waiting: float
    """Tuples that wait just before a load."""
    parts: dict[str, float]
    """Bytes by part of the budget."""

    @property
    def rate(self) -> float:
        """Tuples per second; infinite where nothing takes any time."""
        return self.w / self.c_loop if self.c_loop else float("inf")


def least_memory(situation: Situation, b: int = 1) -> int:
    """The least budget with which a join starts."""
    room = int(4 * (situation.tuple_bytes - FILTER_BYTES)) + 64 + 4 * CHUNK_BYTES
    sieves = 3 * (situation.threads * 8 * LEAST_MATCHES + 8)
    return b * LOAD_ROW_BYTES + LEAST_PAIRS * PAIR_BYTES + room + 1024 + sieves


def predict(
    situation: Situation,
    algorithm: str,
    memory: int,
    *,
    b: int | None = None,
    cache_share: float = 0.3,
    l: int = 4,  # noqa: E741
) -> Prediction:
    """What ``memory`` bytes give.

    Parameters
    ----------
    algorithm
        One of :data:`PREDICTED`.
    b, cache_share, l
        Options of the join, as it takes them; ``cache_share`` for ``cachejoin`` and ``sscj``, ``l`` for ``r-meshjoin``.
    """
    from millrace.cost import engine_cyclic, engine_direct, engine_paged

    one_of("algorithm", algorithm, PREDICTED)
    asked = 1 if b is None or b <= rows_by_share(memory) else b  # the share of a load has room for it
    least = least_memory(situation, min(asked, situation.rows))
    if memory < least:
        raise BudgetTooSmallError(
            f"memory: {format_size(memory)} is too little for {algorithm} with b={b or 1}; "
            f"the least is {least} bytes ({format_size(least)})",
            least,
        )
    if algorithm in ("cachejoin", "sscj", "ssbj") and not situation.cached_bytes > 0:
        raise ConfigError(f"cached_bytes: {algorithm} caches rows; expected what one takes; got 0")
    if algorithm == "lookup":
        return engine_direct.predict(situation, memory)
    if algorithm in ("hybridjoin", "cachejoin", "sscj"):
        share = None if algorithm == "hybridjoin" else cache_share
        return engine_paged.predict(situation, algorithm, memory, b, share)
    return engine_cyclic.predict(situation, algorithm, memory, b, l if algorithm == "r-meshjoin" else 1)


PREDICTED = ("meshjoin", "r-meshjoin", "ssbj", "hybridjoin", "cachejoin", "sscj", "lookup")
"""Algorithms that have a model."""


@dataclass(frozen=True)
class Room:
    """The waiting room in what other parts leave."""

    capacity: float
    queue: float
    filter: float

    @classmethod
    def fitting(cls, situation: Situation, plan: Plan, free: float, chunks: Callable[[float], float]) -> Room:
        """The room for as many tuples as fit into ``free`` bytes beside their queue and filter.

        ``chunks`` is how many steps the queue goes back when so many wait. Bits of the filter are counted twice, as the
        engine does: by what it holds, and in ``tuple_bytes``.
        """
        finders = situation.threads * 8 * plan.matches

        def used(tuples: float) -> float:
            beside = CHUNK_BYTES * chunks(tuples) + finders + filter_bytes(tuples)
            return tuples * situation.tuple_bytes + beside

        fits = increasing_root(used, free, 1.0, max(1.0, free / situation.tuple_bytes), 1e-6, 1e-4 * max(free, 1.0))
        return cls(fits, CHUNK_BYTES * chunks(fits), finders + filter_bytes(fits))

    def parts(self, situation: Situation) -> dict[str, float]:
        """Bytes by part of the budget."""
        waiting = self.capacity * (situation.tuple_bytes - FILTER_BYTES)
        return {"waiting": waiting, "queue": self.queue, "filter": self.filter}


def filter_bytes(tuples: float) -> int:
    """Bytes of the bit filter of so many tuples: a power of two of words, 8 to 16 bits for a tuple and a quarter."""
    bits = 8 * int(tuples + tuples / 4)
    return 8 * max(1, 1 << max(0, (bits - 1).bit_length() - 6))
