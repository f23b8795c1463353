"""The input of the models of Millrace's joins: the master, the stream, the disk and the options of a join."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.core.errors import ConfigError
from millrace.cost.frequencies import Frequencies
from millrace.cost.measured import MeasuredCosts
from millrace.cost.symbols import Disk, UnitCosts


@dataclass(frozen=True)
class Workload:
    """A join, its master, its stream and the disk, in the terms of the cost models."""

    rows: int
    """Number of master rows."""
    read_bytes: float
    """Bytes that a scan reads of each master row: the whole row, or the key column alone."""
    tuple_bytes: float
    """Bytes that a waiting tuple takes in memory, including index, queue and filter."""
    disk: Disk
    frequencies: Frequencies
    cached_bytes: float = 0.0
    """Bytes that the master rows of a key take in the cache."""
    costs: UnitCosts | MeasuredCosts = field(default_factory=UnitCosts)
    leave_early: bool = True
    """Whether a tuple leaves as soon as it has its match; otherwise it waits for a whole turn."""
    every_load_seeks: bool = False
    """Whether every load costs a seek, as in the papers' models; otherwise, only every turn of the wheel does."""
    threads: int = 2
    rows_per_key: float = 1.0
    """Average number of master rows per key; joins that load pages can only be predicted if it is 1."""
    read_row_bytes: float = 0.0
    """Bytes that ``lookup`` reads of each master row; 0 means ``read_bytes``, as in a scan."""
    batch: int = 10_000
    """Number of tuples in a batch of the stream."""

    def __post_init__(self) -> None:
        for name in ("rows", "read_bytes", "tuple_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: expected a number above 0; got {getattr(self, name)!r}")

    def unit_costs(self, memory: int) -> UnitCosts:
        """Return the unit costs of a join with this budget."""
        return self.costs.at(memory)

    @property
    def stay(self) -> float:
        """Average wait of a tuple, as a fraction of a turn of the wheel."""
        return 0.5 if self.leave_early else 1.0
