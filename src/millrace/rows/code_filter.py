"""A search for rows in memory whose key codes are in a load of master rows; a Bloom filter makes it faster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.budget import MemoryBudget
from millrace.core.lanes import Lanes
from millrace.kernels import bitfilter, multimap
from millrace.rows.arena import Slots
from millrace.rows.keyed_rows import Codes, KeyedRows

_WORTH_A_THREAD = 100_000  # codes of a load below which waking a second thread costs more than it saves

LEAST_MATCHES = multimap.LEAST_MATCHES


class FoundCodes(NamedTuple):
    """Codes of a load that were found among the rows: their positions in the load, and the newest slot of each."""

    positions: npt.NDArray[np.int32]
    newest: Slots


class CodeFilter:
    """Finds the codes of a load among the codes of keyed rows; a Bloom filter is tested before the index of the rows.

    A code passes the filter once :meth:`watch` has added it. Codes cannot be removed one by one. The owner calls
    :meth:`refresh` to rebuild the filter when it is :meth:`stale`.
    """

    def __init__(self, name: str, rows: KeyedRows, budget: MemoryBudget, lanes: Lanes, matches: int) -> None:
        self._rows, self._lanes = rows, lanes
        self._finders = [_Finder(matches) for _ in range(lanes.threads)]
        self._reservation = budget.reserve(name, self.least_bytes(lanes, matches))
        self._bits: npt.NDArray[np.uint64] = np.zeros(1, np.uint64)
        self._set_since = 0

    @staticmethod
    def least_bytes(lanes: Lanes, matches: int) -> int:
        return lanes.threads * 8 * matches + 8

    def watch(self, codes: Codes) -> None:
        """Add codes, which pass the filter from now on."""
        bitfilter.fill(self._bits, codes)
        self._set_since += len(codes)

    def stale(self, live: int) -> bool:
        """Return whether many codes were added since the last rebuild, compared with the number of ``live`` codes."""
        return self._set_since > live // 4 + 64

    def refresh(self, live: Codes) -> None:
        """Rebuild the filter from the ``live`` codes alone."""
        words = bitfilter.filter_words(len(live) + len(live) // 4)
        bytes_now = self._reservation.nbytes + 8 * (words - len(self._bits))
        if words != len(self._bits) and self._reservation.try_resize(bytes_now):
            self._bits = np.zeros(words, np.uint64)
        else:
            self._bits[:] = 0
        bitfilter.fill(self._bits, live)
        self._set_since = 0

    def search(self, codes: Codes) -> Iterator[FoundCodes]:
        """Yield the codes of a load that are found among the rows, a bounded number at a time."""
        finders = self._finders if len(codes) >= _WORTH_A_THREAD else self._finders[:1]
        share = -(-len(codes) // len(finders))
        for number, finder in enumerate(finders):
            finder.aim(min(number * share, len(codes)), min((number + 1) * share, len(codes)))
        while unfinished := [finder for finder in finders if not finder.done]:
            self._lanes.run([partial(f.find, self._rows.map, self._bits, codes) for f in unfinished])
            for finder in unfinished:
                if len(finder.found.positions):
                    yield finder.found

    def lets_through(self, codes: Codes) -> bool:
        """Return whether all of the codes pass the first test of the filter; for tests."""
        out = np.empty(max(1, len(codes)), np.int32)
        return bool(bitfilter.candidates(self._bits, codes, out) == len(codes))


class _Finder:
    """The search of one thread through its part of a load, with output arrays of its own."""

    def __init__(self, matches: int) -> None:
        self._positions = np.empty(matches, np.int32)
        self._newest = np.empty(matches, np.int32)
        self._result = np.zeros(2, np.int64)
        self._at = self._stop = 0
        self.found = FoundCodes(self._positions[:0], self._newest[:0])

    def aim(self, start: int, stop: int) -> None:
        self._at, self._stop = start, stop

    @property
    def done(self) -> bool:
        return self._at >= self._stop

    def find(self, m: multimap.Multimap, bits: npt.NDArray[np.uint64], codes: Codes) -> None:
        """Find the next of ``codes`` that are in the multimap ``m``, and put them into ``found``.

        ``bits`` is the Bloom filter, which is tested first.
        """
        part = codes[: self._stop]
        multimap.find_all(m, bits, part, self._at, self._positions, self._newest, self._result)
        made, self._at = int(self._result[0]), int(self._result[1])
        self.found = FoundCodes(self._positions[:made], self._newest[:made])
