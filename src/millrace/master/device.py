"""Devices count every read of master data, and may model the time that a disk takes for it.

In the papers' experiments the disk is the bottleneck. A modelled device adds seek and transfer time to a
virtual clock, so the experiments can be repeated on any machine; the data itself still comes from the mapped files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from millrace.core.clock import VirtualClock
from millrace.core.errors import one_of

Reads = Literal["columns", "rows"]


@dataclass(frozen=True)
class DiskModel:
    """A model of a disk: seconds per seek, and bandwidth in bytes per second."""

    seek: float
    bandwidth: float

    def seconds(self, seeks: int, nbytes: int) -> float:
        return seeks * self.seek + nbytes / self.bandwidth


DISKS: dict[str, DiskModel | None] = {
    "none": None,
    "hdd-2007": DiskModel(seek=0.008, bandwidth=60e6),
    "hdd-2013": DiskModel(seek=0.006, bandwidth=120e6),
    "ssd-2016": DiskModel(seek=0.00008, bandwidth=500e6),
    "nvme": DiskModel(seek=0.00002, bandwidth=3e9),
}
"""Disks by name: hard disks (7200 rpm) of 2007 and 2013, a SATA SSD, NVMe; ``none`` counts reads and adds no time."""


class Device:
    """Counts reads and, for a modelled disk, advances a virtual clock.

    Parameters
    ----------
    disk
        A name from :data:`DISKS`, or a model of your own.
    reads
        What a scan transfers: only the key ``"columns"`` as this engine does, or whole ``"rows"`` as the papers' row
        stores do.
    page_bytes
        Size of a disk page in bytes.
    clock
        The clock to advance; a new clock if not given.

    Examples
    --------
    >>> device = Device("hdd-2007")
    >>> device.read(0, 600_000); device.read(600_000, 600_000)
    >>> device.seeks, device.bytes_read, round(device.clock.now(), 3)
    (1, 1200000, 0.028)
    """

    def __init__(
        self,
        disk: str | DiskModel = "none",
        *,
        reads: Reads = "columns",
        page_bytes: int = 8192,
        clock: VirtualClock | None = None,
    ) -> None:
        if isinstance(disk, DiskModel):
            self.name = "custom"
            self.disk: DiskModel | None = disk
        else:
            self.name = one_of("device", disk, DISKS)
            self.disk = DISKS[disk]
        one_of("reads", reads, get_args(Reads))
        self.reads: Reads = reads
        self.page_bytes = page_bytes
        self.clock = clock or VirtualClock()
        self.calls = self.seeks = self.bytes_read = self.pages_read = 0
        self._head = -1

    def read(self, start: int, nbytes: int) -> None:
        """Account for one read of ``nbytes`` at byte ``start``."""
        if nbytes <= 0:
            return
        seeks = int(start != self._head)
        self._head = start + nbytes
        self.calls += 1
        self.seeks += seeks
        self.bytes_read += nbytes
        self.pages_read += -(-nbytes // self.page_bytes)
        if self.disk:
            self.clock.advance(self.disk.seconds(seeks, nbytes))

    def read_scattered(self, pages: int) -> None:
        """Account for ``pages`` pages that are read one by one, with a seek for each."""
        nbytes = pages * self.page_bytes
        self.calls += pages
        self.seeks += pages
        self.pages_read += pages
        self.bytes_read += nbytes
        self._head = -1
        if self.disk:
            self.clock.advance(self.disk.seconds(pages, nbytes))

    def sweep(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """Account for pieces that are read together, in the order in which they are on the disk.

        The gap between two pieces is read too if that is not slower than a seek. This is the quickest way to read them,
        because the time for a gap does not depend on other gaps.
        """
        if not len(starts):
            return
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], starts[order] + lengths[order]
        gaps = starts[1:] - ends[:-1]
        along = gaps <= (self.disk.seek * self.disk.bandwidth if self.disk else 0)
        runs = 1 + int((~along).sum())
        nbytes = int(lengths.sum() + gaps[along].sum())
        seeks = runs - int(starts[0] == self._head)
        self._head = int(ends[-1])
        self.calls += runs
        self.seeks += seeks
        self.bytes_read += nbytes
        self.pages_read += -(-nbytes // self.page_bytes)
        if self.disk:
            self.clock.advance(self.disk.seconds(seeks, nbytes))

    def read_rows(self, rows: npt.NDArray[np.int64], row_bytes: float, base: int = 0) -> None:
        """Account for rows that are read together; the data begins at byte ``base``.

        A modelled disk reads each of their pages once. Without a model, one page is counted for each row.
        """
        if self.disk is None:  # no plan is needed, so nothing is sorted
            self.calls += 1
            self.pages_read += len(rows)
            self.bytes_read += int(len(rows) * row_bytes)
            return
        pages = np.unique((rows * row_bytes).astype(np.int64) // self.page_bytes)
        self.sweep(base + pages * self.page_bytes, np.full(len(pages), self.page_bytes))
