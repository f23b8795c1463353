"""A memory budget in bytes, split into named reservations that are made before memory is used."""

from __future__ import annotations

from millrace.core.errors import BudgetExceededError, ConfigError
from millrace.core.sizes import format_size


class MemoryBudget:
    """A memory budget in bytes. Parts of an operator reserve what they are about to use, never more than is left.

    Parameters
    ----------
    peak
        Peak of the budget that this one replaces: the most bytes that were reserved at the same time.

    Examples
    --------
    >>> budget = MemoryBudget(1000)
    >>> cache = budget.reserve("cache", 600)
    >>> cache.try_resize(1200)
    False
    >>> cache.resize(700); budget.available
    300
    >>> cache.release(); budget.used, budget.peak
    (0, 700)
    """

    def __init__(self, total: int, peak: int = 0) -> None:
        if total < 1:
            raise ConfigError(f"memory: expected at least one byte; got {total}")
        self.total = total
        self.used = 0
        self.peak = peak
        self._parts: list[Reservation] = []

    @property
    def available(self) -> int:
        return self.total - self.used

    def reserve(self, part: str, nbytes: int = 0) -> Reservation:
        """Reserve ``nbytes`` under the name ``part``; raise a :class:`BudgetExceededError` if too few are left."""
        reservation = Reservation(self, part)
        reservation.resize(nbytes)
        self._parts.append(reservation)
        return reservation

    def take(self, nbytes: int) -> bool:
        """Add ``nbytes``, which may be negative, to ``used``; return False and change nothing if too few are left."""
        if self.used + nbytes > self.total:
            return False
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        return True

    def parts(self) -> dict[str, int]:
        """Return how many bytes each part has reserved."""
        split: dict[str, int] = {}
        for reservation in self._parts:
            split[reservation.part] = split.get(reservation.part, 0) + reservation.nbytes
        return split

    def check_invariants(self) -> None:
        assert self.used == sum(r.nbytes for r in self._parts), "the reservations do not add up to the used bytes"
        assert 0 <= self.used <= self.total, f"{self.used} bytes reserved of {self.total}"
        assert self.used <= self.peak <= self.total


class Reservation:
    """The bytes that one part of an operator has reserved in a budget."""

    def __init__(self, budget: MemoryBudget, part: str) -> None:
        self._budget = budget
        self.part = part
        self.nbytes = 0

    def try_resize(self, nbytes: int) -> bool:
        """Change the reservation to ``nbytes``; return False and change nothing if the budget has not enough left."""
        if nbytes < 0:
            raise ConfigError(f"{self.part}: expected a reservation of at least 0 bytes; got {nbytes}")
        if not self._budget.take(nbytes - self.nbytes):
            return False
        self.nbytes = nbytes
        return True

    def resize(self, nbytes: int) -> None:
        """Change the reservation to ``nbytes``; raise a :class:`BudgetExceededError` if the budget has too few left."""
        if not self.try_resize(nbytes):
            more = nbytes - self.nbytes
            raise BudgetExceededError(
                f"{self.part}: needs {format_size(more)} more memory, "
                f"but only {format_size(self._budget.available)} of the budget of "
                f"{format_size(self._budget.total)} are left"
            )

    def release(self) -> None:
        """Give all reserved bytes back to the budget and close the reservation."""
        self.resize(0)
        self._budget._parts.remove(self)
