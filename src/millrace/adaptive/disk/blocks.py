"""Rows on disk: sorted blocks of one input, by partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.array_types import Bits, Codes, Stamps
from millrace.adaptive.disk.block_directory import BlockEntry, BlockList
from millrace.adaptive.disk.spill_files import BlockId, Bytes, SpillArea
from millrace.adaptive.memory.key_ordered_rows import MATCHED
from millrace.adaptive.memory.row_sources import BatchRows
from millrace.core.budget import MemoryBudget
from millrace.kernels.radix_sort import order_of

STAMP_BYTES = 24
"""Bytes per row on disk besides its columns: key code, arrival time and departure time."""

_NO_BITS: Bits = np.empty(0, np.uint8)


@dataclass(slots=True)
class BlockSlice:
    """Consecutive rows of a block that has been read, in the order of their key codes."""

    at: int
    """Position of the block in its list."""
    start: int
    """Position of the first of these rows in the block."""
    known: Stamps
    """An array of three rows: key codes, arrival times and departure times."""
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.known.shape[1])

    def between(self, low: int, high: int) -> BlockSlice:
        """Return the rows with codes from ``low`` to ``high``."""
        codes = self.known[0]
        start, stop = int(codes.searchsorted(low)), int(codes.searchsorted(high, side="right"))
        if stop - start == len(codes):
            return self
        return BlockSlice(self.at, self.start + start, self.known[:, start:stop], self.batch.slice(start, stop - start))


@dataclass(slots=True)
class BlockRows:
    """Rows read from one or more blocks, sorted by key code: row i in this order is row ``order[i]`` of ``source``."""

    codes: Codes
    stamps: Stamps
    """An array of two rows: arrival times and departure times."""
    order: npt.NDArray[np.int32]
    source: BatchRows
    home: BlockList
    parts: list[tuple[int, int, int]]
    """For each block: its position in the block list, position of the first row read, and number of rows read."""

    @property
    def bits(self) -> Bits:
        return self.source.bits

    def write_marks(self) -> None:
        """Record in the directory which rows have matched."""
        if not self.home.tracks:
            return
        done = 0
        for at, start, count in self.parts:
            block = self.home[at]
            matched = np.unpackbits(block.matched, count=block.rows)
            matched[start : start + count] = (self.bits[done : done + count] & MATCHED) != 0
            self.home.change(at, replace(block, matched=np.packbits(matched)))
            done += count


@dataclass(frozen=True, slots=True)
class SpilledBlock:
    """A block as it is stored in a snapshot."""

    entry: BlockEntry
    """Directory entry of the block; a restored block gets a new number."""
    data: Bytes


@dataclass(frozen=True, slots=True)
class DiskState:
    """The blocks of one input, as they are stored in a snapshot."""

    null_keys: list[Bytes]
    """Serialized batches of rows whose key is null."""
    partitions: list[list[SpilledBlock]]


class DiskBlocks:
    """The blocks of one input, by partition, in the order in which they were written.

    Parameters
    ----------
    tracks
        Whether the directory records which rows have matched.
    """

    def __init__(self, name: str, schema: pa.Schema, area: SpillArea, budget: MemoryBudget, tracks: bool) -> None:
        self._schema, self._area, self._tracks, self._name = schema, area, tracks, name
        self.partitions: list[BlockList] = []
        self._null_keys: list[BlockId] = []
        self._reservation = budget.reserve("directory")

    def divide(self, partitions: int, page: int, fan: int, block_rows: int) -> None:
        """Create ``partitions`` empty partitions, and reserve memory for their directories."""
        rows = block_rows if self._tracks else 0
        self._reservation.resize(partitions * BlockList.least_bytes(page, fan, rows))
        self.partitions = [BlockList(self._area, page, fan, self._tracks) for _ in range(partitions)]

    @property
    def rows(self) -> int:
        """Number of rows on disk, without those whose key is null."""
        return sum(partition.rows for partition in self.partitions)

    def write_null_keys(self, rows: pa.RecordBatch) -> None:
        """Write rows whose key is null to disk. They match no row, and are output at the end."""
        self._null_keys.append(self._area.write("null keys", [rows.serialize()]))

    def null_keys(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows on disk whose key is null."""
        for block in self._null_keys:
            yield pa.ipc.read_record_batch(pa.py_buffer(self._area.read(block)), self._schema)

    def write(self, home: BlockList, codes: Codes, stamps: Stamps, batch: pa.RecordBatch, bits: Bits) -> None:
        """Write rows that are sorted by key code to disk as one block, and append its entry to a block list."""
        rows = batch.serialize()
        matched = np.packbits((bits & MATCHED) != 0) if self._tracks else _NO_BITS
        nbytes = len(codes) * STAMP_BYTES + rows.size
        made = self._area.write(self._name, [np.ascontiguousarray(codes), np.ascontiguousarray(stamps), rows])
        home.append(BlockEntry(made, len(codes), nbytes, int(codes[0]), int(codes[-1]), int(stamps[1].max()), matched))

    def load(self, partition: int, places: Sequence[int]) -> BlockRows:
        """Read blocks of a partition and merge their rows."""
        home = self.partitions[partition]
        return self.merge(partition, [self.read(at, home[at].id, home[at].rows) for at in places])

    def read(self, at: int, block: BlockId, rows: int) -> BlockSlice:
        """Read one block, given its position in its list, its number and its number of rows."""
        data = self._area.read(block)
        known = np.frombuffer(data, np.int64, 3 * rows).reshape(3, rows)
        return BlockSlice(
            at, 0, known, pa.ipc.read_record_batch(pa.py_buffer(data)[rows * STAMP_BYTES :], self._schema)
        )

    def merge(self, partition: int, pieces: Sequence[BlockSlice]) -> BlockRows:
        """Merge rows read from blocks of a partition, in the order of their key codes."""
        home = self.partitions[partition]
        parts = [(piece.at, piece.start, len(piece)) for piece in pieces]
        bits = self._bits_of(home, parts)
        if len(pieces) == 1:
            known, source = pieces[0].known, BatchRows(pieces[0].batch, bits)
            return BlockRows(known[0], known[1:], np.arange(len(bits), dtype=np.int32), source, home, parts)
        known = np.concatenate([piece.known for piece in pieces], axis=1)
        by_code = order_of(known[0])
        known = known[:, by_code]
        source = BatchRows(pa.concat_batches([piece.batch for piece in pieces]), bits)
        return BlockRows(known[0], known[1:], by_code.astype(np.int32), source, home, parts)

    def state(self) -> DiskState:
        """Return the bytes and the directory entries of all blocks, for a snapshot."""
        return DiskState(
            [batch.serialize() for batch in self.null_keys()],
            [[SpilledBlock(block, bytes(self._area.read(block.id))) for block in each] for each in self.partitions],
        )

    def restore(self, state: DiskState) -> None:
        """Write the blocks of a snapshot to disk."""
        for rows in state.null_keys:
            self._null_keys.append(self._area.write("null keys", [rows]))
        for partition, blocks in zip(self.partitions, state.partitions, strict=True):
            for block in blocks:
                partition.append(replace(block.entry, id=self._area.write(self._name, [block.data])))

    def _bits_of(self, home: BlockList, parts: Sequence[tuple[int, int, int]]) -> Bits:
        if not self._tracks:
            return np.zeros(sum(count for _, _, count in parts), np.uint8)
        bits = [np.unpackbits(home[at].matched, count=start + count)[start:] for at, start, count in parts]
        return np.concatenate(bits) * MATCHED

    def rewrite(self, partition: int, groups: Iterable[Sequence[int]], block_rows: int) -> None:
        """Sort the rows of each group of blocks into new blocks with narrow ranges of keys; keep all other blocks."""
        old, new = self.partitions[partition], self.partitions[partition].fresh()
        kept = set(range(len(old)))
        for places in groups:
            chunk = self.load(partition, places)
            for start in range(0, len(chunk.codes), block_rows):
                cut = slice(start, start + block_rows)
                rows = chunk.order[cut]
                batch = chunk.source.batch.take(pa.array(rows))
                self.write(new, chunk.codes[cut], chunk.stamps[:, cut], batch, chunk.bits[rows])
            for at in places:
                self._area.free(old[at].id)
            kept.difference_update(places)
        for at in sorted(kept):
            new.append(old[at])
        old.clear()
        self.partitions[partition] = new

    def clear(self) -> None:
        """Remove all blocks."""
        for partition in self.partitions:
            for block in partition:
                self._area.free(block.id)
            partition.clear()
        for written in self._null_keys:
            self._area.free(written)
        self._null_keys = []
        self._reservation.resize(0)

    def close(self) -> None:
        """Release the memory that is reserved for the directory."""
        self._reservation.release()

    def check_invariants(self) -> None:
        for partition in self.partitions:
            assert partition.rows == sum(block.rows for block in partition), "rows on disk do not add up"
