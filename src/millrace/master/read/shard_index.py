"""The index of a shard, by which the rows with a key code are found; it is in two files beside the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.errors import ConfigError
from millrace.kernels import code_index as kernels
from millrace.kernels.code_index import ENTRY

STARTS, ENTRIES = "starts.index", "entries.index"

_BUCKET_ROWS = 2  # entries of a bucket on average, at least
_SORT_ROWS = 1 << 24
_MOST_ROWS = 2**32 - 2


def bucket_bits(rows: int) -> int:
    """Return how many upper bits of a mixed code select its bucket."""
    return max(1, (max(1, rows) // _BUCKET_ROWS).bit_length() - 1)


@dataclass(frozen=True)
class KeyCounts:
    """Counts of a shard: distinct keys, and rows of the most frequent key."""

    keys: int
    largest_group: int


def build_index(codes: npt.NDArray[np.int64], directory: Path | None) -> KeyCounts:
    """Count the keys of a shard and, given a directory, write its index there. Sorts at most 16 M codes at a time."""
    rows = len(codes)
    if directory is not None and rows > _MOST_ROWS:
        raise ConfigError(
            f"index: expected at most {_MOST_ROWS:,} rows in a shard; got {rows:,}. Use more shards, or index=False"
        )
    bits = bucket_bits(rows)
    parts = 1 << max(0, (-(-rows // _SORT_ROWS) - 1).bit_length())
    keys = largest = written = 0
    starts = _open(directory, STARTS)
    entries = _open(directory, ENTRIES)
    try:
        for part in range(parts):
            numbers, bits_of = _share(codes, part, parts)
            order = np.argsort(bits_of, kind="stable") if directory is not None else None
            ordered = np.sort(bits_of) if order is None else bits_of[order]
            edges = np.flatnonzero(np.diff(ordered))
            keys += len(edges) + 1 if len(ordered) else 0
            runs = np.diff(np.concatenate(([-1], edges, [len(ordered) - 1])))
            largest = max(largest, int(runs.max(initial=0)))
            if order is not None and starts is not None and entries is not None:
                block = np.empty(len(order), ENTRY)
                block["row"] = numbers[order]
                block["code"] = codes[block["row"]]
                block.tofile(entries)
                first, stop = (p << bits >> _log2(parts) for p in (part, part + 1))
                sizes = np.bincount((ordered >> np.uint64(64 - bits)).astype(np.int64) - first, minlength=stop - first)
                starts.write((np.cumsum(sizes) - sizes + written).astype("<u4").tobytes())
                written += len(order)
        if starts is not None:
            starts.write(np.array([written], "<u4").tobytes())
    finally:
        for file in (starts, entries):
            if file is not None:
                file.close()
    return KeyCounts(keys, largest)


def _open(directory: Path | None, name: str) -> Any:
    return None if directory is None else (directory / name).open("wb")


def _log2(parts: int) -> int:
    return parts.bit_length() - 1


def _share(
    codes: npt.NDArray[np.int64], part: int, parts: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Return the rows whose mixed codes are in range ``part`` of ``parts`` equal ranges, and their mixed codes.

    Mixed codes are key codes that were scrambled, so that they are spread evenly. Rows are in ascending order.
    """
    if parts == 1:
        numbers = np.arange(len(codes), dtype=np.uint32)
    else:
        shift = 64 - _log2(parts)
        least, most = np.uint64(part << shift), np.uint64(((part + 1) << shift) - 1)
        numbers = np.empty(kernels.within(codes, least, most, np.empty(0, np.uint32)), np.uint32)
        kernels.within(codes, least, most, numbers)
    bits = np.empty(len(numbers), np.uint64)
    kernels.mixed(codes if parts == 1 else codes[numbers], bits)
    return numbers, bits


class ShardIndex:
    """The memory-mapped index of one shard."""

    def __init__(self, directory: Path, rows: int) -> None:
        bits = bucket_bits(rows)
        self.rows = rows
        self._shift = np.uint64(64 - bits)
        self._starts = np.asarray(np.memmap(directory / STARTS, np.uint32, mode="r", shape=((1 << bits) + 1,)))
        self._entries: npt.NDArray[Any] = (
            np.asarray(np.memmap(directory / ENTRIES, ENTRY, mode="r", shape=(rows,))) if rows else np.empty(0, ENTRY)
        )

    @staticmethod
    def nbytes_of(rows: int) -> tuple[int, int]:
        """Return the lengths of the two files of an index over this many rows, in bytes."""
        return 4 * ((1 << bucket_bits(rows)) + 1), ENTRY.itemsize * rows

    def rows_of(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the first row of each code, or -1 if it has none."""
        rows = np.empty(len(codes), np.int64)
        kernels.rows_of(self._starts, self._entries, self._shift, codes, rows)
        return rows

    def ranges_of(self, codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the place of the first entry of each code, and how many rows the code has."""
        firsts, counts = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        kernels.ranges_of(self._starts, self._entries, self._shift, codes, firsts, counts)
        return firsts, counts

    def pairs(
        self, codes: npt.NDArray[np.int64], most: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield pairs (position in ``codes``, row with this code), in pieces of at most ``most`` pairs."""
        firsts, counts = self.ranges_of(codes)
        there = np.flatnonzero(counts)
        firsts, counts = firsts[there], counts[there]
        while len(there):
            ends = np.cumsum(counts)
            take = int(np.searchsorted(ends, most, side="right"))
            if take == 0:  # the first code has more rows than ``most``
                some = counts[:1] * 0 + most
                yield self._rows_in(there[:1], firsts[:1], some)
                firsts[0] += most
                counts[0] -= most
                continue
            yield self._rows_in(there[:take], firsts[:take], counts[:take])
            there, firsts, counts = there[take:], firsts[take:], counts[take:]

    def _rows_in(
        self, places: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        total = int(counts.sum())
        index, rows = np.empty(total, np.int64), np.empty(total, np.int64)
        kernels.rows_in(self._entries, firsts, counts, index, rows)
        return places[index], rows

    def check(self, codes: npt.NDArray[np.int64]) -> bool:
        """Return whether every row of the shard is found under its code. Reads everything."""
        if int(self._starts[-1]) != self.rows or (np.diff(self._starts.astype(np.int64)) < 0).any():
            return False
        numbers = self._entries["row"]
        if not np.array_equal(np.sort(numbers), np.arange(self.rows, dtype=np.uint32)):
            return False
        if not np.array_equal(self._entries["code"], codes[numbers]):
            return False
        step = 1 << 20
        return all((self.rows_of(codes[at : at + step]) >= 0).all() for at in range(0, self.rows, step))
