"""Metrics of an adaptive join, as named fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOST_POINTS = 1024


@dataclass(frozen=True)
class PhaseCounts:
    """The metrics of a join that are stored in its snapshots."""

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
    """Rows in memory and on disk at the moment, bytes of memory in use, and bytes written to and read from disk."""

    in_memory: int
    on_disk: int
    bytes_written: int
    bytes_read: int
    used_bytes: int
    peak_bytes: int
    parts: dict[str, int]


@dataclass
class AdaptiveMetrics:
    """Metrics of one adaptive join."""

    rows_in: dict[str, int] = field(default_factory=dict)
    """Rows that have arrived, per input."""
    null_keys: int = 0
    """Rows that cannot match anything because their key is null or NaN."""
    rows_out: int = 0
    """Rows output so far."""
    batches_out: int = 0
    """Batches output so far."""
    rows_arriving: int = 0
    """Rows output during the arriving phase, while new rows are processed."""
    rows_reactive: int = 0
    """Rows output during the reactive phase, while all inputs are silent."""
    in_memory: int = 0
    """Rows in memory now."""
    on_disk: int = 0
    """Rows on disk now."""
    flushes: int = 0
    """Number of times that rows were moved from memory to disk."""
    spilled_rows: int = 0
    """Rows that were moved from memory to disk."""
    reactive_units: int = 0
    """Units of disk work done while all inputs were silent. After each unit, the join checks for new rows."""
    bytes_written: int = 0
    """Bytes written to disk."""
    bytes_read: int = 0
    """Bytes read from disk."""
    budget_bytes: int = 0
    """Memory budget in bytes."""
    used_bytes: int = 0
    """Bytes of the budget that are reserved now."""
    peak_bytes: int = 0
    """Maximum number of bytes of the budget that have been reserved at the same time."""
    parts: dict[str, int] = field(default_factory=dict)
    """Bytes reserved now, per part of the join."""
    looks: int = 0
    """Number of times that waiting rows were counted: once after each unit of disk work in a run."""
    most_waiting: int = 0
    """Maximum number of rows that were waiting to be processed after a unit of disk work."""
    mean_waiting: float = 0.0
    """Mean number of rows that were waiting to be processed after a unit of disk work."""
    online_seconds: float | None = None
    """Seconds from the start of the run until the last input ended; None before that."""
    over_time: list[tuple[float, int]] = field(default_factory=list)
    """Points (seconds since the start of the run, rows output by then); the first and the last are always included."""

    notes: int = 0
    """Number of points recorded with :meth:`note`, including those no longer in ``over_time``."""
    every: int = 1
    """``over_time`` keeps one of this many recorded points; the number is doubled when ``over_time`` is full."""

    # counting, called by the parts of the join

    def count_input(self, name: str, rows: int) -> None:
        """Count rows that have arrived from one input."""
        self.rows_in[name] += rows

    def count_null_keys(self, rows: int) -> None:
        """Count rows whose key is null or NaN."""
        self.null_keys += rows

    def count_output(self, rows: int) -> None:
        """Count an output batch of ``rows`` rows."""
        self.rows_out += rows
        self.batches_out += 1

    def count_arriving(self, rows: int) -> None:
        """Count rows output during the arriving phase, while new rows are processed."""
        self.rows_arriving += rows

    def count_reactive(self, rows: int) -> None:
        """Count rows output during the reactive phase, while all inputs are silent."""
        self.rows_reactive += rows

    def count_unit(self) -> None:
        """Count a unit of disk work done while all inputs are silent."""
        self.reactive_units += 1

    def count_flush(self, rows: int) -> None:
        """Count a flush, which has moved ``rows`` rows from memory to disk."""
        self.flushes += 1
        self.spilled_rows += rows

    def count_waiting(self, rows: int) -> None:
        """Record how many rows are waiting to be processed after a unit of disk work."""
        self.looks += 1
        self.most_waiting = max(self.most_waiting, rows)
        self.mean_waiting += (rows - self.mean_waiting) / self.looks

    def note(self, seconds: float) -> None:
        """Add ``seconds`` and rows output so far to ``over_time``, which keeps up to 1,024 evenly spread points."""
        points = self.over_time
        if len(points) > 1 and self.notes % self.every:
            points.pop()
        points.append((seconds, self.rows_out))
        self.notes += 1
        if len(points) > MOST_POINTS:
            del points[1:-1:2]
            self.every *= 2

    def end_online(self, seconds: float) -> None:
        """Record the time at which the last input ended, in seconds since the start of the run."""
        self.online_seconds = seconds

    # reporting and snapshots

    def refresh(self, use: ResourceUse) -> None:
        """Update the fields that describe the current use of memory and disk."""
        self.in_memory, self.on_disk = use.in_memory, use.on_disk
        self.bytes_written, self.bytes_read = use.bytes_written, use.bytes_read
        self.used_bytes, self.peak_bytes, self.parts = use.used_bytes, use.peak_bytes, use.parts

    @property
    def left_in(self) -> int:
        """Rows that have arrived from the left input, in a join of two inputs."""
        return self.rows_in["left"]

    @property
    def right_in(self) -> int:
        """Rows that have arrived from the right input, in a join of two inputs."""
        return self.rows_in["right"]

    @property
    def rows_online(self) -> int:
        """Rows output before all inputs had ended."""
        return self.rows_arriving + self.rows_reactive

    def as_dict(self) -> dict[str, Any]:
        """Return all metrics as plain values, for JSON."""
        two = set(self.rows_in) == {"left", "right"}
        each = {f"{name}_in": rows for name, rows in self.rows_in.items()} if two else {}
        return {**each, **vars(self), "rows_online": self.rows_online}

    def state(self) -> PhaseCounts:
        """Return the counts that are stored in a snapshot."""
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
        """Restore the counts from a snapshot."""
        self.rows_in = dict(counts.rows_in)
        self.null_keys, self.rows_out, self.batches_out = counts.null_keys, counts.rows_out, counts.batches_out
        self.rows_arriving, self.rows_reactive = counts.rows_arriving, counts.rows_reactive
        self.reactive_units = counts.reactive_units
        self.flushes, self.spilled_rows = counts.flushes, counts.spilled_rows
