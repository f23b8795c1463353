"""The metrics of ``join_streams``: what a task counts for a shard in one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.spark.metrics.metric_fields import MetricField, MetricSet, metric_fields, total


@dataclass(frozen=True)
class StreamJoinMetrics:
    """The metrics of one shard in one micro-batch. A row that goes to several shards counts in each of them."""

    rows_out: int = total()
    """Number of output rows."""
    state_rows: int = total()
    """Number of rows in the state; with a band, a left row counts once for every bucket that it was copied to."""
    state_bytes: int = total()
    """Size of the state, in bytes."""
    chunks_read: int = total()
    """Number of times that a chunk of the state was read."""
    chunks_skipped: int = total()
    """Number of times that a chunk of the state was not read, as it cannot contain the key codes looked for."""
    chunks_written: int = total()
    """Number of chunks of the state that were written."""

    def line(self, rows_in: Mapping[str, int]) -> str:
        """Return the metrics as the text that a task sends; ``rows_in`` maps each input to its number of new rows."""
        counts = {_rows_in(name): count for name, count in rows_in.items()}
        return stream_join_metrics(list(rows_in)).line(vars(self) | counts)


def stream_join_metrics(inputs: Sequence[str]) -> MetricSet:
    """Return the metrics of a join of these inputs: the number of new rows of each, then ``StreamJoinMetrics``.

    >>> [each.name for each in stream_join_metrics(("left", "right")).fields][:3]
    ['left_in', 'right_in', 'rows_out']
    """
    rows_in = (MetricField(_rows_in(name)) for name in inputs)
    return MetricSet("streams", (*rows_in, *metric_fields(StreamJoinMetrics)))


def _rows_in(name: str) -> str:
    return f"{name}_in"
