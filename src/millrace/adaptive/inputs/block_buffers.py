"""Memory for blocks that are being read from disk or written to it."""

from __future__ import annotations

from millrace.adaptive.disk.block_directory import BlockList
from millrace.core.budget import MemoryBudget


class BlockBuffers:
    """A memory reservation for blocks that are being read or written; it can be enlarged for a while (a *loan*).

    Parameters
    ----------
    nbytes
        Bytes to reserve.
    block
        Bytes in a block.
    """

    def __init__(self, budget: MemoryBudget, nbytes: int, block: int) -> None:
        self.block = block
        self._budget = budget
        self._reservation = budget.reserve("transfer", nbytes)
        self._own = 0  # bytes reserved before a loan; 0 if there is no loan

    @property
    def nbytes(self) -> int:
        """Bytes reserved for blocks, borrowed bytes included."""
        return self._reservation.nbytes

    @property
    def own_bytes(self) -> int:
        """Bytes reserved for blocks, without borrowed bytes."""
        return self._own or self.nbytes

    def try_resize(self, nbytes: int) -> bool:
        """Change the reservation to ``nbytes`` bytes; return False if the budget does not allow it."""
        return self._reservation.try_resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Change the reservation to ``nbytes`` bytes."""
        self._reservation.resize(nbytes)

    def take_rest(self) -> None:
        """Add all free bytes of the budget to the reservation."""
        self.resize(self.nbytes + self._budget.available)

    def begin_loan(self) -> None:
        """Remember the current size, which :meth:`end_loan` restores."""
        self._own = self._own or self.nbytes

    def end_loan(self) -> None:
        """Restore the size before the loan; do nothing if there is no loan."""
        if self._own:
            self._reservation.resize(self._own)
            self._own = 0

    def fitting(self, blocks: BlockList, first: int, most: int) -> int:
        """Return how many blocks, from position ``first`` on, fit into the reservation: at least one, at most ``most``.

        While blocks are merged, each takes twice its size.
        """
        left, count = self.nbytes - 2 * self.block, 0
        while first + count < len(blocks) and count < most:
            left -= 2 * blocks[first + count].nbytes
            if left < 0:
                break
            count += 1
        return max(1, count)
