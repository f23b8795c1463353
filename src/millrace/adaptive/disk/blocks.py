"""Rows on disk: sorted blocks of one side, by partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.adaptive.disk.block_directory import Block, BlockList
from millrace.adaptive.disk.spill_files import BlockId, SpillArea
from millrace.adaptive.memory.pair_output import BatchSource
from millrace.adaptive.memory.sorted_rows import MATCHED, Bits, Codes, Stamps
from millrace.core.budget import MemoryBudget
from millrace.kernels.radix_sort import order_of

STAMP_BYTES = 24
"""What a row on disk has beside its columns: code, arrival, departure."""

_NO_BITS: Bits = np.empty(0, np.uint8)


@dataclass(slots=True)
class Piece:
    """Rows of a block, or some that follow one another, as they were read: keys ascend."""

    at: int
    """The block's place in its list."""
    start: int
    """Where in the block its rows begin."""
    known: Stamps
    """Codes, arrivals and departures, three rows."""
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.known.shape[1])

    def between(self, low: int, high: int) -> Piece:
        """The rows with codes from ``low`` to ``high``."""
        codes = self.known[0]
        start, stop = int(codes.searchsorted(low)), int(codes.searchsorted(high, side="right"))
        if stop - start == len(codes):
            return self
        return Piece(self.at, self.start + start, self.known[:, start:stop], self.batch.slice(start, stop - start))


@dataclass(slots=True)
class Chunk:
    """Rows of one or more blocks in memory: keys ascend, ``order`` says where their rows stand."""

    codes: Codes
    stamps: Stamps
    """Arrivals and departures, two rows."""
    order: npt.NDArray[np.int32]
    source: BatchSource
    home: BlockList
    parts: list[tuple[int, int, int]]
    """Whose rows they are: place of a block, its first row here, how many."""

    @property
    def bits(self) -> Bits:
        return self.source.bits

    def remember(self) -> None:
        """Keep with the blocks which rows have found a partner."""
        if not self.home.tracks:
            return
        done = 0
        for at, start, count in self.parts:
            block = self.home[at]
            matched = np.unpackbits(block.matched, count=block.rows)
            matched[start : start + count] = (self.bits[done : done + count] & MATCHED) != 0
            block.matched = np.packbits(matched)
            self.home.change(at, block)
            done += count


class Disk:
    """The blocks of one side, by partition, in the order they were written.

    Parameters
    ----------
    tracks
        Whether it has to be known which rows have found a partner.
    """

    def __init__(self, name: str, schema: pa.Schema, area: SpillArea, budget: MemoryBudget, tracks: bool) -> None:
        self._schema, self._area, self._tracks, self._name = schema, area, tracks, name
        self.partitions: list[BlockList] = []
        self._lonely: list[BlockId] = []
        self._reservation = budget.reserve("directory")

    def divide(self, partitions: int, page: int, fan: int, block_rows: int) -> None:
        """Keep blocks in so many partitions."""
        rows = block_rows if self._tracks else 0
        self._reservation.resize(partitions * BlockList.least_bytes(page, fan, rows))
        self.partitions = [BlockList(self._area, page, fan, self._tracks) for _ in range(partitions)]

    @property
    def rows(self) -> int:
        """Rows on disk."""
        return sum(partition.rows for partition in self.partitions)

    def keep(self, rows: pa.RecordBatch) -> None:
        """Keep rows that cannot have a partner until the end."""
        self._lonely.append(self._area.write("lonely", [rows.serialize()]))

    def lonely(self) -> Iterator[pa.RecordBatch]:
        """The rows that cannot have a partner."""
        for block in self._lonely:
            yield pa.ipc.read_record_batch(pa.py_buffer(self._area.read(block)), self._schema)

    def write(self, home: BlockList, codes: Codes, stamps: Stamps, batch: pa.RecordBatch, bits: Bits) -> None:
        """Write rows, sorted by code, as one block at the end of a list."""
        rows = batch.serialize()
        matched = np.packbits((bits & MATCHED) != 0) if self._tracks else _NO_BITS
        nbytes = len(codes) * STAMP_BYTES + rows.size
        made = self._area.write(self._name, [np.ascontiguousarray(codes), np.ascontiguousarray(stamps), rows])
        home.append(Block(made, len(codes), nbytes, int(codes[0]), int(codes[-1]), int(stamps[1].max()), matched))

    def load(self, partition: int, places: Sequence[int]) -> Chunk:
        """Read blocks of a partition and put them together."""
        home = self.partitions[partition]
        return self.together(partition, [self.read(at, home[at].id, home[at].rows) for at in places])

    def read(self, at: int, block: BlockId, rows: int) -> Piece:
        """Read a block, which is at a place of its list and has so many rows."""
        data = self._area.read(block)
        known = np.frombuffer(data, np.int64, 3 * rows).reshape(3, rows)
        return Piece(at, 0, known, pa.ipc.read_record_batch(pa.py_buffer(data)[rows * STAMP_BYTES :], self._schema))

    def together(self, partition: int, pieces: Sequence[Piece]) -> Chunk:
        """Rows of blocks of a partition as one."""
        home = self.partitions[partition]
        parts = [(piece.at, piece.start, len(piece)) for piece in pieces]
        bits = self._bits_of(home, parts)
        if len(pieces) == 1:
            known, source = pieces[0].known, BatchSource(pieces[0].batch, bits)
            return Chunk(known[0], known[1:], np.arange(len(bits), dtype=np.int32), source, home, parts)
        known = np.concatenate([piece.known for piece in pieces], axis=1)
        by_code = order_of(known[0])
        known = known[:, by_code]
        source = BatchSource(pa.concat_batches([piece.batch for piece in pieces]), bits)
        return Chunk(known[0], known[1:], by_code.astype(np.int32), source, home, parts)

    def raw(self, block: Block) -> bytes:
        """A block as it is on disk."""
        return bytes(self._area.read(block.id))

    def put_back(self, data: memoryview) -> BlockId:
        """Write a block as it was."""
        return self._area.write(self._name, [data])

    def _bits_of(self, home: BlockList, parts: Sequence[tuple[int, int, int]]) -> Bits:
        if not self._tracks:
            return np.zeros(sum(count for _, _, count in parts), np.uint8)
        bits = [np.unpackbits(home[at].matched, count=start + count)[start:] for at, start, count in parts]
        return np.concatenate(bits) * MATCHED

    def rewrite(self, partition: int, groups: Iterable[Sequence[int]], block_rows: int) -> None:
        """Sort the rows of groups of blocks and write them as blocks with few keys each; others stay as they are."""
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
        """Forget all blocks."""
        for partition in self.partitions:
            for block in partition:
                self._area.free(block.id)
            partition.clear()
        for lonely in self._lonely:
            self._area.free(lonely)
        self._lonely = []
        self._reservation.resize(0)

    def close(self) -> None:
        """Give the reservation back."""
        self._reservation.release()

    def check_invariants(self) -> None:
        for partition in self.partitions:
            assert partition.rows == sum(block.rows for block in partition), "rows on disk do not add up"
