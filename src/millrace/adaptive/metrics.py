"""What a join of two inputs tells about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class PairMetrics:
    """Counts of one join since it was made."""

    left_in: int = 0
    right_in: int = 0
    null_keys: int = 0
    """Rows that cannot have a partner, for their key is null or NaN."""
    rows_out: int = 0
    batches_out: int = 0
    rows_arriving: int = 0
    """Of the rows out, those that came out while rows were taken in."""
    rows_reactive: int = 0
    """Those that came out while nothing came in."""
    in_memory: int = 0
    on_disk: int = 0
    flushes: int = 0
    spilled_rows: int = 0
    reactive_units: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    budget_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def rows_online(self) -> int:
        """Rows that came out before the end of both inputs."""
        return self.rows_arriving + self.rows_reactive

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "rows_online": self.rows_online}
