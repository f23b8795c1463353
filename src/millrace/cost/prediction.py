"""The result of a prediction for a join."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """The predicted times, rates and memory use of a join in a steady state."""

    algorithm: str
    memory: int
    b: int
    """Master rows per load or, if pages are loaded, per page; 0 for ``lookup``."""
    cache_share: float | None
    c_loop: float
    """Seconds that a step takes."""
    w: float
    """Tuples answered in a step, from the cache or after waiting."""
    hit_share: float
    """Share of the stream that the cache answers."""
    mean_wait: float
    """Seconds that a tuple waits on average, if it has to wait."""
    worst_wait: float
    """The longest time that a tuple waits, in seconds."""
    waiting: float
    """Number of tuples that wait just before a load."""
    parts: dict[str, float]
    """Bytes that each part of the budget takes, by the part's name."""

    @property
    def rate(self) -> float:
        """Service rate in tuples per second; infinite if a step takes no time."""
        return self.w / self.c_loop if self.c_loop else float("inf")
