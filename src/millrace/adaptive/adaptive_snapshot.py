"""A join as bytes: everything it would have to know in another process, rows on disk included.

::

    "MILLADPT" | checksum of what follows | length of the head | head (JSON) | buffers, one after the other
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millrace.adaptive.disk.block_directory import Block
from millrace.adaptive.memory.side import Side
from millrace.adaptive.pair.pair_state import Machinery
from millrace.core.errors import BudgetTooSmallError, StateError
from millrace.kernels.checksum import checksum

if TYPE_CHECKING:
    from millrace.adaptive.lifecycle import AdaptiveJoin

_MAGIC = b"MILLADPT"
_COUNTS = (
    "rows_in",
    "null_keys",
    "rows_out",
    "batches_out",
    "rows_arriving",
    "rows_reactive",
    "reactive_units",
    "flushes",
    "spilled_rows",
)


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def add(self, data: Any) -> int:
        """Append a buffer; its length."""
        self.parts.append(bytes(memoryview(data).cast("B")))
        return len(self.parts[-1])


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def take(self, length: int) -> memoryview:
        self._at += length
        return self._data[self._at - length : self._at]


def to_bytes(join: AdaptiveJoin) -> bytes:
    """All state of a join."""
    m, writer = join.machinery, _Writer()
    policies = {"flushing": join.flushing.state(), "reactive": join.reactive.state()}  # may touch the blocks' bits
    head = {
        "identity": join.identity,
        "clock": m.clock.now,
        "transfer": m.own_transfer,
        "random": m.random.bit_generator.state,
        "metrics": {name: getattr(join.metrics, name) for name in _COUNTS},
        "sides": [_side(join, side, writer) for side in m.sides],
        **policies,
    }
    packed = json.dumps(head).encode()
    body = len(packed).to_bytes(8, "little") + packed + b"".join(writer.parts)
    return _MAGIC + checksum(np.frombuffer(body, np.uint8)).to_bytes(8, "little") + body


def _side(join: AdaptiveJoin, side: Side, writer: _Writer) -> dict[str, Any]:
    codes, slots = side.memory.entries()
    known = join.schemas[side.number]
    memory = [codes, side.memory.stamps[slots], side.memory.bits[slots], side.memory.batch(slots).serialize()]
    return {
        "schema": None if known is None else base64.b64encode(known.serialize().to_pybytes()).decode(),
        "ended": side.ended,
        "arrived": side.arrived,
        "came": side.came.tolist(),
        "rows": len(codes),
        "memory": [writer.add(part) for part in memory] if len(codes) else [],
        "lonely": [writer.add(batch.serialize()) for batch in side.disk.lonely()],
        "blocks": [
            [
                [b.rows, b.nbytes, b.low, b.high, b.left, writer.add(side.disk.raw(b)), writer.add(b.matched)]
                for b in partition
            ]
            for partition in side.disk.partitions
        ],
    }


def restore(join: AdaptiveJoin, state: bytes) -> None:
    """Fill a fresh join from a snapshot."""
    if not isinstance(state, bytes) or state[: len(_MAGIC)] != _MAGIC:
        raise StateError("restore: not a snapshot of a StreamJoin, or one of another version")
    body = state[len(_MAGIC) + 8 :]
    if checksum(np.frombuffer(body, np.uint8)).to_bytes(8, "little") != state[len(_MAGIC) : len(_MAGIC) + 8]:
        raise StateError("restore: the snapshot is damaged: its checksum is wrong")
    length = int.from_bytes(body[:8], "little")
    head: dict[str, Any] = json.loads(body[8 : 8 + length])
    if head["identity"] != join.identity:
        raise StateError(f"restore: the snapshot is of {head['identity']}; this join is {join.identity}")
    reader = _Reader(memoryview(body)[8 + length :])
    schemas = [s["schema"] and pa.ipc.read_schema(pa.py_buffer(base64.b64decode(s["schema"]))) for s in head["sides"]]
    m = join.machinery
    join.bind(**{name: schema for name, schema in zip(join.inputs, schemas, strict=True) if schema is not None})
    m.clock.now = head["clock"]
    m.random.bit_generator.state = head["random"]
    m.transfer.resize(max(m.transfer.nbytes, head["transfer"]))
    for name, value in head["metrics"].items():
        setattr(join.metrics, name, value)
    for side, facts in zip(m.sides, head["sides"], strict=True):
        _fill(m, side, facts, reader)
    join.flushing.accept(head["flushing"])
    join.reactive.accept(head["reactive"])


def _fill(m: Machinery, side: Side, facts: dict[str, Any], reader: _Reader) -> None:
    side.ended, side.arrived = facts["ended"], facts["arrived"]
    side.came[:] = facts["came"]
    if facts["rows"]:
        codes, stamps, bits, rows = (reader.take(length) for length in facts["memory"])
        batch = pa.ipc.read_record_batch(pa.py_buffer(rows), side.schema)
        keys = np.frombuffer(codes, np.int64)
        moments, marks = np.frombuffer(stamps, np.int64), np.frombuffer(bits, np.uint8)
        if not m.put_back(side, keys, batch, moments, marks):
            raise BudgetTooSmallError(
                f"restore: {len(keys):,} {side.name} rows of the snapshot do not fit into the memory", len(rows)
            )
    for length in facts["lonely"]:
        side.disk.keep(pa.ipc.read_record_batch(pa.py_buffer(reader.take(length)), side.schema))
    for partition, blocks in zip(side.disk.partitions, facts["blocks"], strict=True):
        for rows, nbytes, low, high, left, length, bits in blocks:
            made = side.disk.put_back(reader.take(length))
            matched = np.frombuffer(reader.take(bits), np.uint8)
            partition.append(Block(made, rows, nbytes, low, high, left, matched))
