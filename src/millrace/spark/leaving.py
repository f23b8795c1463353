"""How rows leave a stateful operator: through a file, which the next step of the same task reads.

::

    stateful operator ── file, metrics ──► observe ──► mapInArrow ──► rows
            └────────── rows ──► local file ───────────────┘

The operator would take rows as pandas frames and give them out as one nested column, of which every value is asked
whether it is null; behind it ``observe`` looks at every row. A million rows of 15 columns spend half a second there.
Here a line that says where they are is all that takes that way. The file belongs to one task, on one machine. It is
unlinked when it is opened; what a worker that was killed has left is removed by the next, and all of it with Spark's
local directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from millrace.core.errors import StateError
from millrace.spark import metrics
from millrace.spark.scratch import local_directory
from millrace.spark.shipping import shipped

_FOLDER = "millrace-leaving"
_FILE = "file"

_numbers = count()
_tidied: set[Path] = set()


class WayOut:
    """How output rows, and a row of metrics beside them, get out of the operator and become rows again."""

    schema = StructType([StructField(_FILE, StringType()), StructField(metrics.COLUMN, StringType())])
    """What the operator gives out."""

    def __init__(self, output: StructType) -> None:
        self._output = output

    def frames(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pd.DataFrame]:
        """Write output rows down, and say where they are, if there are any."""
        first = next(batches, None)
        if first is None:
            return
        path = _new_file()
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, first.schema) as writer:
                writer.write_batch(first)
                for batch in batches:
                    writer.write_batch(batch)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        yield pd.DataFrame({_FILE: [str(path)], metrics.COLUMN: [None]})

    def metrics_frame(self, numbers: list[float]) -> pd.DataFrame:
        """A row of metrics."""
        return pd.DataFrame({_FILE: [None], metrics.COLUMN: [metrics.line(numbers)]})

    def rows(self, given: DataFrame) -> DataFrame:
        """The output from what the operator gave out, metrics left behind."""
        return given.mapInArrow(shipped("millrace.spark.leaving", "read_again"), self._output)


def read_again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that were written down."""
    for batch in batches:
        for path in batch.column(0).to_pylist():
            if path is not None:
                yield from _rows_of(path)


def _rows_of(path: str) -> Iterator[pa.RecordBatch]:
    try:
        source = pa.memory_map(path)
        os.unlink(path)
    except FileNotFoundError:
        raise StateError(
            f"{path}: the rows that a step of this task has written are gone: somebody clears Spark's local directory "
            "while it is in use. Start the query again: it goes on from its checkpoint"
        ) from None
    yield from pa.ipc.open_stream(source)


def _new_file() -> Path:
    """A file in a directory of the executor, from which files of processes that are gone have been removed."""
    folder = local_directory() / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder not in _tidied:
        _tidied.add(folder)
        for left in folder.iterdir():
            if not _runs(left.name.partition("-")[0]):
                with suppress(FileNotFoundError):
                    left.unlink()
    return folder / f"{os.getpid()}-{next(_numbers)}.arrow"


def _runs(process: str) -> bool:
    """Whether there is a process of this number; what is no number is let be."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (ValueError, PermissionError):
        return True
    return True
