"""Counts of one join: each is a named field here, from the part that counts it to the place where it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOST_POINTS = 1024


@dataclass(frozen=True)
class PhaseCounts:
    """Counts that a snapshot keeps."""

    rows_in: dict[str, int]
    null_keys: int
    rows_out: int
    batches_out: int
    rows_arriving: int
    rows_reactive: int
    reactive_units: int
    flushes: int
    spilled_rows: int


@dataclass(frozen=True)
class ResourceUse:
    """Where rows are at the moment, and what they take."""

    in_memory: int
    on_disk: int
    bytes_written: int
    bytes_read: int
    used_bytes: int
    peak_bytes: int
    parts: dict[str, int]


@dataclass
class AdaptiveMetrics:
    """Counts of one join since it was made."""

    rows_in: dict[str, int] = field(default_factory=dict)
    """Rows that have come, by input."""
    null_keys: int = 0
    """Rows whose key is null or NaN, so that they have no partner."""
    rows_out: int = 0
    """Rows of the result."""
    batches_out: int = 0
    """Batches of the result."""
    rows_arriving: int = 0
    """Rows of the result that came out while rows were taken in."""
    rows_reactive: int = 0
    """Rows of the result that came out while nothing came in."""
    in_memory: int = 0
    """Rows in memory now."""
    on_disk: int = 0
    """Rows on disk now."""
    flushes: int = 0
    """Times that rows were written to disk to make room."""
    spilled_rows: int = 0
    """Rows that were written to disk to make room."""
    reactive_units: int = 0
    """Units of work with the disk while nothing came in."""
    bytes_written: int = 0
    """Bytes written to disk."""
    bytes_read: int = 0
    """Bytes read from disk."""
    budget_bytes: int = 0
    """The budget, in bytes."""
    used_bytes: int = 0
    """Bytes of the budget that are reserved now."""
    peak_bytes: int = 0
    """The most bytes that were ever reserved."""
    parts: dict[str, int] = field(default_factory=dict)
    """Bytes reserved now, by part."""
    looks: int = 0
    """Times that waiting rows were counted, once after each unit of work with the disk."""
    most_waiting: int = 0
    """The most rows that were waiting at such a count."""
    mean_waiting: float = 0.0
    """The mean number of rows that were waiting at such a count."""
    online_seconds: float | None = None
    """Seconds from the beginning of the run to the end of the last input."""
    over_time: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the beginning of the run, with the rows that had come out by then; the first and the last among
    them."""

    notes: int = 0
    """Points that were offered to ``over_time``."""
    every: int = 1
    """Points that were offered for each that was kept."""

    # what parts of the join count

    def count_input(self, name: str, rows: int) -> None:
        """Count rows of one input that have come."""
        self.rows_in[name] += rows

    def count_null_keys(self, rows: int) -> None:
        """Count rows whose key is null or NaN."""
        self.null_keys += rows

    def count_output(self, rows: int) -> None:
        """Count a batch of the result."""
        self.rows_out += rows
        self.batches_out += 1

    def count_arriving(self, rows: int) -> None:
        """Count rows of the result that came out while rows were taken in."""
        self.rows_arriving += rows

    def count_reactive(self, rows: int) -> None:
        """Count rows of the result that came out while nothing came in."""
        self.rows_reactive += rows

    def count_unit(self) -> None:
        """Count a unit of work with the disk while nothing came in."""
        self.reactive_units += 1

    def count_flush(self, rows: int) -> None:
        """Count rows that have gone to disk to make room."""
        self.flushes += 1
        self.spilled_rows += rows

    def count_waiting(self, rows: int) -> None:
        """Count rows that wait for the end of work with the disk."""
        self.looks += 1
        self.most_waiting = max(self.most_waiting, rows)
        self.mean_waiting += (rows - self.mean_waiting) / self.looks

    def note(self, seconds: float) -> None:
        """Add a point to ``over_time``. At most 1,024 points are kept, evenly spread."""
        points = self.over_time
        if len(points) > 1 and self.notes % self.every:
            points.pop()
        points.append((seconds, self.rows_out))
        self.notes += 1
        if len(points) > MOST_POINTS:
            del points[1:-1:2]
            self.every *= 2

    def end_online(self, seconds: float) -> None:
        """Set when the last input ended."""
        self.online_seconds = seconds

    # what is shown and kept

    def refresh(self, use: ResourceUse) -> None:
        """Set the fields that say how things are now."""
        self.in_memory, self.on_disk = use.in_memory, use.on_disk
        self.bytes_written, self.bytes_read = use.bytes_written, use.bytes_read
        self.used_bytes, self.peak_bytes, self.parts = use.used_bytes, use.peak_bytes, use.parts

    @property
    def left_in(self) -> int:
        """Rows that have come of the left of two inputs."""
        return self.rows_in["left"]

    @property
    def right_in(self) -> int:
        """Rows that have come of the right of two inputs."""
        return self.rows_in["right"]

    @property
    def rows_online(self) -> int:
        """Rows of the result that came out before the end of all inputs."""
        return self.rows_arriving + self.rows_reactive

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        two = set(self.rows_in) == {"left", "right"}
        each = {f"{name}_in": rows for name, rows in self.rows_in.items()} if two else {}
        return {**each, **vars(self), "rows_online": self.rows_online}

    def state(self) -> PhaseCounts:
        """Return the counts that a snapshot keeps."""
        return PhaseCounts(
            rows_in=dict(self.rows_in),
            null_keys=self.null_keys,
            rows_out=self.rows_out,
            batches_out=self.batches_out,
            rows_arriving=self.rows_arriving,
            rows_reactive=self.rows_reactive,
            reactive_units=self.reactive_units,
            flushes=self.flushes,
            spilled_rows=self.spilled_rows,
        )

    def restore(self, counts: PhaseCounts) -> None:
        """Set the counts that a snapshot has kept."""
        self.rows_in = dict(counts.rows_in)
        self.null_keys, self.rows_out, self.batches_out = counts.null_keys, counts.rows_out, counts.batches_out
        self.rows_arriving, self.rows_reactive = counts.rows_arriving, counts.rows_reactive
        self.reactive_units = counts.reactive_units
        self.flushes, self.spilled_rows = counts.flushes, counts.spilled_rows
