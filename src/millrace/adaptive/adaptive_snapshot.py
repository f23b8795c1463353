"""Snapshots of adaptive joins as bytes: all that another process needs to continue, including the rows on disk.

::

    "MILLADPT" | checksum of what follows | length of the head | head (JSON) | buffers, in sequence
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.adaptive.adaptive_metrics import PhaseCounts
from millrace.adaptive.disk.block_directory import BlockEntry
from millrace.adaptive.disk.blocks import DiskState, SpilledBlock
from millrace.adaptive.disk.spill_files import Bytes, as_bytes
from millrace.adaptive.inputs.input_side import MemoryState, SideState
from millrace.adaptive.inputs.join_inputs import InputsState
from millrace.core.errors import StateError
from millrace.kernels.checksum import checksum

_MAGIC = b"MILLADPT"

Take = Callable[[int], memoryview]
"""A function that takes a number of bytes, and returns that many of the next bytes of a snapshot."""


@dataclass(frozen=True)
class JoinState:
    """The whole state of a join, as stored in a snapshot."""

    identity: str
    """The algorithm and the join condition as text. Only a join with the same identity can restore the snapshot."""
    schemas: list[pa.Schema | None]
    counts: PhaseCounts
    inputs: InputsState
    flushing: dict[str, Any]
    """State of the flush policy."""
    reactive: dict[str, Any]
    """State of the reactive policy."""


def to_bytes(state: JoinState) -> bytes:
    """Serialize the state of a join."""
    buffers: list[bytes] = []

    def add(data: Bytes) -> int:
        buffers.append(bytes(as_bytes(data)))
        return len(buffers[-1])

    head = {
        "identity": state.identity,
        "clock": state.inputs.clock,
        "transfer": state.inputs.transfer,
        "random": state.inputs.random,
        "metrics": asdict(state.counts),
        "sides": [_side_head(*each, add) for each in zip(state.schemas, state.inputs.sides, strict=True)],
        "flushing": state.flushing,
        "reactive": state.reactive,
    }
    packed = json.dumps(head).encode()
    body = len(packed).to_bytes(8, "little") + packed + b"".join(buffers)
    return _MAGIC + checksum(np.frombuffer(body, np.uint8)).to_bytes(8, "little") + body


def _side_head(schema: pa.Schema | None, side: SideState, add: Callable[[Bytes], int]) -> dict[str, Any]:
    memory = side.memory
    rows = [] if memory is None else [memory.codes, memory.stamps, memory.bits, memory.rows.serialize()]
    return {
        "schema": None if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode(),
        "ended": side.ended,
        "arrived": side.arrived,
        "came": side.arrived_by_partition,
        "rows": 0 if memory is None else len(memory.codes),
        "memory": [add(part) for part in rows],
        "lonely": [add(batch) for batch in side.disk.null_keys],
        "blocks": [[_block_head(block, add) for block in partition] for partition in side.disk.partitions],
    }


def _block_head(block: SpilledBlock, add: Callable[[Bytes], int]) -> list[int]:
    entry = block.entry
    return [entry.rows, entry.nbytes, entry.low, entry.high, entry.left, add(block.data), add(entry.matched)]


def from_bytes(data: bytes) -> JoinState:
    """Read the state from a snapshot, or raise a ``StateError`` if the bytes are not a complete snapshot."""
    if not isinstance(data, bytes) or data[: len(_MAGIC)] != _MAGIC:
        raise StateError(
            "restore: expected a snapshot of a StreamJoin, in the format of this version of Millrace; "
            f"got {type(data).__name__} without {_MAGIC!r} at the beginning"
        )
    body = data[len(_MAGIC) + 8 :]
    if checksum(np.frombuffer(body, np.uint8)).to_bytes(8, "little") != data[len(_MAGIC) : len(_MAGIC) + 8]:
        raise StateError("restore: the snapshot is damaged: its checksum is wrong")
    length = int.from_bytes(body[:8], "little")
    head: dict[str, Any] = json.loads(body[8 : 8 + length])
    take = _reader(memoryview(body)[8 + length :])
    schemas = [s["schema"] and pa.ipc.read_schema(pa.py_buffer(base64.b64decode(s["schema"]))) for s in head["sides"]]
    sides = [_side_state(*each, take) for each in zip(schemas, head["sides"], strict=True)]
    inputs = InputsState(head["clock"], head["random"], head["transfer"], sides)
    counts = PhaseCounts(**head["metrics"])
    return JoinState(head["identity"], schemas, counts, inputs, head["flushing"], head["reactive"])


def _reader(buffers: memoryview) -> Take:
    at = 0

    def take(length: int) -> memoryview:
        nonlocal at
        at += length
        return buffers[at - length : at]

    return take


def _side_state(schema: pa.Schema | None, head: dict[str, Any], take: Take) -> SideState:
    memory = None
    if head["rows"]:
        codes, stamps, bits, rows = (take(length) for length in head["memory"])
        memory = MemoryState(
            np.frombuffer(codes, np.int64),
            np.frombuffer(stamps, np.int64),
            np.frombuffer(bits, np.uint8),
            pa.ipc.read_record_batch(pa.py_buffer(rows), schema),
        )
    null_keys: list[Bytes] = [take(length) for length in head["lonely"]]
    partitions = [[_block_state(block, take) for block in blocks] for blocks in head["blocks"]]
    return SideState(head["ended"], head["arrived"], head["came"], memory, DiskState(null_keys, partitions))


def _block_state(head: list[int], take: Take) -> SpilledBlock:
    rows, nbytes, low, high, left, length, bits = head
    data, matched = take(length), take(bits)
    return SpilledBlock(BlockEntry(-1, rows, nbytes, low, high, left, np.frombuffer(matched, np.uint8)), data)
