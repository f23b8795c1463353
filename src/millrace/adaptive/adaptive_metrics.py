"""What a join tells about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millrace.adaptive.pair.pair_spec import SIDES

MOST_POINTS = 1024


@dataclass
class AdaptiveMetrics:
    """Counts of one join since it was made."""

    rows_in: dict[str, int] = field(default_factory=dict)
    """Rows that have come, by input."""
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
    looks: int = 0
    """How often rows that wait were counted between two units of work with the disk."""
    most_waiting: int = 0
    """Most of them at a look."""
    mean_waiting: float = 0.0
    online_seconds: float | None = None
    """When all inputs had ended, since the beginning of the run."""
    over_time: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the beginning of the run, and rows that had come out by then; the first and the last among them."""

    notes: int = 0
    every: int = 1
    """How many notes the points of ``over_time`` stand for."""

    def look(self, waiting: int) -> None:
        """Rows wait for the end of work with the disk."""
        self.looks += 1
        self.most_waiting = max(self.most_waiting, waiting)
        self.mean_waiting += (waiting - self.mean_waiting) / self.looks

    def note(self, seconds: float) -> None:
        """Rows have come out. At most 1,024 points are kept, evenly spread over the notes."""
        points = self.over_time
        if len(points) > 1 and self.notes % self.every:
            points.pop()
        points.append((seconds, self.rows_out))
        self.notes += 1
        if len(points) > MOST_POINTS:
            del points[1:-1:2]
            self.every *= 2

    @property
    def left_in(self) -> int:
        """Rows of the left of two inputs that have come."""
        return self.rows_in["left"]

    @property
    def right_in(self) -> int:
        """Rows of the right of two inputs that have come."""
        return self.rows_in["right"]

    @property
    def rows_online(self) -> int:
        """Rows that came out before the end of all inputs."""
        return self.rows_arriving + self.rows_reactive

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        each = {f"{name}_in": rows for name, rows in self.rows_in.items()} if set(self.rows_in) == set(SIDES) else {}
        return {**each, **vars(self), "rows_online": self.rows_online}
