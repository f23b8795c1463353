"""The master as numbered pages of b rows, found by key through the index and read a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from millrace.kernels.code_index import ENTRY, mixed
from millrace.kernels.gather import copy_runs
from millrace.master.device import Device
from millrace.master.read.wheel import Load
from millrace.master.store import MasterStore
from millrace.rows.columns import Indices
from millrace.rows.keyed_rows import Codes

PageNumbers = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]

_INDEX_FAR = 1 << 60  # address of the index on the device, far from the rows


@dataclass(frozen=True)
class PageLoad(Load):
    """A load of some pages of one shard.

    The rows of page ``pages[i]`` are at positions ``starts[i]`` to ``starts[i + 1] - 1`` of the load. The first of them
    is row ``firsts[i]`` of the shard.
    """

    pages: PageNumbers = field(default_factory=lambda: np.empty(0, np.int64))
    firsts: PageNumbers = field(default_factory=lambda: np.empty(0, np.int64))
    starts: PageNumbers = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def page_count(self) -> int:
        return len(self.pages)

    def page_at(self, positions: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> PageNumbers:
        """Return for each position in the load the place of its page in ``pages``."""
        return np.searchsorted(self.starts, positions, side="right") - 1

    def rows_at(self, positions: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        page = self.page_at(positions)
        return self.firsts[page] + positions - self.starts[page]


class Pages:
    """All pages of a store, numbered from the first shard to the last."""

    def __init__(self, store: MasterStore, device: Device, rows: int) -> None:
        self._store, self._device = store, device
        self.rows = rows
        self._rows_of_shard = np.array([shard.rows for shard in store.manifest.shards], np.int64)
        self._first_page = np.concatenate(([0], np.cumsum(-(-self._rows_of_shard // rows))))
        self._first_byte = np.concatenate(([0], np.cumsum(self._rows_of_shard))) * store.row_bytes

    def __len__(self) -> int:
        return int(self._first_page[-1])

    def page_numbers(self, shard: int, rows: Indices) -> PageNumbers:
        """Return for each of these rows of a shard the number of its page."""
        return int(self._first_page[shard]) + rows // self.rows

    # through the index

    def first_pages(self, codes: Codes) -> PageNumbers:
        """Return for each key code the number of the page with its first row; -1 if no row has the code."""
        found = np.full(len(codes), -1, np.int64)
        left = np.arange(len(codes))
        for shard in range(self._store.shards):
            rows = self._store.index(shard).rows_of(codes[left])
            there = rows >= 0
            found[left[there]] = self.page_numbers(shard, rows[there])
            left = left[~there]
        self._count_index(codes)
        return found

    def all_pages(self, codes: Codes) -> tuple[PageNumbers, PageNumbers]:
        """Return which pages hold rows with which key codes, as pairs in two arrays; pairs may repeat.

        The first array holds places in ``codes``, the second numbers of pages with a row of the code at that place.
        """
        self._count_index(codes)
        pairs = [
            (places, self.page_numbers(shard, rows))
            for shard in range(self._store.shards)
            for places, rows in self._store.index(shard).pairs(codes, 1 << 20)
        ]
        if not pairs:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate([places for places, _ in pairs]), np.concatenate([pages for _, pages in pairs])

    def _count_index(self, codes: Codes) -> None:
        """Record look-ups on the device: each reads the page of the index that holds the code's entries."""
        bits = np.empty(len(codes), np.uint64)
        mixed(codes, bits)
        entries = (bits.astype(np.float64) * 2.0**-64 * self._store.rows).astype(np.int64)
        self._device.read_rows(entries, ENTRY.itemsize, _INDEX_FAR)

    # reading

    def read(self, pages: PageNumbers, swept: bool = False) -> Iterator[PageLoad]:
        """Read pages and yield one load per shard; if ``swept``, the device counts each load as one sweep."""
        shards = np.searchsorted(self._first_page, pages, side="right") - 1
        for shard in np.unique(shards):
            of_shard = pages[shards == shard]
            firsts = (of_shard - self._first_page[shard]) * self.rows
            lengths = np.minimum(self.rows, self._rows_of_shard[shard] - firsts)
            self._count_rows(int(shard), firsts, lengths, swept)
            starts = np.concatenate(([0], np.cumsum(lengths)))
            codes = np.empty(int(starts[-1]), np.int64)
            copy_runs(self._store.codes(int(shard)), firsts, starts, codes)
            yield PageLoad(int(shard), 0, codes, pages=of_shard, firsts=firsts, starts=starts)

    def _count_rows(self, shard: int, firsts: PageNumbers, lengths: PageNumbers, swept: bool) -> None:
        device = self._device
        row_bytes = 8.0 if device.reads == "columns" else self._store.row_bytes
        base = float(self._first_byte[shard]) / max(1.0, self._store.row_bytes) * row_bytes
        starts, sizes = ((base + firsts * row_bytes).astype(np.int64), (lengths * row_bytes).astype(np.int64))
        if swept:
            device.sweep(starts, sizes)
            return
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            device.read(start, size)

    def groups(self, codes: Codes, most: int) -> Iterator[Load]:
        """Yield the rows with these key codes in loads of at most ``most`` rows, each from one shard.

        If a code has at most ``most`` rows in a shard, they are all in the same load.
        """
        for shard in range(self._store.shards):
            index = self._store.index(shard)
            _, counts = index.ranges_of(codes)
            at = 0
            while at < len(codes):
                ends = np.cumsum(counts[at:])
                take = max(1, int(np.searchsorted(ends, most, side="right")))
                some = codes[at : at + take]
                pieces = list(index.pairs(some, most))
                for places, rows in pieces:
                    yield Load(shard, 0, some[places], rows, len(pieces) == 1)
                at += take
