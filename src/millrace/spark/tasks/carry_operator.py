"""``pending="carry"``: what the cache can answer leaves at once, the others wait one turn of the wheel at most.

::

    rows ─► pack ─► groupBy(shard) ─► transformWithState ─► file ─► rows
             │  one Arrow blob per       │        ▲
             │  shard and batch          ▼        │ timer: the wheel turns when no input comes
             │                      hard state: waiting tuples, position of the wheel, cache

Spark may run a micro-batch again after its output was taken, to have the state it did not write down. So what a
micro-batch gives out follows from the state before it and from its input alone: the cache, which decides who leaves at
once, is part of the state, and blobs are taken in an order of their own, not in that of their arrival.

Rows leave the stateful operator through a file (:mod:`millrace.spark.transport.output_files`).
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructField, StructType

from millrace.core.errors import ConfigError, StateError
from millrace.rows.sharding import by_shard
from millrace.semistream.join import SemiStreamJoin
from millrace.semistream.snapshot_format import Progress, WaitingChunk
from millrace.spark import arrow_types as types
from millrace.spark import task_metrics as metrics
from millrace.spark.plans.enrich_plan import JoinPlan, together
from millrace.spark.session import PARTITIONS, ROCKSDB, STATE_STORE
from millrace.spark.state.local_copies import LocalCopies, digest_of
from millrace.spark.task_metrics import Meter
from millrace.spark.transport.batch_bytes import from_blob, to_blob
from millrace.spark.transport.output_files import WayOut
from millrace.spark.transport.routing import SHARD, shard_of
from millrace.worker.shipping import begin_task, shipped

_PACKED = f"{SHARD} int, blob binary"
_HEAD, _CACHE = "head", "cache"
_FORMAT = 1
"""Of what is in the state store; another number is another layout."""
_TICK_MS = 1
_BLOB_ROWS = 262_144


def carried(df: DataFrame, plan: JoinPlan, output: StructType, turns: int, label: str) -> DataFrame:
    """The stream through a stateful operator: packed before it, rows again behind it."""
    if not df.isStreaming:
        raise ConfigError("pending: 'carry' is for streaming DataFrames; use pending='drain' for a batch")
    check_turns(turns)
    settings = df.sparkSession.conf
    provider = settings.get(STATE_STORE, "")
    if provider != ROCKSDB:
        raise ConfigError(f"pending: 'carry' keeps its state in RocksDB: set {STATE_STORE} to {ROCKSDB}")
    partitions = int(settings.get(PARTITIONS, "200") or 200)
    names = spread(plan.shards, partitions)
    sharded = df.withColumn(SHARD, shard_of(plan) if plan.shards > 1 else F.lit(0))
    packed = sharded.mapInArrow(shipped("millrace.spark.tasks.carry_operator", "pack", plan, names), _PACKED)
    way = WayOut(StructType([StructField(f.name, f.dataType, f.nullable) for f in output]))  # no watermarks
    turned = packed.groupBy(SHARD).transformWithStateInPandas(
        Wheelwork(plan, turns, way), way.schema, "Append", "ProcessingTime"
    )
    return way.rows(metrics.observed(turned, label, plan.algorithm))


def check_turns(turns: int) -> int:
    """The number of micro-batches in which the wheel turns once."""
    if not isinstance(turns, int) or turns < 1:
        raise ConfigError(f"turns: expected a whole number of at least 1; got {turns!r}")
    return turns


# packing


def pack(plan: JoinPlan, names: list[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one task, by shard, as Arrow blobs."""
    for batch in together(batches, _BLOB_ROWS):
        shard = batch.column(batch.num_columns - 1).to_numpy()
        rows = types.conform(batch.select(range(batch.num_columns - 1)), plan.stream_schema)
        for number, mine in enumerate(by_shard(shard, plan.shards)):
            if len(mine):
                part = rows if len(mine) == len(rows) else rows.take(pa.array(mine))
                yield pa.record_batch(
                    [pa.array([names[number]], pa.int32()), pa.array([to_blob(part)], pa.binary())], [SHARD, "blob"]
                )


# the stateful part


