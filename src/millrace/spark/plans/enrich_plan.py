"""What is sent to the workers: everything a join needs to know, small enough to travel with every task."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import StateError
from millrace.master.manifest import Manifest
from millrace.master.store import MasterStore
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.join import SemiStreamJoin
from millrace.spark import arrow_types as types
from millrace.worker.scratch import local_directory

_PUSHED_ROWS, _PUSHED_BYTES = 65_536, 1 << 25
_GREEDY = 2**31  # let in all tuples there is room for: a micro-batch is to be over after one turn
_WORTH_KEEPING = 0.02
_SNAPSHOT = "snapshot"

_stores: dict[str, MasterStore] = {}  # opened by this worker, by path; the last few


@dataclass(frozen=True)
class JoinPlan:
    """One ``enrich``, as its workers see it.

    ``memory`` is what one task may use: the executor's budget divided by the tasks that may hold memory at a time.
    """

    path: str
    snapshot: str
    shards: int
    on: dict[str, str]
    key_types: tuple[str, ...]
    how: str
    algorithm: str
    memory: int
    columns: tuple[str, ...] | None
    suffix: str | None
    options: dict[str, Any]
    stream: bytes
    sent: bytes
    scratch: str | None

    @cached_property
    def stream_schema(self) -> pa.Schema:
        """The stream's columns as the engine gets them."""
        return pa.ipc.read_schema(pa.py_buffer(self.stream))

    @cached_property
    def sent_schema(self) -> pa.Schema:
        """The output's columns as Spark gets them."""
        return pa.ipc.read_schema(pa.py_buffer(self.sent))

    @cached_property
    def identity(self) -> str:
        """What must not change from one micro-batch to the next: the master, the kind of join, and the columns."""
        parts = (self.snapshot, self.shards, sorted(self.on.items()), self.how, self.columns, self.suffix, self.stream)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def store(self) -> MasterStore:
        """The master, opened once per worker, and again if it has got an index since.

        An error if it is not the one the query was started with.
        """
        manifest = Manifest.read(Path(self.path))
        if manifest.snapshot != self.snapshot:
            raise StateError(
                f"{self.path}: the master store was replaced after the query was started "
                f"(it was {self.snapshot[:8]}, now it is {manifest.snapshot[:8]}). Restart the query to join with the "
                "new one; nothing of this micro-batch was given out"
            )
        store = _stores.get(self.path)
        if store is None or (store.manifest.snapshot, store.indexed) != (self.snapshot, manifest.indexed):
            while len(_stores) >= 8:
                _stores.pop(next(iter(_stores)))
            store = _stores[self.path] = MasterStore.open(self.path)
        return store

    def join(self, shard: int | None, turns: int = 1) -> SemiStreamJoin:
        """A join with one shard of the master, or with all of it. A turn of its wheel has at least ``turns`` steps."""
        store = self.store() if shard is None else self.store().shard(shard)
        options = dict(self.options)
        if turns > 1 and store.rows // turns < options.get("b", self.memory // 64):
            options["b"] = max(1, -(-store.rows // turns))
        if "w" in ALGORITHMS[self.algorithm].sizes:
            options["w"] = _GREEDY
        made = SemiStreamJoin(
            store,
            on=self.on,
            how=self.how,
            algorithm=self.algorithm,
            memory=self.memory,
            columns=self.columns,
            suffix=self.suffix,
            threads=1,
            **options,
        )
        made.bind(self.stream_schema)
        return made

    def has_learned(self, join: SemiStreamJoin) -> bool:
        """Whether what the join has learned in this micro-batch is worth writing."""
        m = join.metrics
        return m.admitted_keys + m.evicted_keys > _WORTH_KEEPING * m.cached_keys

    def recall(self, join: SemiStreamJoin, shard: int | None) -> None:
        """Let the join begin with what earlier ones have learned."""
        join.recall_cache(self._soft_file(shard))

    def keep(self, join: SemiStreamJoin, shard: int | None) -> None:
        """Leave what the join has learned to those who come after."""
        if not self.has_learned(join):
            return
        self.soft_folder()
        with suppress(OSError):  # a cache that cannot be kept costs time, nothing else
            join.keep_cache(self._soft_file(shard))

    def _soft_file(self, shard: int | None) -> Path:
        name = "whole" if shard is None else f"shard-{shard:04d}"
        return self._soft_folder / f"{name}.soft"

    @property
    def _soft_folder(self) -> Path:
        """Where all workers of this executor find what they know, gone when the executor is."""
        return local_directory(self.scratch) / f"millrace-{self._place}-{self.identity}-{self.memory}"

    def soft_folder(self) -> Path:
        """The folder of soft state, made if it has to be and can be."""
        folder = self._soft_folder
        if not folder.exists():
            with suppress(OSError):
                self._forget_others(folder)
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (folder / _SNAPSHOT).write_text(self.snapshot)
        return folder

    @property
    def _place(self) -> str:
        """The master's path, short enough for a name."""
        return hashlib.sha256(self.path.encode()).hexdigest()[:8]

    def _forget_others(self, ours: Path) -> None:
        """Remove what was learned about masters that have been replaced at the same path."""
        for other in ours.parent.glob(f"millrace-{self._place}-*"):
            note = other / _SNAPSHOT
            try:
                stale = note.read_text() != self.snapshot
            except OSError:
                continue
            if stale:
                shutil.rmtree(other, ignore_errors=True)

    def shards_in(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The shard of every row that has a key, computed from the key itself."""
        store = self.store()
        keys = [
            column.cast(type_) if column.type != type_ else column
            for column, type_ in (
                (batch.column(batch.schema.get_field_index(ours)), store.schema.field(theirs).type)
                for ours, theirs in self.on.items()
            )
        ]
        valid = np.ones(len(batch), np.bool_)
        for key in keys:
            if key.null_count:
                valid &= key.is_valid().to_numpy(zero_copy_only=False)
        shards = store.coder.shards(keys, self.shards)
        return np.asarray(shards if valid.all() else shards[valid], np.int64)

    def shard_of(self, batch: pa.RecordBatch) -> int | None:
        """The shard a task works on, told by its rows: Spark's partition numbers change when results are unioned."""
        if self.shards == 1:
            return None
        shards = self.shards_in(batch)
        return int(shards[0]) if len(shards) else 0

    def check_shard(self, batch: pa.RecordBatch, shard: int | None) -> None:
        """Make sure that every row is where its master rows are."""
        if shard is None:
            return
        found = self.shards_in(batch)
        if (found != shard).any():
            raise StateError(
                f"rows of shard {int(found[found != shard][0])} came to the task of shard {shard}: "
                "something between the stream and the join has moved them"
            )

    def arriving(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark's batches, put together to pieces that are worth pushing, in the engine's types."""
        return together((types.conform(batch, self.stream_schema) for batch in batches if len(batch)), _PUSHED_ROWS)


def together(batches: Iterable[pa.RecordBatch], rows: int, nbytes: int = _PUSHED_BYTES) -> Iterator[pa.RecordBatch]:
    """Small batches put together until they have so many rows or bytes."""
    pending: list[pa.RecordBatch] = []
    held = size = 0
    for batch in batches:
        pending.append(batch)
        held, size = held + len(batch), size + batch.nbytes
        if held >= rows or size >= nbytes:
            yield pa.concat_batches(pending)
            pending, held, size = [], 0, 0
    if held:
        yield pa.concat_batches(pending)
