"""The papers' symbols, each defined once: sizes in bytes, unit costs in seconds, rates in tuples per second.

The papers give unit costs in nanoseconds and multiply by 1e-9; here they are seconds, and the factor is gone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.core.errors import ConfigError
from millrace.core.numeric import is_number


@dataclass(frozen=True)
class Sizes:
    """Sizes of the master R, the stream S and their tuples, and of the structures that hold them."""

    R_t: int
    """Number of tuples of R."""
    v_R: float
    """Bytes of a tuple of R."""
    v_S: float
    """Bytes of a tuple of S."""
    v_P: float = 8192.0
    """Bytes of a page of R."""
    v_Q: float = 4.0
    """Bytes of a node of the queue: 4 in MESHJOIN and SSBJ (a pointer), 12 in HYBRIDJOIN (a key and two links)."""
    f: float = 1.0
    """Fudge factor: bytes that a hash table takes for every byte of its tuples."""
    sigma: float = 1.0
    """Average number of result tuples for a tuple of R that probes the hash table."""

    def __post_init__(self) -> None:
        for name in ("R_t", "v_R", "v_S", "v_P", "f"):
            if not (is_number(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name}: expected a number above 0; got {getattr(self, name)!r}")

    @property
    def N_R(self) -> float:
        """Number of pages of R: R_t · v_R / v_P."""
        return self.R_t * self.v_R / self.v_P

    @property
    def per_page(self) -> float:
        """Number of tuples of R on a page: v_P / v_R."""
        return self.v_P / self.v_R

    @property
    def q(self) -> float:
        """Bytes that a waiting tuple takes in the hash table and in the queue."""
        return self.v_Q + self.f * self.v_S


@dataclass(frozen=True)
class UnitCosts:
    """Unit costs: the seconds that one operation of each kind takes. With all at zero, only disk reads take time."""

    c_H: float = 0.0
    """Seconds to look up a tuple in a hash table."""
    c_O: float = 0.0
    """Seconds to create a result tuple."""
    c_E: float = 0.0
    """Seconds to remove a tuple from hash table and queue."""
    c_S: float = 0.0
    """Seconds to read a tuple from the stream buffer."""
    c_A: float = 0.0
    """Seconds to append a tuple to hash table and queue."""
    c_F: float = 0.0
    """Seconds to compare the frequency of a disk tuple with the threshold for entering the cache."""
    c_B: float = 0.0
    """Seconds to move a disk tuple into the cache; in Millrace's own models, seconds to move all rows of a key."""
    c_R: float = 0.0
    """Seconds to read a disk tuple that has one or more matches. This cost and those below are not in the papers."""
    c_C: float = 0.0
    """Seconds to answer a tuple from the cache; 0 means c_S + c_H + c_O."""
    c_step: float = 0.0
    """Seconds that a step takes in addition to the costs of its tuples."""
    c_I: float = 0.0
    """Seconds per step to look up in the index which pages the step needs."""
    c_J: float = 0.0
    """Seconds that SSBJ takes to decide whether to cache a disk tuple that has matches."""
    c_Q: float = 0.0
    """Seconds to take a tuple out of the middle of the queue, in addition to c_E."""
    c_L: float = 0.0
    """Seconds to find a master row through the index, if both are in the page cache; a hit's cost is not included."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (is_number(value) and 0 <= value < float("inf")):
                raise ConfigError(f"{name}: expected seconds, at least 0; got {value!r}")

    def at(self, memory: float) -> UnitCosts:
        """Return these unit costs, which do not depend on the budget."""
        return self

    @property
    def waiting(self) -> float:
        """Seconds to read, append and remove a tuple that waits: c_S + c_A + c_E, as in MESHJOIN's model."""
        return self.c_E + self.c_S + self.c_A

    @property
    def hit(self) -> float:
        """Seconds to answer a tuple from the cache: c_C or, if that is 0, c_S + c_H + c_O."""
        return self.c_C or self.c_S + self.c_H + self.c_O


@dataclass(frozen=True)
class Disk:
    """The time of a disk read, c_IO, as a linear function: ``seek`` seconds, then ``bandwidth`` bytes per second."""

    seek: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (is_number(self.seek) and is_number(self.bandwidth) and self.seek >= 0 and self.bandwidth > 0):
            raise ConfigError(f"disk: expected seek ≥ 0 and bandwidth > 0; got {self.seek!r} and {self.bandwidth!r}")

    def c_IO(self, nbytes: float) -> float:
        """Return the seconds of a seek and a read of ``nbytes`` bytes.

        >>> Disk(seek=0.008, bandwidth=50e6).c_IO(1_000_000)
        0.028
        """
        return self.seek + self.transfer(nbytes)

    def transfer(self, nbytes: float) -> float:
        """Return the seconds to read ``nbytes`` bytes without a seek."""
        return nbytes / self.bandwidth

    def sweep(self, pieces: float, nbytes: float, of: float) -> float:
        """Return the seconds to read ``pieces`` random pieces of a file that has ``of`` pieces of ``nbytes`` bytes.

        The pieces are read in file order. What lies between two pieces is read too if that is faster than a seek.
        """
        gap = self.transfer(max(0.0, of / (pieces + 1) - 1) * nbytes)
        between = gap * -math.expm1(-self.seek / gap) if gap else 0.0
        return self.c_IO(pieces * nbytes) + max(0.0, pieces - 1) * between

    @classmethod
    def measured(cls, nbytes: Sequence[float], seconds: Sequence[float]) -> Disk:
        """Fit seek time and bandwidth to reads of ``nbytes`` bytes that took ``seconds`` seconds, by least squares.

        >>> Disk.measured([0, 1e6, 2e6], [0.01, 0.02, 0.03])
        Disk(seek=0.01, bandwidth=100000000.0)
        """
        if len(nbytes) != len(seconds) or len(set(nbytes)) < 2:
            raise ConfigError(
                "disk: expected one time for each read, and reads of at least two lengths; "
                f"got lengths {nbytes!r} and times {seconds!r}"
            )
        slope, seek = np.polyfit(np.asarray(nbytes, float), np.asarray(seconds, float), 1)
        if slope <= 0:
            raise ConfigError(
                "disk: longer reads took no longer than shorter ones, so the bandwidth cannot be estimated; "
                "measure longer reads"
            )
        return cls(max(0.0, round(float(seek), 12)), round(1 / float(slope), 3))