class Wheelwork(StatefulProcessor):
    """One shard's join, from micro-batch to micro-batch.

    Hard state: ``head`` (a line of JSON, then for every chunk which of its tuples are still here and what each has met,
    a byte or less per tuple; written every time), ``rows`` of every chunk (its tuples as they came, written once) and
    ``cache`` (what has been learned, written when it has changed enough). All are values of one map, because Spark sets
    up every state variable anew for each task, and that costs more than a value. Of the last two there are copies on
    the executor's disk (:mod:`millrace.spark.state.local_copies`).
    """

    def __init__(self, plan: JoinPlan, turns: int, way: WayOut) -> None:
        self._plan, self._turns, self._way = plan, turns, way

    def init(self, handle: Any) -> None:
        begin_task()
        self._handle = handle
        self._kept = handle.getMapState("kept", "what string", "blob binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        blobs = sorted(
            (blob for frame in rows for blob in frame["blob"]), key=lambda blob: (zlib.crc32(blob), len(blob))
        )
        yield from self._handle_batch(self._shard(key), map(from_blob, blobs), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        head, _ = self._head()
        if head and head["at"] == int(timerValues.getCurrentProcessingTimeInMs()):
            return  # input came in the same micro-batch and has turned the wheel already
        yield from self._handle_batch(self._shard(key), iter(()), timerValues)

    def close(self) -> None:
        """Nothing is held between micro-batches."""

    def _shard(self, key: Any) -> int:
        return int(key[0]) % self._plan.shards

    def _handle_batch(self, shard: int, batches: Iterator[pa.RecordBatch], timer_values: Any) -> Iterator[pd.DataFrame]:
        plan = self._plan
        join = plan.join(shard if plan.shards > 1 else None, self._turns)
        self._copies = LocalCopies(plan.soft_folder(), shard)
        head, marks = self._head()
        if head is not None:
            self._check(head)
        learned = before = head["cache"] if head else ""
        if learned:
            join.recall_cache(io.BytesIO(self._recalled(_CACHE, learned)))
        filed, timer = self._resume(join, head, marks)
        meter = Meter(join)
        yield from self._way.frames(types.conform(batch, plan.sent_schema) for batch in self._work(join, batches))
        now = int(timer_values.getCurrentProcessingTimeInMs())
        if join.metrics.waiting and timer <= now:
            timer = now + _TICK_MS
            self._handle.registerTimer(timer)
        lesson = io.BytesIO()
        if plan.has_learned(join) and join.keep_cache(lesson):
            learned = self._keep(_CACHE, lesson.getvalue())
        gone = self._file(join, filed, timer, now, learned)
        self._copies.forget(gone if learned == before else [*gone, before])
        yield self._way.metrics_frame(meter.numbers())

    def _work(self, join: SemiStreamJoin, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take in what came, and turn the wheel by its share of a turn, further if the room was full."""
        goal = join.progress().turned + -(-join.store.rows // self._turns)
        for batch in batches:
            yield from join.push(batch)
        moved = False  # once at least: a chunk must be over before it is written down
        while join.metrics.waiting and (not moved or join.progress().turned < goal):
            yield from join.step()
            moved = True
        if not join.store.rows:
            yield from join.idle()

    # hard state

    def _kept_value(self, what: str) -> bytes:
        value = self._kept.getValue((what,))
        return b"" if value is None else bytes(value[0])

    def _recalled(self, what: str, digest: str) -> bytes:
        """A value with this digest, from the disk if a copy is there."""
        blob = self._copies.get(digest)
        if blob is None:
            blob = self._kept_value(what)
            self._copies.put(digest, blob)
        return blob

    def _keep(self, what: str, blob: bytes) -> str:
        """Write a value down, and return its digest."""
        self._kept.updateValue((what,), (blob,))
        digest = digest_of(blob)
        self._copies.put(digest, blob)
        return digest

    def _head(self) -> tuple[dict[str, Any] | None, bytes]:
        """How far the last micro-batch came, if there was one, and the marks of all chunks."""
        line, _, marks = self._kept_value(_HEAD).partition(b"\n")
        return (json.loads(line) if line else None), marks

    def _check(self, head: dict[str, Any]) -> None:
        """Whether the state is of this join."""
        if head.get("format") != _FORMAT:
            raise StateError(
                "carry: the checkpoint was made by another version of millrace, which keeps its state in another way. "
                "Go on with that version until nobody waits, or start with a new checkpoint"
            )
        if head["identity"] != self._plan.identity:
            raise StateError(
                "carry: the checkpoint is of another join: master, keys, columns, kind of join or the stream's schema "
                "have changed. Go on with the old parameters, or start with a new checkpoint"
            )
        wrote = str(head["progress"]["join"]).partition(", ")[0]
        if wrote != self._plan.algorithm:
            raise StateError(
                f"carry: in the checkpoint tuples wait for {wrote}, and the query now runs {self._plan.algorithm}. Go "
                f"on with algorithm={wrote!r}, or start with a new checkpoint"
            )

    def _resume(self, join: SemiStreamJoin, head: dict[str, Any] | None, marks: bytes) -> tuple[dict[int, _Filed], int]:
        """Put the join where the last micro-batch left it."""
        if head is None:
            return {}, 0
        filed: dict[int, _Filed] = {}
        chunks = []
        for start, step, length, size, digest in head["chunks"]:
            rows = from_blob(self._recalled(_rows(start), digest))
            here, tally = _read_marks(marks[:size], length)
            marks = marks[size:]
            if len(here) < len(rows):
                rows = rows.take(pa.array(here))
            chunks.append(WaitingChunk(start, step, rows, tally))
            filed[start] = _Filed(length, digest, here)
        join.resume(Progress(**head["progress"]), chunks)
        for (start, _, slots), chunk in zip(join.queue(), chunks, strict=True):
            assert start == chunk.start
            filed[start].slots = slots
        return filed, head["timer"]

    def _file(self, join: SemiStreamJoin, filed: dict[int, _Filed], timer: int, now: int, learned: str) -> list[str]:
        """Write down who waits now, and return the digests of chunks in which nobody does any more."""
        chunks, marks = [], b""
        for start, step, slots in join.queue():
            if not len(slots):
                continue
            if start not in filed:
                rows, _ = join.rows_at(slots)
                digest = self._keep(_rows(start), to_blob(rows))
                filed[start] = _Filed(len(slots), digest, np.arange(len(slots)), slots)
            entry = filed[start]
            still = _among(entry.slots, slots)
            if int(still.sum()) != len(slots):
                raise StateError(f"carry: chunk {start} has got tuples after it was written down")
            mine = _write_marks(entry.length, entry.here[still], join.tally_at(entry.slots[still]))
            marks += mine
            chunks.append([start, step, entry.length, len(mine), entry.digest])
        waiting = {start for start, *_ in chunks}
        over = [start for start in filed if start not in waiting]
        for start in over:
            self._kept.removeKey((_rows(start),))
        progress = asdict(join.progress()) | {"counts": {}}
        head = {
            "format": _FORMAT,
            "identity": self._plan.identity,
            "timer": timer,
            "at": now,
            "progress": progress,
            "chunks": chunks,
            "cache": learned,
        }
        self._kept.updateValue((_HEAD,), (json.dumps(head).encode() + b"\n" + marks,))
        return [filed[start].digest for start in over]


def _rows(start: int) -> str:
    """Where the tuples of a chunk are."""
    return f"rows {start}"


class _Filed:
    """A chunk in the hard state: its length and digest when it was written, which of its rows are here, and where."""

    def __init__(
        self, length: int, digest: str, here: np.ndarray[Any, Any], slots: np.ndarray[Any, Any] | None = None
    ) -> None:
        self.length, self.digest, self.here = length, digest, here
        self.slots = slots if slots is not None else np.empty(0, np.int32)


def _among(these: np.ndarray[Any, Any], those: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which of these slots are among those."""
    present = np.zeros(1 + max(int(these.max(initial=0)), int(those.max(initial=0))), np.bool_)
    present[those] = True
    return np.asarray(present[these])


def _write_marks(length: int, here: np.ndarray[Any, Any], tally: np.ndarray[Any, Any]) -> bytes:
    present = np.zeros(length, np.bool_)
    present[here] = True
    return np.packbits(present).tobytes() + tally.tobytes()


def _read_marks(marks: bytes, length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    bits = -(-length // 8)
    present = np.unpackbits(np.frombuffer(marks, np.uint8, bits), count=length)
    return np.flatnonzero(present), np.frombuffer(marks, np.uint8, offset=bits)


# where groups go


def spread(shards: int, partitions: int) -> list[int]:
    """Names for the shards, chosen so that Spark's hash sends them to different partitions.

    A name tells its shard whatever the number of partitions was when it was chosen: it is a multiple of the number of
    shards away.
    """
    names: list[int] = []
    taken = [0] * partitions
    for shard in range(shards):
        name = shard
        while taken[_murmur3(name) % partitions] > min(taken):
            name += shards
        taken[_murmur3(name) % partitions] += 1
        names.append(name)
    return names


def _murmur3(value: int) -> int:
    """Spark's ``hash`` of one int: murmur3 with seed 42, as a signed number."""

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & 0xFFFFFFFF

    k = rotated(value * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    h = (rotated(42 ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> shift)) * factor & 0xFFFFFFFF
    h ^= h >> 16
    return h - (1 << 32) if h >= 1 << 31 else h
